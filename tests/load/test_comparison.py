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


def test_a_verdict_close_to_its_target_is_told_apart() -> None:
    def one(verdict: str, *, is_close: bool) -> RowResult:
        judged = Judged("a figure", "0.25", "<= 0.25", verdict, is_close=is_close)
        return RowResult("path", "1", tables=[Rendered("", "", [judged])])

    head, _, line = compared([one("met", is_close=True)], [one("MISSED", is_close=False)]).splitlines()
    assert head == "0 of 1 verdicts are those of the earlier run, 1 are others and close to their target"
    assert line.split() == ["path:", "a", "figure", "<=", "0.25", "0.25", "met", "(close)", "0.25", "MISSED"]
    assert "close" not in compared([one("met", is_close=False)], [one("MISSED", is_close=False)])
    assert one("met", is_close=True).verdicts()[0][-1] == "met (close)"


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
