"""What is known of each injected cause, one file each, and all of them as a table.

A cause that runs again replaces its own row: what others gave stays, and says when that was.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import msgspec
from msgspec import Struct

from apps.ops.diagnosis.causes import Cause
from tests.load.measurements import percentile
from tests.support.book_agreement import ERROR, Pair, worst_of
from tests.support.diagnosis_run import DiagnosisRun
from tests.support.environment import REPOSITORY_ROOT

FOLDER = REPOSITORY_ROOT / "var" / "bench" / "diagnosis"
HEAD = f"{'cause':<20} {'at':<8} {'took':>6} {'agree':>8} {'worst':>6} {'way p99':>10}  {'verdict':<9} named (after)"


class Row(Struct, frozen=True, kw_only=True):
    """One cause."""

    cause: Cause
    at: datetime
    seconds: dict[str, float]
    """Of each step."""
    pairs: list[Pair]
    way: float
    """What a ping took to the gateway and back without the cause, the 99th percentile."""
    named: list[str] | None
    after: list[str] | None
    evidence: str
    problems: list[str]
    """What the diagnosis said wrongly, or what kept it from saying anything."""

    @property
    def apart(self) -> list[Pair]:
        """Percentiles that are further apart than was promised."""
        return [pair for pair in self.pairs if pair.apart > ERROR]

    @property
    def unsure(self) -> list[Pair]:
        """Percentiles that would be, but for texts of which clients cannot say when they came."""
        return [pair for pair in self.pairs if pair.apart <= ERROR and _is_off(pair)]

    @property
    def is_late(self) -> bool:
        """Whether what is apart is no more than a way to the gateway and back: the machine had no time for either."""
        return bool(self.apart) and all(abs(pair.book - pair.client) <= self.way for pair in self.apart)

    @property
    def verdict(self) -> str:
        """In a word, for people."""
        if self.named is None or not self.pairs:
            return "no end"
        if self.problems:
            return "wrong"
        return ("late" if self.is_late else "apart") if self.apart else "right"


def row_of(run: DiagnosisRun, failure: BaseException | None) -> Row:
    """Returns what a run of one cause has come to, however far."""
    (case,) = run.cases
    problems = [*case.problems(), *([repr(failure)] if failure is not None else [])]
    return Row(
        cause=case.injection.cause,
        at=datetime.now(UTC),
        seconds=run.seconds,
        pairs=case.pairs,
        way=percentile(run.ways, 0.99) if run.ways else 0.0,
        named=case.found.causes if case.found is not None else None,
        after=case.gone.causes if case.gone is not None else None,
        evidence=case.found.evidence if case.found is not None else "",
        problems=problems,
    )


def row_keep(row: Row, folder: Path = FOLDER) -> None:
    """Writes it, in place of an older one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{row.cause}.json").write_bytes(msgspec.json.format(msgspec.json.encode(row)))


def rows_kept(folder: Path = FOLDER) -> list[Row]:
    """Returns the newest one of each cause that ever ran, in the order of causes."""
    files = [folder / f"{cause}.json" for cause in Cause]
    return [msgspec.json.decode(file.read_bytes(), type=Row) for file in files if file.exists()]


def table_of(rows: Sequence[Row]) -> Iterator[str]:
    """Yields lines for people: of each cause its verdict, and percentiles in ms, of clients / of the dashboard.

    Those that are apart are marked with `!`, those of which clients are not sure enough to say with `~`.
    """
    yield HEAD
    for row in rows:
        named = f"{', '.join(row.named or []) or '-'} ({', '.join(row.after or []) or '-'})"
        good = len(row.pairs) - len(row.apart) - len(row.unsure)
        agree = f"{good}{f'+{len(row.unsure)}~' if row.unsure else ''}/{len(row.pairs)}"
        worst = f"{worst_of(row.pairs).apart:.1%}" if row.pairs else "-"
        yield (
            f"{row.cause:<20} {row.at:%H:%M:%S} {sum(row.seconds.values()):>4.0f} s {agree:>8}"
            f" {worst:>6} {row.way * 1e3:>7.1f} ms  {row.verdict:<9} {named}"
        )
        for measure, pairs in groupby(row.pairs, key=lambda pair: pair.measure):
            yield f"    {measure:<6} " + "  ".join(map(_beside, pairs))
        for problem in row.problems:
            yield f"    {problem.splitlines()[0]}"


def _is_off(pair: Pair) -> bool:
    return abs(pair.book - pair.client) > ERROR * pair.client


def _beside(pair: Pair) -> str:
    mark = "!" if pair.apart > ERROR else "~" if _is_off(pair) else ""
    return f"p{pair.share * 100:<2g} {pair.client * 1e3:>8.1f} / {pair.book * 1e3:<8.1f}{mark:<1}"
