from hypothesis import given
from hypothesis import strategies as st

from headrace_wire.messages import Delta, Ended, FinishReason, Opened, Started, StreamState, Timings, Usage
from headrace_wire.token_log import Append
from headrace_worker.outbox import KEPT_ENTRIES, MERGE_TOKENS, Outbox


def outbox() -> Outbox:
    return Outbox("s", epoch=7, incarnation="w", log_ttl_seconds=60)


def delta(seq: int, tokens: int = 1) -> Append:
    ids = list(range(seq - tokens, seq))
    return Append(Delta("s", 7, seq, tokens, "".join(f"<{i}>" for i in ids)), ids, seq - tokens)


def started() -> Append:
    return Append(Started("s", 7, 0, "w", 1))


def ended(seq: int) -> Append:
    return Append(
        Ended("s", 7, seq, StreamState.FINISHED, FinishReason.STOP, None, Usage(), Timings()), log_ttl_seconds=60
    )


def test_waiting_deltas_are_merged() -> None:
    box = outbox()
    for append in (started(), delta(1), delta(2), delta(4, 2), ended(5)):
        box.add(append)
    first, merged, last = box.take()
    assert isinstance(first.entry, Started)
    assert merged == Append(Delta("s", 7, 4, 4, "<0><1><2><3>"), [0, 1, 2, 3], 0)
    assert isinstance(last.entry, Ended)


def test_what_an_earlier_owner_may_have_given_is_cut_as_the_engine_gives_it() -> None:
    box = outbox()
    box.unmerged_until = 4
    for append in (delta(3), delta(4), delta(5), delta(6), delta(7)):
        box.add(append)
    assert [append.entry.seq for append in box.take()] == [3, 4, 7]


def test_what_is_under_way_is_not_merged_into() -> None:
    box = outbox()
    box.add(delta(1))
    box.take()
    box.add(delta(2))
    assert [append.entry.seq for append in box.sent] == [1]
    assert [append.entry.seq for append in box.waiting] == [2]


def test_a_merged_entry_stays_small() -> None:
    box = outbox()
    for seq in range(1, 3 * MERGE_TOKENS + 1):
        box.add(delta(seq))
    assert [append.entry.seq for append in box.take()] == [MERGE_TOKENS, 2 * MERGE_TOKENS, 3 * MERGE_TOKENS]


def test_a_lost_answer_is_told_from_a_lost_request() -> None:
    box = outbox()
    box.add(started())
    box.add(delta(1))
    box.take()
    box.add(delta(2))
    box.compare(Delta("s", 7, 1, 1, "<0>"))
    assert [append.entry.seq for append in box.kept] == [0, 1]
    assert [append.entry.seq for append in box.take()] == [2]


def test_what_was_sent_once_keeps_its_id() -> None:
    box = outbox()
    box.add(started())
    box.add(delta(1))
    box.take()
    box.compare(Opened("s", 1, 0))
    box.add(delta(2))
    box.add(delta(3))
    assert [(append.entry.seq, getattr(append.entry, "tokens", 0)) for append in box.take()] == [(0, 0), (1, 1), (3, 2)]


def test_a_rolled_back_log_gets_everything_after_its_tail_again() -> None:
    box = outbox()
    for append in (started(), delta(1), delta(2)):
        box.add(append)
        box.take()
        box.acknowledge()
    box.add(ended(3))
    box.take()
    box.acknowledge()
    assert box.ended
    box.compare(Delta("s", 7, 1, 1, "<0>"))
    assert [append.entry.seq for append in box.take()] == [2, 3]


def test_a_long_answer_is_remembered_in_part() -> None:
    box = outbox()
    for seq in range(1, 5 * KEPT_ENTRIES):
        box.add(delta(seq))
        box.take()
        box.acknowledge()
    assert KEPT_ENTRIES <= len(box.kept) < 2 * KEPT_ENTRIES
    last = 5 * KEPT_ENTRIES - 1
    assert box.compare(Delta("s", 7, last - KEPT_ENTRIES + 1, 1, ""))
    assert [append.entry.seq for append in box.take()] == list(range(last - KEPT_ENTRIES + 2, last + 1))
    box.acknowledge()
    assert not box.compare(Opened("s", 1, 0))


@given(st.lists(st.sampled_from(["add", "take", "ack", "compare"]), max_size=40), st.data())
def test_no_token_is_lost_or_doubled(steps: list[str], data: st.DataObject) -> None:
    """Whatever reaches the log, and whatever of it is lost again, it ends with each token once."""
    box, in_log, seq = outbox(), [Opened("s", 1, 0)], 0
    for step in [*steps, "compare", "take", "ack"]:
        if step == "add":
            seq += 1
            box.add(delta(seq))
        elif step == "take" and not box.sent:
            box.take()
        elif step == "ack" and box.sent:
            in_log += [append.entry for append in box.sent]  # type: ignore[misc]
            box.acknowledge()
        elif step == "compare":
            if box.sent:  # the answer got lost; how much was appended is unknown
                in_log += [append.entry for append in box.sent[: data.draw(st.integers(0, len(box.sent)))]]  # type: ignore[misc]
            del in_log[data.draw(st.integers(1, len(in_log))) :]
            box.compare(in_log[-1])
    assert "".join(entry.text for entry in in_log[1:]) == "".join(f"<{i}>" for i in range(seq))  # type: ignore[attr-defined]
