import msgspec
import pytest

from headrace_wire.latency.histogram import LogHistogram
from headrace_wire.latency.measures import PHASES, Measure, Tally
from headrace_wire.latency.summary import Summary


def test_what_was_packed_is_read_again() -> None:
    summary = Summary()
    for measure in Measure:
        summary.histogram(measure).add(0.25, 3)
    for tally in Tally:
        summary.count(tally, 7)
    again = Summary.unpack(summary.pack())
    assert again == summary
    again.merge(summary)
    assert again.tally(Tally.TOKENS) == 14
    assert again.histograms[Measure.GAP].count == 6


def test_what_a_newer_version_measures_is_left_out() -> None:
    packed = msgspec.msgpack.encode(({"vibe": LogHistogram({3: 1}, 1.0).pack()}, {"karma": 1, "errors": 2}))
    assert Summary.unpack(packed) == Summary({}, {Tally.ERRORS: 2})


@pytest.mark.parametrize("packed", [b"", b"\xc0", msgspec.msgpack.encode(({"ttft": b"?"}, {}))])
def test_something_else_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="no packed"):
        Summary.unpack(packed)


def test_nothing_is_nothing() -> None:
    summary = Summary()
    summary.count(Tally.ERRORS, 0)
    assert not summary


def test_phases_are_measures_between_the_first_token_and_the_rest() -> None:
    assert next(iter(Measure)) is Measure.TTFT
    assert tuple(Measure)[1 : 1 + len(PHASES)] == PHASES
