"""Names of prompt prefixes: a hash for each whole block of token ids, chained, under a tenant's salt and a deployment.

Equal hashes mean equal prefixes of one tenant on one deployment. Who does not have the salt learns nothing from them,
and two tenants that send the same prompt share none.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from headrace_wire.codec import pack_token_ids

BLOCK_TOKENS: Final = 32
"""Tokens of a block. What is behind the last whole one has no hash."""

HASH_BYTES: Final = 8

_CHUNK: Final = 128
"""What the hash function takes in at once: a block of 32 ids is as long, and so is what stands before the first."""


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
    size = 4 * block_tokens
    if len(packed) < size:
        return []
    # One running hash: what it gives after each block depends on all of them.
    running = hashlib.blake2b(digest_size=HASH_BYTES, key=hashlib.blake2b(salt.encode()).digest())
    name = deployment.encode()
    running.update(name.ljust(-(-(len(name) + 1) // _CHUNK) * _CHUNK, b"\0"))
    update, digest = running.update, running.digest
    hashes = []
    for end in range(size, len(packed) + 1, size):
        update(packed[end - size : end])
        hashes.append(digest())
    return hashes
