"""The draw against a naive reading of temperature sampling, and its numbers against chance."""

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace_worker.engine_core.positional_draw import draw, uniform

GRID = 20_000


def naive_distribution(logits: NDArray[np.float32], top_k: int, top_p: float) -> NDArray[np.float64]:
    """Sort, cut, renormalise: top_k first, then the fewest tokens that have `top_p` of what is left."""
    order = np.argsort(-logits, kind="stable")[: top_k or None]
    probabilities = np.exp(logits[order].astype(np.float64))
    probabilities /= probabilities.sum()
    kept = int(np.argmax(np.cumsum(probabilities) >= top_p)) + 1 if top_p < 1 else len(order)
    whole = np.zeros(len(logits))
    whole[order[:kept]] = probabilities[:kept] / probabilities[:kept].sum()
    return whole


@pytest.mark.parametrize(
    ("size", "top_k", "top_p"),
    [
        (1000, 0, 1.0),
        (1000, 50, 1.0),
        (1000, 0, 0.9),
        (1000, 50, 0.9),
        (1000, 700, 0.95),
        (5000, 3000, 0.99),
        (1000, 1, 1.0),
        (1000, 0, 1e-6),
        (1000, 5000, 1.0),
        (3, 2, 0.5),
    ],
)
@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_each_token_takes_its_share_of_the_unit_interval(size: int, top_k: int, top_p: float, spread: float) -> None:
    logits = (np.random.default_rng(3).standard_normal(size) * spread).astype(np.float32)
    expected = naive_distribution(logits, top_k, top_p)
    tokens = [draw(logits, (i + 0.5) / GRID, top_k=top_k, top_p=top_p) for i in range(GRID)]
    found = np.bincount(tokens, minlength=size) / GRID
    assert set(np.flatnonzero(found)) <= set(np.flatnonzero(expected))
    assert np.abs(found - expected).max() <= 1.01 / GRID + 1e-6


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2**-53])
def test_never_a_token_that_is_not_allowed(u: float) -> None:
    logits = np.full(1000, -np.inf, np.float32)
    logits[[3, 500, 997]] = [1.0, 2.0, 1.5]
    assert draw(logits, u) in {3, 500, 997}
    assert draw(logits, u, top_k=2) in {500, 997}
    assert draw(logits, u, top_k=500, top_p=0.3) == 500
    logits[[3, 997]] = -np.inf
    assert draw(logits, u) == 500


def test_numbers_are_uniform_and_independent_of_their_neighbours() -> None:
    numbers = np.array([uniform(seed, position) for seed in range(40) for position in range(500)])
    counts, _ = np.histogram(numbers, bins=50, range=(0, 1))
    expected = len(numbers) / 50
    assert ((counts - expected) ** 2 / expected).sum() < 90  # 49 degrees of freedom: one in 3,000
    grid = numbers.reshape(40, 500)
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.03
    assert len(set(numbers)) == len(numbers)


def test_numbers_are_the_same_for_ever() -> None:
    """A stream may be continued by another release: this may not change."""
    assert uniform(11, 0) == 0.3013740589357917
    assert uniform(-1, 4096) == 0.5377904299783162
