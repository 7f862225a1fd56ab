"""The gateway's ASGI application: `/v1` is served by the thin application in front, everything else by Django."""

import asyncio
from typing import Any

import structlog

from headrace.env import select_settings

select_settings()

from django.core.asgi import get_asgi_application  # noqa: E402  # settings first

django_application = get_asgi_application()

from channels.routing import URLRouter  # noqa: E402  # the registry of apps first
from django.conf import settings  # noqa: E402

from apps.api.asgi import application as api_application  # noqa: E402
from apps.ops.health import HEALTH_PATHS, HealthApplication  # noqa: E402
from apps.streams.runtime import running_gateway, start_gateway, stop_gateway  # noqa: E402
from headrace.routing import websocket_routes  # noqa: E402
from headrace.server.state import STATE_KEY, ServerState  # noqa: E402
from headrace_wire.cancellation import cancel_and_wait  # noqa: E402
from headrace_wire.errors import DependencyUnavailableError, DrainingError  # noqa: E402

log = structlog.get_logger(__name__)

START_RETRY_SECONDS = 0.5

_websockets = URLRouter(websocket_routes)


def _not_ready() -> list[str]:
    gateway = running_gateway()
    if gateway is None:
        return ["waiting for Redis"]
    if gateway.draining:
        return ["draining"]
    return [] if gateway.is_ready else ["waiting for the configuration"]


_health = HealthApplication(not_ready=_not_ready, metrics_token=settings.HEADRACE_METRICS_TOKEN)


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:  # noqa: ANN401  # ASGI's own types
    """Route one connection."""
    kind = scope["type"]
    if kind == "http":
        await _http_application(scope["path"])(scope, receive, send)
    elif kind == "websocket":
        await _serve_websocket(scope, receive, send)
    elif kind == "lifespan":
        await _live(scope, receive, send)


def _http_application(path: str) -> Any:  # noqa: ANN401
    if path.startswith("/v1/"):
        return api_application
    return _health if path in HEALTH_PATHS else django_application


async def _serve_websocket(scope: dict[str, Any], receive: Any, send: Any) -> None:  # noqa: ANN401
    try:
        await _websockets(scope, receive, send)
    except ValueError:
        # URLRouter's way of saying that no route matches.
        await send({"type": "websocket.close", "code": 4404})


async def _live(scope: dict[str, Any], receive: Any, send: Any) -> None:  # noqa: ANN401
    """Start the gateway's runtime with the server, and stop it after the last connection."""
    await receive()
    state = scope["state"].get(STATE_KEY)
    server = state if isinstance(state, ServerState) else None
    tasks = [asyncio.create_task(_start(server))]
    if server is not None:
        tasks.append(asyncio.create_task(_follow_drain(server)))
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await cancel_and_wait(*tasks)
    await stop_gateway()
    await send({"type": "lifespan.shutdown.complete"})


async def _start(server: ServerState | None) -> None:
    """Start the runtime as soon as Redis answers; until then requests are answered with 503."""
    while True:
        try:
            gateway = await start_gateway()
        except DependencyUnavailableError as error:
            log.warning("gateway_waits_for_redis", error=str(error.__cause__))
            await asyncio.sleep(START_RETRY_SECONDS)
        else:
            if server is not None:
                gateway.buffered_bytes = lambda: server.buffered_lately
                gateway.server_load = lambda: (server.connection_count, server.websockets)
                gateway.leave = server.leave
            return


async def _follow_drain(server: ServerState) -> None:
    """Take no new streams in a drain; shortly before its deadline, end what still runs with an explicit error."""
    await server.draining.wait()
    gateway = running_gateway()
    if gateway is None:
        return
    gateway.draining = True
    await server.closing.wait()
    log.warning("drain_cuts_streams", streams=len(gateway.delivery))
    gateway.delivery.interrupt_all(
        DrainingError("The gateway was shut down before the answer was complete.", retry_after_seconds=1.0)
    )
