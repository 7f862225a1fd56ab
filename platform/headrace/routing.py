"""WebSocket routes."""

from typing import Any

from django.urls import path

from apps.api.consumers import StreamConsumer
from apps.ops.routing import websocket_routes as ops_routes

websocket_routes: list[Any] = [
    path("v1/ws", StreamConsumer.as_asgi()),
    *ops_routes,
]
