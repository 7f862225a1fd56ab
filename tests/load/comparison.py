"""Two runs of the bench: which verdicts the second one repeats, and which it does not."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.load.results import DONE, Judged, RowResult
from tests.load.table_text import aligned


class UnreadableRunError(ValueError):
    """A file that is not what a bench left."""


class _Run(Struct):
    """What is of use of a bench's file."""

    rows: dict[str, RowResult]


def read_rows(path: Path) -> list[RowResult]:
    """Returns an earlier run's rows.

    Raises:
        UnreadableRunError: There is no such file, or it is no bench's.
    """
    try:
        return list(msgspec.json.decode(path.read_bytes(), type=_Run).rows.values())
    except (OSError, msgspec.DecodeError) as error:
        raise UnreadableRunError(f"{path} is not the .json file of a bench: {error}") from error


def compared(earlier: Sequence[RowResult], now: Sequence[RowResult]) -> str:
    """Returns how many verdicts of the rows that both runs measured are the same, and a line for each that is not.

    One that is close in either run, its target within what that run's rounds differ by, contradicts nothing: it is
    counted apart, and has its line too.
    """
    before, after = _verdicts(earlier), _verdicts(now)
    both = [key for key in after if key in before]
    others = [key for key in both if before[key].verdict.lower() != after[key].verdict.lower()]
    close = [key for key in others if before[key].is_close or after[key].is_close]
    lines = [
        [f"{row}: {what}", after[row, what].target, _seen(before[row, what]), _seen(after[row, what])]
        for row, what in others
    ]
    text = f"{len(both) - len(others)} of {len(both)} verdicts are those of the earlier run"
    text += f", {len(close)} are others and close to their target" if close else ""
    alone = len(before) + len(after) - 2 * len(both)
    text += f"; {alone} were given in one of the two only" if alone else ""
    return "\n".join([text, *aligned([["other verdicts", "target", "before", "now"], *lines])]) if lines else text


def _verdicts(rows: Iterable[RowResult]) -> dict[tuple[str, str], Judged]:
    judged = ((row.name, one) for row in rows if row.state == DONE for table in row.tables for one in table.judged)
    return {(name, one.what): one for name, one in judged}


def _seen(judged: Judged) -> str:
    return f"{judged.figure} {judged.verdict}{' (close)' if judged.is_close else ''}"
