"""Two runs of the bench beside each other."""

from pathlib import Path

import pytest

from tests.load.__main__ import main
from tests.load.comparison import UnreadableRunError, compared, read_rows
from tests.load.host import host_costs
from tests.load.placement import Placement
from tests.load.results import FAILED, Judged, Rendered, Results, RowResult


def row(name: str, *verdicts: str, state: str = "done") -> RowResult:
    judged = [Judged(f"figure {i}", "0.2", "<= 0.25", verdict) for i, verdict in enumerate(verdicts)]
    return RowResult(name, "1", state, tables=[Rendered("", "", judged)])


def test_verdicts_that_changed_are_named() -> None:
    before = [row("path", "met", "MISSED", "met"), row("fast", "met"), row("slo", "met", state=FAILED)]
    after = [row("path", "met", "met", "-"), row("growth", "met"), row("slo", "met")]
    head, _, *lines = compared(before, after).splitlines()
    assert head == "1 of 3 verdicts are those of the earlier run; 3 were given in one of the two only"
    assert [line.split() for line in lines] == [
        ["path:", "figure", "1", "<=", "0.25", "0.2", "MISSED", "0.2", "met"],
        ["path:", "figure", "2", "<=", "0.25", "0.2", "met", "0.2", "-"],
    ]


def test_equal_runs_need_one_line() -> None:
    assert compared([row("fast", "met")], [row("fast", "MET")]) == "1 of 1 verdicts are those of the earlier run"


def test_a_run_is_read_from_the_file_that_it_left(tmp_path: Path) -> None:
    results = Results(tmp_path, {}, [])
    results.host_is("before", host_costs(Placement.of_this_machine()))
    results.add(row("fast", "met", "MISSED"))
    assert compared(read_rows(results.json_path), results.rows) == "2 of 2 verdicts are those of the earlier run"
    assert "| before |" in results.json_path.with_suffix(".md").read_text()


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"rows": {"a": 1}}', b"\xff"])
def test_a_file_of_something_else_is_refused(
    tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableRunError):
        read_rows(path)
    with pytest.raises(SystemExit, match="2"):
        main(["--against", str(path), "--output", str(tmp_path)])
    assert "is not the .json file of a bench" in capsys.readouterr().err
