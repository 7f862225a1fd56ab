"""A run of rows that go wrong: none ends another one, all leaves a word, and nobody is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.load.__main__ import _parser, wanted_rows
from tests.load.bench import USUAL_MINUTES
from tests.load.peers.table import MET, MISSED, Line, Table
from tests.load.report import Row, rendered
from tests.load.results import DONE, FAILED, LEFT_OUT, TOO_LONG, Results, RowResult
from tests.load.rows import QUICK_ROWS, ROWS, Measured, Run
from tests.load.supervision import Keeper, Measure, RowLeftOutError, RowProcess
from tests.support.environment import REPOSITORY_ROOT, child_environment

_DEADLINE_SECONDS = 180.0
_TERM_PROOF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); time.sleep(600)"
)


def figures() -> Measured:
    table = Table(
        "A title", ["a", "b"], [Line("first", [[1.0], [2.0]], [0.5], at_most=0.25), Line("  p99", [[3.0], []])]
    )
    return [table.rendered()], {"seen": [1, 2]}


def left_out() -> Measured:
    raise RowLeftOutError("nothing to measure with")


def failing() -> Measured:
    raise RuntimeError("the engine is gone")


def dying() -> Measured:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def stubborn(pid_file: Path) -> Measured:
    """Has a child that does not end on SIGTERM, as a worker whose Redis is gone, and never comes back itself."""
    children = [
        subprocess.Popen([sys.executable, "-c", _TERM_PROOF], stdout=subprocess.PIPE, start_new_session=apart)
        for apart in (False, True)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    os.kill(children[0].pid, signal.SIGSTOP)  # a peer that stands still while others are measured
    pid_file.with_suffix(".part").write_text(" ".join(str(child.pid) for child in children))
    pid_file.with_suffix(".part").rename(pid_file)
    time.sleep(600)
    raise AssertionError


def outlived() -> Measured:
    """Leaves a child that has used a second of a core."""
    code = "import time\nwhile time.process_time() < 1.0: pass\nprint('done', flush=True)\ntime.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return [], None


def outlived_and_late() -> Measured:
    outlived()
    time.sleep(600)
    raise AssertionError


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while left := [pid for pid in pids if not is_gone(pid)]:
        assert time.monotonic() < deadline, f"{left} still run"
        time.sleep(0.02)


def wait_for_pids(file: Path) -> list[int]:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(text) for text in file.read_text().split()]


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


def test_row_hands_over_its_tables_and_figures(keeper: Keeper) -> None:
    row = RowProcess("row", figures, keeper, limit_seconds=_DEADLINE_SECONDS)
    outcome = row.wait()
    assert outcome.state == DONE, outcome.note
    assert outcome.figures == {"seen": [1, 2]}
    assert outcome.cpu_seconds > 0
    assert [(one.what, one.figure, one.verdict) for one in outcome.tables[0].judged] == [("first", "0.500", MISSED)]
    row.clean()
    keeper.close()


@pytest.mark.parametrize(("measure", "state"), [(outlived, DONE), (outlived_and_late, TOO_LONG)])
def test_what_a_row_leaves_running_is_not_counted_as_of_others(keeper: Keeper, measure: Measure, state: str) -> None:
    row = RowProcess("row", measure, keeper, limit_seconds=20.0 if state == TOO_LONG else _DEADLINE_SECONDS)
    outcome = row.wait()
    row.clean()
    keeper.close()
    assert outcome.state == state, outcome.note
    assert outcome.cpu_seconds > 0.5


@pytest.mark.parametrize(
    ("measure", "state", "note"),
    [(left_out, LEFT_OUT, "nothing to measure"), (failing, FAILED, "the engine is gone"), (dying, FAILED, "-9")],
)
def test_row_that_goes_wrong_says_so(keeper: Keeper, measure: Measure, state: str, note: str) -> None:
    row = RowProcess("row", measure, keeper, limit_seconds=_DEADLINE_SECONDS)
    outcome = row.wait()
    row.clean()
    keeper.close()
    assert outcome.state == state
    assert note in outcome.note


def test_row_that_takes_too_long_is_ended_with_all_that_it_started(keeper: Keeper, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    row = RowProcess("row", lambda: stubborn(file), keeper, limit_seconds=2 * _DEADLINE_SECONDS)
    pids = wait_for_pids(file)
    row._limit_seconds = 0.0
    assert row.wait().state == TOO_LONG
    wait_until_gone([row.pid, *pids])
    row.clean()
    assert not row.folder.exists()
    keeper.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_bench_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    """The known case: a worker whose Redis was ended with it, and that heard of SIGTERM alone."""
    file = tmp_path / "pids"
    command = [sys.executable, "-m", "tests.load.test_bench", str(file), str(tmp_path / "out")]
    with subprocess.Popen(command, env=child_environment(), cwd=REPOSITORY_ROOT) as bench:
        pids = wait_for_pids(file)
        descendants = [child.pid for child in psutil.Process(bench.pid).children(recursive=True)]
        assert set(pids) < set(descendants)
        bench.send_signal(number)
        bench.wait(_DEADLINE_SECONDS)
        # One that leads a session of its own has to follow its parent itself, where nobody is left who could end it.
        wait_until_gone(descendants if number != signal.SIGKILL else [pid for pid in descendants if pid != pids[1]])
        if number == signal.SIGKILL:
            os.kill(pids[1], signal.SIGKILL)
            return
    assert bench.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    (written,) = (tmp_path / "out").glob("*.json")
    states = {name: row["state"] for name, row in json.loads(written.read_text())["rows"].items()}
    assert states == {"guard": FAILED}


def test_results_are_there_after_each_row(tmp_path: Path) -> None:
    results = Results(tmp_path, {"cpu": "a"}, ["--quick"])
    tables, seen = figures()
    results.add(RowResult("path", "1-3", tables=tables, figures=seen, seconds=10, planned_seconds=9, own_check=True))
    first = json.loads(results.json_path.read_text())
    assert list(first["rows"]) == ["path"]
    results.add(RowResult("growth", "4", tables=tables, others_busy=0.3))
    results.add(RowResult("vllm", "5", TOO_LONG, "ended after 9 s"))
    assert list(json.loads(results.json_path.read_text())["rows"]) == ["path", "growth", "vllm"]
    written = results.json_path.with_suffix(".md").read_text()
    assert "| 1-3 | path | first | 0.500 | <= 0.25 | MISSED |" in written
    assert "| 4 | growth | first | 0.500 | <= 0.25 | MISSED (disturbed) |" in written
    assert "TOOK TOO LONG: ended after 9 s" in written
    assert "0 targets met, 2 missed, 1 without a verdict" in results.summary()


def test_labels_of_verdicts_stand_alone() -> None:
    rows = [
        Row("head", [[1.0], []]),
        Row("  p99", [[2.0], [4.0]], at_most=3.0),
        Row("next", [[2.0], []], at_least=1.0, judged=0),
        Row("others busy", [[0.9], []], at_most=0.2, judged=0, is_check=True),
    ]
    judged = rendered("t", ["a", "b"], rows).judged
    assert [(one.what, one.figure, one.verdict.lower()) for one in judged] == [
        ("head: p99", "2.00 / 4.00", "missed"),
        ("next", "2.00", MET),
    ]


def test_rows_are_chosen_by_name_in_the_order_of_the_bench() -> None:
    def wanted(*arguments: str) -> list[str]:
        return wanted_rows(_parser().parse_args(arguments))

    assert wanted() == [row.name for row in ROWS if row.is_usual]
    assert wanted("--only", "vllm", "growth") == ["growth", "vllm"]
    assert wanted("--only", "peers", "--case", "soak", "guard") == ["soak", "guarded"]
    assert sorted(wanted("--only", "peers", "--quick")) == sorted(QUICK_ROWS)


def test_every_row_has_its_function() -> None:
    for plan in ROWS:
        assert callable(plan.function), plan.name


def test_usual_rows_fit_into_their_time() -> None:
    usual = [plan for plan in ROWS if plan.is_usual]
    assert sum(plan.seconds for plan in usual if not plan.is_tolerant) < USUAL_MINUTES * 60
    (soak,) = [plan for plan in usual if plan.name == "soak"]
    assert sum(plan.seconds for plan in usual if plan.is_tolerant) < soak.seconds, "they run beside it"


if __name__ == "__main__":
    # A bench whose one row never ends. Whoever runs the tests in the background may have it ignore this signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from tests.load import bench, own_rows

    def guard(run: Run) -> Measured:
        run.progress("begins and does not end")
        return stubborn(Path(sys.argv[1]))

    own_rows.guard = guard
    namespace = _parser().parse_args(["--only", "guard", "--output", sys.argv[2]])
    sys.exit(bench.Bench(namespace, [], ["guard"]).run())
