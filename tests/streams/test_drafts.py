"""What is remembered of drafts: hits, waste, and for how long."""

import pytest
from prometheus_client import REGISTRY

from apps.streams.drafts import KEPT_SECONDS, DraftBook, DraftLine
from headrace_wire.codec import pack_token_ids

BLOCK = 32


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def ids(*blocks: int) -> bytes:
    """Return blocks of ids, each made of one number."""
    return pack_token_ids([number for number in blocks for _ in range(BLOCK)])


def value(name: str, deployment: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"headrace_{name}_total", {"deployment": deployment, **labels}) or 0.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(clock: Clock) -> DraftBook:
    return DraftBook(clock)


def note(book: DraftBook, line: DraftLine, deployment: str, prefix: bytes, tokens: int, tenant: str = "a") -> None:
    book.note(
        line, tenant_id=tenant, deployment=deployment, ids=prefix, tokens=tokens, prefill_id="p", worker="worker-1"
    )


def send(book: DraftBook, tenant: str, deployment: str, stream_id: str, prompt: bytes, *, taken: bytes = b"") -> None:
    """Send a prompt that is admitted; `taken` is the draft that Redis gives it."""
    book.admitted(book.sent(tenant, deployment, prompt), stream_id, taken)


def test_a_prompt_that_goes_on_from_a_draft_is_a_hit_once(book: DraftBook) -> None:
    line = DraftLine()
    note(book, line, "hit", ids(1, 2), 64)
    note(book, line, "hit", ids(1, 2, 3), 32)
    send(book, "b", "hit", "of another tenant", ids(1, 2, 3, 4))
    send(book, "a", "other", "of another model", ids(1, 2, 3, 4))
    send(book, "a", "hit", "changed", ids(1, 2, 9))
    send(book, "a", "hit", "sent", ids(1, 2, 3, 4))
    send(book, "a", "hit", "sent again", ids(1, 2, 3, 4))
    streams = ("of another tenant", "of another model", "changed", "sent", "sent again")
    assert [book.was_hit(stream) for stream in streams] == [False, False, False, True, False]
    assert value("drafts_settled", "hit", outcome="hit") == 1
    assert value("draft_tokens", "hit") == 96
    assert value("draft_tokens_wasted", "hit") == 0


def test_the_next_draft_goes_on_from_the_prompt_that_was_sent(book: DraftBook) -> None:
    line = DraftLine()
    note(book, line, "next", ids(1, 2), 64)
    send(book, "a", "next", "sent", ids(1, 2, 3))
    assert line.draft is not None
    assert line.draft.common_tokens(ids(1, 2, 3, 4, 5)) == 96
    note(book, line, "next", ids(7, 8), 64)
    assert value("draft_tokens_wasted", "next") == 0, "the prompt was asked for"


def test_an_edit_in_the_middle_wastes_what_came_after_it(book: DraftBook) -> None:
    line = DraftLine()
    note(book, line, "edit", ids(1, 2, 3, 4), 64)  # the first two were there already
    note(book, line, "edit", ids(1, 2, 3, 9), 32)
    assert value("draft_tokens_wasted", "edit") == 32
    note(book, line, "edit", ids(8), 32)
    assert value("draft_tokens_wasted", "edit") == 32 + 64


def test_what_is_never_sent_is_waste_in_the_end(book: DraftBook, clock: Clock) -> None:
    line, other = DraftLine(), DraftLine()
    note(book, line, "old", ids(1), 32)
    clock.now += KEPT_SECONDS / 2
    note(book, other, "old", ids(2), 32)
    clock.now += KEPT_SECONDS / 2
    book.sweep()
    assert line.draft is None
    assert other.draft is not None
    book.give_up(other)
    book.give_up(other)
    assert value("drafts_settled", "old", outcome="missed") == 2
    assert value("draft_tokens_wasted", "old") == 64


def test_common_tokens_are_whole_blocks(book: DraftBook) -> None:
    line = DraftLine()
    note(book, line, "blocks", ids(*range(100)), 0)
    draft = line.draft
    assert draft is not None
    for same in (0, 1, 50, 99, 100):
        changed = ids(*range(same)) + ids(777) * 30
        assert draft.common_tokens(changed) == same * BLOCK
        assert draft.common_tokens(ids(*range(same))) == same * BLOCK
    inside = bytearray(ids(*range(100)))
    inside[4 * BLOCK * 10 + 5] ^= 1
    assert draft.common_tokens(bytes(inside)) == 10 * BLOCK


def test_a_tenant_that_is_gone_leaves_none(book: DraftBook) -> None:
    ours, theirs = DraftLine(), DraftLine()
    note(book, ours, "gone", ids(1), 32)
    note(book, theirs, "gone", ids(1), 32, tenant="b")
    book.keep_only({"b": None})
    assert ours.draft is None
    assert theirs.draft is not None
    send(book, "a", "gone", "sent after all", ids(1, 2))
    assert not book.was_hit("sent after all")


def test_what_is_not_admitted_is_no_hit_yet(book: DraftBook) -> None:
    line = DraftLine()
    note(book, line, "refused", ids(1, 2), 64)
    refused = book.sent("a", "refused", ids(1, 2, 3))
    book.not_admitted(refused)
    assert value("drafts_settled", "refused", outcome="hit") == 0
    overtaken = book.sent("a", "refused", ids(1, 2, 3))
    note(book, line, "refused", ids(1, 2, 3, 4), 32)
    book.not_admitted(overtaken)
    assert line.draft is not None
    assert line.draft.ids == ids(1, 2, 3, 4), "the user types on"
    send(book, "a", "refused", "sent at last", ids(1, 2, 3, 4, 5))
    assert book.was_hit("sent at last")
