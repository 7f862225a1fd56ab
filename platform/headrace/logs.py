"""Log lines: structured, one format for our own loggers and for the libraries', and without secrets."""

from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

from headrace_wire.api_key import redact

_SECRET_NAMES = ("password", "secret", "token", "authorization", "cookie", "api_key", "api-key", "csrf")
_HIDDEN = "(hidden)"

Event = MutableMapping[str, Any]


def hide_secrets(_logger: object, _method: str, event: Event) -> Event:
    """Blanks values whose name says that they are secret, and cuts the secret out of API keys anywhere in a text."""
    for name, value in event.items():
        event[name] = _hidden(name, value)
    return event


def _hidden(name: object, value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _hidden(key, inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_hidden(name, inner) for inner in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    is_secret = isinstance(name, str) and any(word in name.lower() for word in _SECRET_NAMES)
    return _HIDDEN if is_secret else redact(_text(value))


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return repr(value) if isinstance(value, BaseException) else str(value)


def logging_config(*, level: str, as_json: bool) -> dict[str, Any]:
    """Returns the `dictConfig` of the process, and sets structlog up to go through it."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=False)
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "structured": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": shared,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    structlog.processors.format_exc_info,
                    hide_secrets,
                    renderer,
                ],
            },
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structured"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "django": {"handlers": [], "propagate": True},
            "django.server": {"handlers": [], "propagate": True},
            "daphne": {"level": "WARNING"},
            "asyncio": {"level": "WARNING"},
            # A line per task and tick: only what goes wrong.
            "celery.app.trace": {"level": "WARNING"},
            "celery.beat": {"level": "WARNING"},
            "celery.worker.strategy": {"level": "WARNING"},
        },
    }
