"""What vLLM says when it does not start, or does not take a request."""

import contextlib
import json
from pathlib import Path
from typing import Any

from headrace_worker.engine import EngineDeadError, EngineRefusedError


def message_of(error: Exception) -> str:
    """Return what vLLM says; pydantic's framing goes."""
    details = getattr(error, "errors", None)
    if callable(details):
        with contextlib.suppress(Exception):
            return "; ".join(_detail(detail) for detail in details())
    return str(error) or type(error).__name__


def _detail(detail: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in detail["loc"])
    what = str(detail["msg"]).removeprefix("Value error, ")
    return f"{where}: {what}" if where else what


def start_failure(report: Path, error: Exception) -> Exception:
    """Return what to raise for an EngineCore that did not start, with the reason that it reported."""
    try:
        told = json.loads(report.read_text("utf-8"))
    except (OSError, ValueError):
        return EngineDeadError(message_of(error))
    if told["kind"] in {"ValueError", "NotImplementedError", "ValidationError", "KeyError"}:
        return EngineRefusedError(told["message"])
    return EngineDeadError(f"{told['kind']}: {told['message']}")
