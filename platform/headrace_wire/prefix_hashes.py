"""Names of prompt prefixes: a hash for each whole block of token ids, chained, under a tenant's salt and a deployment.

Equal hashes mean equal prefixes of one tenant on one deployment. Who does not have the salt learns nothing from them,
and two tenants that send the same prompt share none. Where only workers make the ids it is what the conversation says
that is hashed: equal beginnings of it make equal prompts, but for a few tokens.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from headrace_wire.codec import pack_token_ids
from headrace_wire.messages import ChatTurn

BLOCK_TOKENS: Final = 32
"""Tokens of a block. What is behind the last whole one has no hash."""

HASH_BYTES: Final = 8

_CHUNK: Final = 128
"""What the hash function takes in at once: a block of 32 ids is as long, and so is what stands before the first."""

TEXT_BLOCK_BYTES: Final = _CHUNK
"""Of a conversation's text, which are some 32 tokens."""

MOST_TEXT_BYTES: Final = 1024 * TEXT_BLOCK_BYTES
"""What is behind them is not looked at."""


def prefix_hashes(
    salt: str, deployment: str, prompt_ids: Sequence[int] | bytes, *, block_tokens: int = BLOCK_TOKENS
) -> list[bytes]:
    """Return the hash of each prefix of whole blocks, shortest first, `HASH_BYTES` each.

    Args:
        salt: The tenant's `cache_salt`, made by the server.
        deployment: Its name: other deployments compute other things for the same ids.
        prompt_ids: Token ids, or these packed (`codec.pack_token_ids`).
        block_tokens: Other than our own only where an engine's blocks are modelled.
    """
    packed = prompt_ids if isinstance(prompt_ids, bytes) else pack_token_ids(prompt_ids)
    return _chained(salt, deployment.encode(), packed, 4 * block_tokens)


def conversation_text(turns: Sequence[ChatTurn]) -> bytes:
    """Return what is said, so that a conversation that goes on begins with all of it; `MOST_TEXT_BYTES` at most."""
    parts: list[bytes] = []
    left = MOST_TEXT_BYTES
    for turn in turns:
        if left <= 0:
            break
        part = f"{turn.role}\0{turn.content[:left]}\0".encode("utf-8", "surrogatepass")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)[:MOST_TEXT_BYTES]


def text_hashes(salt: str, deployment: str, text: bytes) -> list[bytes]:
    """Return the hash of each prefix of whole blocks of a `conversation_text`, shortest first."""
    return _chained(salt, deployment.encode() + b"\0text", text, TEXT_BLOCK_BYTES)


def _chained(salt: str, name: bytes, content: bytes, size: int) -> list[bytes]:
    if len(content) < size:
        return []
    # One running hash: what it gives after each block depends on all of them.
    running = hashlib.blake2b(digest_size=HASH_BYTES, key=hashlib.blake2b(salt.encode()).digest())
    running.update(name.ljust(-(-(len(name) + 1) // _CHUNK) * _CHUNK, b"\0"))
    update, digest = running.update, running.digest
    hashes = []
    for end in range(size, len(content) + 1, size):
        update(content[end - size : end])
        hashes.append(digest())
    return hashes
