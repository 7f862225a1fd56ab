"""The thin ASGI application under `/v1`: routes, errors, nothing else. Django stands behind it for all other paths."""

import structlog
from redis.exceptions import RedisError

from apps.api.chat_completions import chat_completions
from apps.api.error_rendering import error_body
from apps.api.http import ClientDisconnectedError, Exchange, Receive, Scope, Send
from apps.api.models_list import model_retrieve, models_list
from apps.api.stream_events import stream_follow, stream_retrieve, stream_stop
from apps.api.stream_tickets import stream_ticket
from apps.api.usage_report import usage_report
from apps.streams.gateway import Gateway
from apps.streams.runtime import current_gateway
from headrace_wire.errors import (
    DependencyUnavailableError,
    HeadraceError,
    MethodNotAllowedError,
    NotFoundError,
    ServerError,
)

log = structlog.get_logger(__name__)


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one HTTP request; every failure becomes an OpenAI error body while that is still possible."""
    exchange = Exchange(scope, receive, send)
    try:
        gateway = await current_gateway()
        await _route(exchange, gateway)
    except ClientDisconnectedError:
        log.debug("client_left", request_id=exchange.request_id, stream_id=exchange.stream_id)
    except HeadraceError as error:
        await _refuse(exchange, error)
    except RedisError as error:
        log.warning("store_unreachable", request_id=exchange.request_id, stream_id=exchange.stream_id, error=str(error))
        await _refuse(exchange, DependencyUnavailableError("The stream store does not answer; try again."))
    except ConnectionError:
        log.debug("client_gone", request_id=exchange.request_id, stream_id=exchange.stream_id)
    except Exception:
        log.exception("request_failed", request_id=exchange.request_id, stream_id=exchange.stream_id)
        await _refuse(exchange, ServerError(f"The server failed to handle the request ({exchange.request_id})."))


async def _route(exchange: Exchange, gateway: Gateway) -> None:
    path, method = exchange.scope["path"].rstrip("/"), exchange.scope["method"]
    match path.split("/")[2:]:
        case ["chat", "completions"]:
            _require(method, "POST", path)
            await chat_completions(exchange, gateway)
        case ["models"]:
            _require(method, "GET", path)
            await models_list(exchange, gateway)
        case ["models", *name]:
            _require(method, "GET", path)
            await model_retrieve(exchange, gateway, "/".join(name))
        case ["usage"]:
            _require(method, "GET", path)
            await usage_report(exchange, gateway)
        case ["streams", stream_id, *rest]:
            await _route_stream(exchange, gateway, stream_id, rest)
        case _:
            raise NotFoundError(f"There is no route {method} {path[:200]}.")


async def _route_stream(exchange: Exchange, gateway: Gateway, stream_id: str, rest: list[str]) -> None:
    path, method = exchange.scope["path"], exchange.scope["method"]
    match rest:
        case [] if method == "DELETE":
            await stream_stop(exchange, gateway, stream_id)
        case []:
            _require(method, "GET", path)
            await stream_retrieve(exchange, gateway, stream_id)
        case ["events"]:
            _require(method, "GET", path)
            await stream_follow(exchange, gateway, stream_id)
        case ["ticket"]:
            _require(method, "POST", path)
            await stream_ticket(exchange, gateway, stream_id)
        case ["cancel"]:
            _require(method, "POST", path)
            await stream_stop(exchange, gateway, stream_id)
        case _:
            raise NotFoundError(f"There is no route {method} {path[:200]}.")


def _require(method: str, expected: str, path: str) -> None:
    if method != expected and not (expected == "GET" and method == "HEAD"):
        raise MethodNotAllowedError(f"{path} takes {expected}, not {method}.")


async def _refuse(exchange: Exchange, error: HeadraceError) -> None:
    if not exchange.answered:
        await exchange.answer_error(error)
    else:
        # Too late for a status: an error event, then the end of the body, never a clean finish.
        await exchange.write(b"data: " + error_body(error) + b"\n\n", more=False)
