"""Drawing a token from (seed, position): the same in any process, whatever was drawn before. Numpy only.

A generator that runs along with a request is lost with its engine; numbers that are computed from the position are not.
Each token has its own number (Gumbel-max): an engine that computes a prompt anew gives logits that differ in their last
bits, and a token that is far from winning cannot win by that. One number for the whole distribution, laid on its
cumulated sum, would be off by one as soon as the sum is (seen once in ~1,000 tokens of a flat distribution).
"""

import hashlib
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint32]

_FEW = 64
"""About how many tokens are looked at first."""


def position_key(seed: int, position: int) -> int:
    """Return the 64 bits that a position (0 is the first prompt token) of the request with this seed starts from."""
    return int.from_bytes(hashlib.blake2b(b"%d:%d" % (seed, position), digest_size=8).digest(), "little")


def token_numbers(key: int, token_ids: Ids) -> Ids:
    """Return a random number for each token: murmur3's finaliser over its id, with the key in two places."""
    x = token_ids * np.uint32(0x9E3779B1)
    x += np.uint32(key & 0xFFFFFFFF)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= np.uint32(key >> 32)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return x


def gumbel(numbers: Ids) -> NDArray[np.float64]:
    """Return numbers as draws from the standard Gumbel distribution; it rises with the number."""
    uniform: NDArray[np.float64] = (numbers.astype(np.float64) + 0.5) * 2.0**-32
    return np.asarray(-np.log(-np.log(uniform)))


def draw(logits: NDArray[np.float32], key: int, *, top_k: int = 0, top_p: float = 1.0) -> int:
    """Return the token that wins: the one with the greatest sum of logit and Gumbel number.

    Of the logits (temperature applied, -inf for what is not allowed) the `top_k` greatest take part (0: all), and of
    these the fewest that have `top_p` of the probability; this is vLLM's order, and ties at an edge are in.
    """
    size = len(logits)
    if not np.isfinite(logits.max()):
        return int(np.argmax(logits))  # a model that has gone wrong must not take the engine with it
    if not 0 < top_k < size and top_p >= 1:
        return _winner(logits, _all_ids(size), key)
    least = np.partition(logits, size - top_k)[size - top_k] if 0 < top_k < size else -np.inf
    ids: NDArray[Any] = np.flatnonzero((logits >= least) & (logits > -np.inf))
    values = logits[ids]
    if top_p < 1:
        # numpy sorts these ~30 times faster than torch
        descending = np.sort(values)[::-1]
        reached = np.cumsum(np.exp(descending - descending[0]), dtype=np.float64)
        last = int(np.searchsorted(reached, top_p * reached[-1]))
        is_in = values >= descending[min(last, len(descending) - 1)]
        ids, values = ids[is_in], values[is_in]
    return _winner(values, ids.astype(np.uint32), key)


def _winner(logits: NDArray[np.float32], ids: Ids, key: int) -> int:
    """Return the id with the greatest score, without a logarithm for each of them.

    The few greatest numbers give a score to beat. A token with a lesser number beats it by its logit only.
    """
    numbers = token_numbers(key, ids)
    bar = max(0, 2**32 - 1 - _FEW * 2**32 // len(ids))
    few = np.flatnonzero(numbers >= bar)
    to_beat = (logits[few] + gumbel(numbers[few])).max(initial=-np.inf)
    by_logit = np.flatnonzero(logits >= np.float32(to_beat - gumbel(np.array([bar], np.uint32))[0] - 1e-3))
    candidates = np.concatenate([few, by_logit])
    return int(ids[candidates[np.argmax(logits[candidates] + gumbel(numbers[candidates]))]])


@cache
def _all_ids(size: int) -> Ids:
    return np.arange(size, dtype=np.uint32)
