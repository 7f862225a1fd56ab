"""The first module that a child of the worker imports: multiprocessing takes it for the main one (`process_guard`).

It binds the child's life to the worker's, or to that of the worker's fork server, before anything else, and reports why
an engine could not start: vLLM tells its parent only that it did not.
"""

import json
import logging
from typing import Any

from headrace_wire.parent_death import die_with_parent
from headrace_worker.config import engine_error_file, engine_parent_pid

ENGINE_CORE_LOGGER = "vllm.v1.engine.core"


def report_failures() -> None:
    """Write the exception that EngineCore logs as its end to the file that the worker named."""
    make = logging.getLogRecordFactory()

    def make_and_report(*args: Any, **kwargs: Any) -> logging.LogRecord:  # noqa: ANN401  a record factory's signature
        record = make(*args, **kwargs)
        if record.name == ENGINE_CORE_LOGGER and record.levelno >= logging.ERROR and record.exc_info:
            _report(record.exc_info[1])
        return record

    logging.setLogRecordFactory(make_and_report)


def _report(error: BaseException | None) -> None:
    path = engine_error_file()
    if path is not None and error is not None:
        path.write_text(json.dumps({"kind": type(error).__name__, "message": str(error)}), "utf-8")


if __name__ == "__mp_main__":
    die_with_parent(engine_parent_pid())
    report_failures()
