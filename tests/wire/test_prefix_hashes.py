"""Hashes of prompt prefixes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_wire.codec import pack_token_ids
from headrace_wire.prefix_hashes import BLOCK_TOKENS, HASH_BYTES, prefix_hashes

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
