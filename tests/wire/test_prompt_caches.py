"""The part of a prompt that does not depend on what the user says next."""

from collections.abc import Sequence

import pytest

from headrace_wire.messages import ChatTurn
from headrace_wire.prefix_hashes import BLOCK_TOKENS
from headrace_wire.prompt_caches import stable_prefix


def joining(conversation: Sequence[ChatTurn]) -> list[int]:
    """Tokens of a tokenizer that takes white space at a message's end together with what comes next."""
    text = "".join(turn.content for turn in conversation)
    ids: list[int] = []
    for character, following in zip(text, text[1:] + "$", strict=True):
        ids.append(ord(character) * 1000 + (ord(following) if character.isspace() else 0))
    return ids


@pytest.mark.parametrize("length", [BLOCK_TOKENS + 2, 2 * BLOCK_TOKENS + 1, 1000])
def test_it_is_whole_blocks_of_what_every_prompt_has(length: int) -> None:
    messages = [ChatTurn("system", "s" * length)]
    ids = stable_prefix(joining, messages)
    assert len(ids) == (length - 2) // BLOCK_TOKENS * BLOCK_TOKENS
    for said in ("a", "zebra", "\n\nlines", "7", "né", "你好"):
        assert joining([*messages, ChatTurn("user", said)])[: len(ids)] == ids


def test_tokens_that_join_with_the_next_message_are_not_in_it() -> None:
    """The last character's token depends on what follows; were it in, this prefix would be a block longer."""
    messages = [ChatTurn("system", "s" * (BLOCK_TOKENS + 1) + " ")]
    assert len(stable_prefix(joining, messages)) == 0 + (BLOCK_TOKENS - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def test_a_short_one_has_none() -> None:
    assert stable_prefix(joining, [ChatTurn("system", "Be terse.")]) == []
