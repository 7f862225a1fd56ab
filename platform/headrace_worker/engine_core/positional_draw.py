"""Drawing a token from (seed, position): the same in any process, whatever was drawn before. Numpy only.

A generator that runs along with a request is lost with its engine; a number that is computed from the position is not.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def uniform(seed: int, position: int) -> float:
    """Return a number from [0, 1) for a position (0 is the first prompt token) of the request with this seed."""
    digest = hashlib.blake2b(b"%d:%d" % (seed, position), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / (1 << 53)


def draw(logits: NDArray[np.float32], u: float, *, top_k: int = 0, top_p: float = 1.0) -> int:
    """Return the token at `u` of the distribution's inverse.

    Of the logits (temperature applied, -inf for what is not allowed) the `top_k` greatest count (0: all), and of these
    the fewest that have `top_p` of the probability; this is vLLM's order, and ties at an edge are in.
    """
    weights: NDArray[Any] = np.exp(logits - logits.max())
    if 0 < top_k < len(weights):
        edge = len(weights) - top_k
        weights[weights < np.partition(weights, edge)[edge]] = 0
    if top_p < 1:
        # numpy sorts these ~30 times faster than torch
        descending = np.sort(weights[weights > 0])[::-1]
        reached = np.cumsum(descending, dtype=np.float64)
        last = int(np.searchsorted(reached, top_p * reached[-1]))
        weights[weights < descending[min(last, len(descending) - 1)]] = 0
    reached = np.cumsum(weights, dtype=np.float64)
    token = int(np.searchsorted(reached, u * reached[-1], side="right"))
    return token if token < len(weights) else int(np.flatnonzero(weights)[-1])
