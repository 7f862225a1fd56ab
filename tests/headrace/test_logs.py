import io
import json
import logging
import logging.config
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from headrace.logs import hide_secrets, logging_config
from headrace_wire.api_key import ApiKeyToken

TOKEN = ApiKeyToken.generate()


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a process with our logging writes."""
    before = structlog.get_config()
    config = logging_config(level="INFO", as_json=True)
    logger = logging.getLogger("headrace.test")
    handler = logging.StreamHandler(stream := io.StringIO())
    formatter = dict(config["formatters"]["structured"])
    handler.setFormatter(formatter.pop("()")(**formatter))
    logger.addHandler(handler)
    logger.setLevel("INFO")
    logger.propagate = False
    yield stream
    logger.removeHandler(handler)
    structlog.configure(**before)


def last(lines: io.StringIO) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(lines.getvalue().splitlines()[-1])
    return line


def test_our_loggers_and_the_libraries_write_one_form(lines: io.StringIO) -> None:
    structlog.get_logger("headrace.test").warning("worker_changed", state="lost", count=2)
    ours = last(lines)
    logging.getLogger("headrace.test").warning("Not Found: %s", "/x")
    theirs = last(lines)
    assert (ours["event"], ours["state"], ours["count"]) == ("worker_changed", "lost", 2)
    assert theirs["event"] == "Not Found: /x"
    assert ours.keys() - {"state", "count"} == theirs.keys() == {"event", "level", "logger", "timestamp"}


def test_no_key_in_a_message_an_argument_or_a_traceback(lines: io.StringIO) -> None:
    logger = logging.getLogger("headrace.test")
    logger.warning("refused %s", TOKEN.reveal())
    structlog.get_logger("headrace.test").warning("refused", header=f"Bearer {TOKEN.reveal()}", deep=[{"k": TOKEN}])
    try:
        int(TOKEN.reveal())
    except ValueError:
        logger.exception("failed")
    written = lines.getvalue()
    assert TOKEN.secret not in written
    assert f"sk-hr-{TOKEN.public_id}-…" in json.loads(written.splitlines()[0])["event"]
    assert "ValueError" in last(lines)["exception"]


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("password", "hunter2", "(hidden)"),
        ("Authorization", b"Basic hunter2", "(hidden)"),
        ("session_cookie", ["hunter2"], ["(hidden)"]),
        ("headers", {"cookie": "hunter2", "host": "h"}, {"cookie": "(hidden)", "host": "h"}),
        ("tokens_generated", 12, 12),
        ("token", None, None),
        ("reason", "no such key", "no such key"),
    ],
)
def test_values_are_hidden_by_name(name: str, value: object, kept: object) -> None:
    assert hide_secrets(None, "info", {name: value}) == {name: kept}
