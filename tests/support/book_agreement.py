"""Percentiles of the latency book beside those that clients saw of the very same streams."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headrace_wire.latency.histogram import SHORTEST_SECONDS
from headrace_wire.latency.measures import Measure, Tally
from headrace_wire.latency.summary import Summary
from tests.load.measurements import percentile
from tests.support.steady_load import Seen

MEASURES = (Measure.TTFT, Measure.GAP, Measure.TOTAL)
SHARES = (0.5, 0.9, 0.95, 0.99)
ERROR = 0.02
"""What a percentile of the book may be off, as promised."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One percentile, in seconds."""

    measure: Measure
    share: float
    client: float
    book: float
    apart: float
    """Of the client's; 0 where the client cannot say exactly and the book's is possible."""

    def __str__(self) -> str:
        name, told = f"{self.measure} p{self.share * 100:g}", f"{self.apart:.1%}"
        return f"{name:<10} {self.client * 1e3:>10.1f} ms {self.book * 1e3:>10.1f} ms {told:>8}"


def pairs_of(book: Summary, seen: Seen) -> list[Pair]:
    """Returns the percentiles of both.

    Raises:
        AssertionError: They are not of the same streams.
    """
    assert book.tally(Tally.REQUESTS) == seen.streams
    assert book.tally(Tally.TOKENS) == seen.tokens
    for measure in MEASURES:
        assert book.histogram(measure).count == len(seen.durations[measure]), measure
    return [_pair(book, seen, measure, share) for measure in MEASURES if seen.durations[measure] for share in SHARES]


def worst_of(pairs: Sequence[Pair]) -> Pair:
    """Returns the one that is furthest apart."""
    return max(pairs, key=lambda pair: pair.apart)


def merged(all_seen: Iterable[Seen]) -> Seen:
    """Returns what they saw together."""
    whole = Seen()
    for seen in all_seen:
        for measure, durations in seen.durations.items():
            whole.durations[measure] += durations
            whole.doubt(measure, seen.unsure.get(measure, 0))
        whole.streams += seen.streams
        whole.tokens += seen.tokens
        whole.cut += seen.cut
    return whole


def table_of(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yields lines for people."""
    yield f"{'':<10} {'clients':>13} {'dashboard':>13} {'apart':>8}"
    yield from map(str, pairs)


def _pair(book: Summary, seen: Seen, measure: Measure, share: float) -> Pair:
    durations, kept = seen.durations[measure], book.histogram(measure).quantile(share)
    doubt = seen.unsure.get(measure, 0) / len(durations)
    lowest, exact, highest = (
        percentile(durations, min(1.0, max(0.0, at))) for at in (share - doubt, share, share + doubt)
    )
    nearest = min(max(kept, lowest), highest)
    return Pair(measure, share, exact, kept, abs(kept - nearest) / max(nearest, SHORTEST_SECONDS))
