"""WebSocket routes."""

from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.security.websocket import AllowedHostsOriginValidator
from django.urls import path

from apps.ops.consumers import UiConsumer

websocket_routes: list[Any] = [
    path("ws/ui", AllowedHostsOriginValidator(AuthMiddlewareStack(UiConsumer.as_asgi()))),
]
