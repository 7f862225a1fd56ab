"""Hashes of prompt prefixes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_wire.codec import pack_token_ids
from headrace_wire.messages import ChatTurn
from headrace_wire.prefix_hashes import (
    BLOCK_TOKENS,
    HASH_BYTES,
    MOST_TEXT_BYTES,
    TEXT_BLOCK_BYTES,
    conversation_text,
    prefix_hashes,
    text_hashes,
)

turns = st.lists(st.builds(ChatTurn, st.sampled_from(["system", "user", "assistant"]), st.text()), max_size=6)
token_ids = st.lists(st.integers(0, 2**32 - 1), max_size=200)


@given(token_ids)
def test_a_hash_for_each_whole_block(ids: list[int]) -> None:
    """What is behind the last whole block has none, and packed ids have the same."""
    hashes = prefix_hashes("salt", "demo", ids)
    assert [len(one) for one in hashes] == [HASH_BYTES] * (len(ids) // BLOCK_TOKENS)
    assert prefix_hashes("salt", "demo", pack_token_ids(ids)) == hashes


@given(st.lists(st.integers(0, 9), min_size=128, max_size=128), st.integers(0, 127))
def test_equal_exactly_as_far_as_the_prompts_are(ids: list[int], position: int) -> None:
    """A token that differs changes the hash of its block and of all behind it, and none before."""
    other = [*ids[:position], ids[position] + 10, *ids[position + 1 :]]
    shared = position // BLOCK_TOKENS
    ours, others = prefix_hashes("salt", "demo", ids), prefix_hashes("salt", "demo", other)
    assert ours[:shared] == others[:shared]
    assert not set(ours[shared:]) & set(others)


@pytest.mark.parametrize(("salt", "deployment"), [("other", "demo"), ("salt", "other"), ("sal", "tdemo"), ("", "demo")])
def test_tenants_and_deployments_share_nothing(salt: str, deployment: str) -> None:
    """The same prompt has other hashes under another salt, and on another deployment."""
    ids = list(range(1000))
    assert not set(prefix_hashes("salt", "demo", ids)) & set(prefix_hashes(salt, deployment, ids))


def test_engine_blocks_may_be_shorter() -> None:
    """A model of an engine names its own blocks in the same way."""
    assert len(prefix_hashes("salt", "demo", range(100), block_tokens=16)) == 6


@given(turns, turns)
def test_a_conversation_that_goes_on_begins_with_the_same_text(earlier: list[ChatTurn], later: list[ChatTurn]) -> None:
    """So that its hashes begin with the same ones."""
    before, after = conversation_text(earlier), conversation_text([*earlier, *later])
    assert after.startswith(before)
    hashes = text_hashes("salt", "demo", before)
    assert len(hashes) == len(before) // TEXT_BLOCK_BYTES
    assert text_hashes("salt", "demo", after)[: len(hashes)] == hashes


def test_roles_and_the_ends_of_messages_count() -> None:
    """Other prompts are made of these."""
    said = [
        [ChatTurn("user", "a b")],
        [ChatTurn("system", "a b")],
        [ChatTurn("user", "a"), ChatTurn("user", " b")],
        [ChatTurn("user", "a"), ChatTurn("user", "b")],
    ]
    assert len({conversation_text(one) for one in said}) == len(said)


@pytest.mark.parametrize("letter", ["a", "é", "你", "\ud800"])
def test_of_a_long_text_only_the_beginning_counts(letter: str) -> None:
    """Whatever its letters are, and what stands behind it."""
    long = [ChatTurn("user", letter * MOST_TEXT_BYTES)]
    text = conversation_text(long)
    assert len(text) == MOST_TEXT_BYTES
    assert conversation_text([*long, ChatTurn("user", "b")]) == text


def test_texts_of_tenants_and_of_deployments_share_nothing_with_each_other_and_with_ids() -> None:
    """The same bytes are other things."""
    content = bytes(4096)
    names = [
        *text_hashes("salt", "demo", content),
        *text_hashes("other", "demo", content),
        *text_hashes("salt", "other", content),
        *prefix_hashes("salt", "demo", content),
    ]
    assert len(set(names)) == len(names) == 4 * 32
