"""Log lines of a worker: text for people, or JSON for machines that follow a stream through all processes."""

import json
import logging
import re
from datetime import UTC, datetime

from headrace_wire.api_key import redact

_FIELDS = re.compile(r"\b(stream_id|trace_id|prefill_id)=([\w.-]+)")
"""What lines say of themselves and machines look for; it stands in the text the same way."""


class TextFormatter(logging.Formatter):
    """One line per event; API keys never stand in it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return redact(super().format(record))


class JsonFormatter(logging.Formatter):
    """One object per event, with the names that the gateway's lines have; API keys never stand in it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        text = redact(record.getMessage())
        line = {
            "event": text,
            **dict(_FIELDS.findall(text)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
        }
        if record.exc_info:
            line["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


def set_up_logging(level: str, *, as_json: bool) -> None:
    """Have all lines of the process go to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler])
