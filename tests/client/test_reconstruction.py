"""The text is the golden text, wherever connections break and whatever they repeat."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_client.errors import SequenceError
from headrace_client.frames import Delta, End, Timings, Usage
from headrace_client.reconstruction import Reconstruction

Log = list[tuple[int, str]]
"""Entries of a stream: position of the last token, text. Positions without text are not in it."""


@st.composite
def logs(draw: st.DrawFn) -> Log:
    steps = draw(st.lists(st.tuples(st.integers(1, 4), st.text(min_size=1, max_size=6)), min_size=1, max_size=40))
    positions = accumulate(tokens for tokens, _ in steps)
    return list(zip(positions, (text for _, text in steps), strict=True))


def frames(log: Log, start: int, cuts: list[int], *, says_after: bool = True) -> list[Delta]:
    """What a server sends of the log from index `start` on, coalesced up to each of the cuts."""
    edges = sorted({start, len(log), *(cut for cut in cuts if start < cut < len(log))})
    return [
        Delta(
            "s",
            log[b - 1][0],
            "".join(text for _, text in log[a:b]),
            (log[a - 1][0] if a else 0) if says_after else None,
        )
        for a, b in pairwise(edges)
    ]


def index_after(log: Log, seq: int) -> int:
    return sum(position <= seq for position, _ in log)


@given(data=st.data(), log=logs())
def test_any_cuts_and_repetitions_give_the_golden_text(data: st.DataObject, log: Log) -> None:
    content = Reconstruction()
    golden = "".join(text for _, text in log)
    for connections_left in reversed(range(data.draw(st.integers(1, 8), label="connections"))):
        content.connected()
        have = index_after(log, content.seq)
        # It goes on after the cursor, or repeats from an earlier entry; a repetition reaches the cursor exactly.
        start = data.draw(st.integers(0, have), label="repeats from")
        cuts = [have, *data.draw(st.lists(st.integers(0, len(log)), max_size=8), label="cuts")]
        sent = frames(log, start, cuts, says_after=data.draw(st.booleans(), label="says after"))
        arrived = data.draw(st.integers(0, len(sent)), label="arrived") if connections_left else len(sent)
        for delta in sent[:arrived]:
            is_new = delta.seq > content.seq
            assert content.take(delta) is is_new
        assert golden.startswith(content.text)
    assert content.text == golden


@given(data=st.data(), log=logs())
def test_what_is_out_of_order_raises_and_changes_nothing(data: st.DataObject, log: Log) -> None:
    content = Reconstruction()
    sent = frames(log, 0, list(range(len(log))))
    count = data.draw(st.integers(1, len(sent)))
    for delta in sent[:count]:
        content.take(delta)
    before = content.seq, content.text
    with pytest.raises(SequenceError):
        content.take(data.draw(st.sampled_from(sent[:count]), label="again, over the same connection"))
    assert (content.seq, content.text) == before


def test_a_frame_that_repeats_a_part_is_refused() -> None:
    content = Reconstruction()
    content.take(Delta("s", 3, "abc"))
    content.take(Delta("s", 5, "de"))
    content.connected()
    assert not content.take(Delta("s", 3, "abc"))
    with pytest.raises(SequenceError):
        content.take(Delta("s", 8, "defgh"))
    assert content.text == "abcde"


@given(data=st.data(), log=logs())
def test_a_frame_that_is_left_out_is_missed(data: st.DataObject, log: Log) -> None:
    sent = frames(log, 0, list(range(len(log))))
    left_out = data.draw(st.integers(0, len(sent) - 1))
    content = Reconstruction()
    for delta in sent[:left_out]:
        content.take(delta)
    if data.draw(st.booleans(), label="over another connection"):
        content.connected()
    before = content.seq, content.text
    for delta in sent[left_out + 1 :]:
        with pytest.raises(SequenceError):
            content.take(delta)
        content.connected()
    assert (content.seq, content.text) == before


def test_it_goes_on_from_a_position_that_the_caller_has() -> None:
    content = Reconstruction(after=7)
    assert content.take(Delta("s", 9, "x"))
    assert (content.seq, content.text) == (9, "x")


def test_an_end_before_what_came_is_refused() -> None:
    content = Reconstruction(after=7)
    with pytest.raises(SequenceError):
        content.finish(End("s", 6, "finished", "stop", None, Usage(1, 6, 7, 0), Timings(0, 0, 0, None)))
