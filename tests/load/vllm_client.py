"""`vllm bench serve` as a child process that runs it many times, so that its imports (10 s of a core) are done once.

`python -m tests.load.vllm_client JOB` is that child; `ask` starts it. What it runs is the tool's own parser and main
function with the arguments of its command line.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from tests.load.measurements import cpu_seconds
from tests.load.vllm_command import answer_for_cpu_builds
from tests.support.environment import REPOSITORY_ROOT, child_environment
from tests.support.processes import Process, ProcessFailedError

RUN_SECONDS = 240.0
"""Of one run; a system that answers nothing any more shall not hold up the others."""


class BenchFailedError(Exception):
    """A measurement is worth nothing: the tool or some of its requests failed. The message carries its output."""


class Outcome(Struct, frozen=True):
    """One run of the tool."""

    result: dict[str, Any]
    """What it saves as its JSON."""
    cpu_seconds: dict[str, float]
    """CPU time that each of the processes that were named used meanwhile, warm-up requests included."""


class _Job(Struct, frozen=True):
    folder: str
    runs: list[list[str]]
    pids: dict[str, list[int]]


def ask(
    runs: Sequence[Sequence[str]], *, key: str, pids: Mapping[str, Sequence[int]] | None = None
) -> Iterator[Outcome]:
    """Runs `vllm bench serve` once with each list of arguments, one after the other; yields what each gave.

    Raises:
        BenchFailedError: It failed, or one of its requests: nothing was run after it.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        named = {name: list(those) for name, those in (pids or {}).items()}
        job = Path(folder) / "job.json"
        job.write_bytes(msgspec.json.encode(_Job(folder, [list(run) for run in runs], named)))
        environ = child_environment(OPENAI_API_KEY=key, HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="WARNING")
        command = [sys.executable, "-m", "tests.load.vllm_client", str(job)]
        with Process(command, name="vllm bench serve", environ=environ, cwd=REPOSITORY_ROOT) as bench:
            for number in range(len(runs)):
                try:
                    bench.wait_for_line(_said(number), timeout=RUN_SECONDS)
                except ProcessFailedError as error:
                    raise BenchFailedError(str(error)) from error
                outcome = msgspec.json.decode(_outcome_file(folder, number).read_bytes(), type=Outcome)
                if failed := outcome.result["failed"]:
                    raise BenchFailedError(f"{failed} requests failed:\n{bench.log[-3000:]}")
                yield outcome


def _said(number: int) -> str:
    """Returns what the child says once a run's outcome is there."""
    return f"run {number} of the bench has ended"


def _outcome_file(folder: str, number: int) -> Path:
    return Path(folder) / f"{number}.json"


def _run_all(job: _Job) -> None:
    answer_for_cpu_builds()
    from vllm.benchmarks.serve import add_cli_args, main  # noqa: PLC0415  heavy, and wants the version
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    for number, arguments in enumerate(job.runs):
        before = _used(job.pids)
        result = main(parser.parse_args(arguments))
        used = {name: now - before[name] for name, now in _used(job.pids).items()}
        kept = {name: value for name, value in result.items() if not isinstance(value, list)}
        text = json.dumps({"result": kept, "cpu_seconds": used})
        _outcome_file(job.folder, number).write_text(text, "utf-8")
        print(_said(number), flush=True)


def _used(pids: Mapping[str, Sequence[int]]) -> dict[str, float]:
    return {name: sum(map(cpu_seconds, those)) for name, those in pids.items()}


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        _run_all(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=_Job))
