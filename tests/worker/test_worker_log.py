"""Log lines of a worker, for people and for machines."""

import json
import logging
import sys

from headrace_worker.worker_log import JsonFormatter, TextFormatter
from tests.support.snapshots import KEY_A

STREAM = "strm-0123456789abcdef01234567"


def record(text: str, *arguments: object, failed: bool = False) -> logging.LogRecord:
    trouble = None
    if failed:
        try:
            int("bad luck")
        except ValueError:
            trouble = sys.exc_info()
    return logging.LogRecord("headrace_worker.streams", logging.INFO, "", 0, text, arguments, trouble)


def test_a_line_for_machines_says_which_stream_it_is_about() -> None:
    line = json.loads(JsonFormatter().format(record("claimed stream_id=%s trace_id=%s", STREAM, "ab" * 16)))
    assert (line["stream_id"], line["trace_id"]) == (STREAM, "ab" * 16)
    assert (line["level"], line["logger"]) == ("info", "headrace_worker.streams")
    assert line["event"] == f"claimed stream_id={STREAM} trace_id={'ab' * 16}"


def test_what_failed_stands_in_one_line() -> None:
    text = JsonFormatter().format(record("failed", failed=True))
    assert "\n" not in text
    assert "bad luck" in json.loads(text)["exception"]


def test_no_line_holds_a_key() -> None:
    for formatter in (JsonFormatter(), TextFormatter()):
        assert KEY_A.secret not in formatter.format(record("key %s", KEY_A.reveal()))
