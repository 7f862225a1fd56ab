"""The thin ASGI application under `/v1`: routes, errors, nothing else. Django stands behind it for all other paths."""

import structlog

from apps.api.chat_completions import chat_completions
from apps.api.error_rendering import error_body
from apps.api.http import ClientDisconnectedError, Exchange, Receive, Scope, Send
from apps.api.models_list import model_retrieve, models_list
from apps.streams.gateway import Gateway
from apps.streams.runtime import current_gateway
from headrace_wire.errors import HeadraceError, MethodNotAllowedError, NotFoundError, ServerError

log = structlog.get_logger(__name__)

_MODELS = "/v1/models"


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one HTTP request; every failure becomes an OpenAI error body while that is still possible."""
    exchange = Exchange(scope, receive, send)
    try:
        await _route(exchange, await current_gateway())
    except ClientDisconnectedError:
        log.debug("client_left", request_id=exchange.request_id)
    except HeadraceError as error:
        await _refuse(exchange, error)
    except ConnectionError:
        log.debug("client_gone", request_id=exchange.request_id)
    except Exception:
        log.exception("request_failed", request_id=exchange.request_id)
        await _refuse(exchange, ServerError(f"The server failed to handle the request ({exchange.request_id})."))


async def _route(exchange: Exchange, gateway: Gateway) -> None:
    path, method = exchange.scope["path"].rstrip("/"), exchange.scope["method"]
    if path == "/v1/chat/completions":
        _require(method, "POST", path)
        await chat_completions(exchange, gateway)
    elif path == _MODELS:
        _require(method, "GET", path)
        await models_list(exchange, gateway)
    elif path.startswith(f"{_MODELS}/"):
        _require(method, "GET", path)
        await model_retrieve(exchange, gateway, path.removeprefix(f"{_MODELS}/"))
    else:
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
