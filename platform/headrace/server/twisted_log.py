"""Twisted's own log: what it calls an error goes to our log; the rest, a line for each connection, goes nowhere."""

import logging
from typing import Any

from twisted.logger import LogLevel, formatEvent, globalLogBeginner

logger = logging.getLogger(__name__)


def forward_errors() -> None:
    """Routes Twisted's log; once for each process."""
    globalLogBeginner.beginLoggingTo([_forward], redirectStandardIO=False, discardBuffer=True)


def _forward(event: dict[str, Any]) -> None:
    if event["log_level"] >= LogLevel.error:
        failure = event.get("log_failure")
        exc_info = (failure.type, failure.value, failure.getTracebackObject()) if failure is not None else None
        logger.error("%s", formatEvent(event), exc_info=exc_info)
