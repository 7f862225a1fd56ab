"""WebSocket routes."""

from typing import Any

from django.urls import path

from apps.api.consumers import StreamConsumer

websocket_routes: list[Any] = [
    path("v1/ws", StreamConsumer.as_asgi()),
]
