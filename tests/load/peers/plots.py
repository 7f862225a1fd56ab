"""Plots of a comparison as PNG files beside its JSON."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from tests.load.peers.arms import DIRECT
from tests.load.peers.rounds import Round, counting
from tests.load.peers.soak import SoakFigures, rss_series
from tests.load.peers.table import median, quartiles

mpl.use("agg")
_COLOURS = ("#8a8f98", "#1d6fb8", "#c4552d", "#e0a07f", "#5b9a68")


def draw_path(arms: Sequence[str], rounds: Sequence[Round], path: Path) -> Path:
    """Draws what each arm adds to latencies, and what a token costs it."""
    seen = counting(rounds)
    added = {
        "plain, p50": lambda one: one.plain.p50,
        "TTFT, 1 stream": lambda one: one.ttft_alone.p50,
        "TTFT, all at once": lambda one: one.ttft_burst.p50,
        "TTFT beside": lambda one: one.ttft_beside.p50,
    }
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    width = 0.8 / len(arms)
    for i, arm in enumerate(arms):
        columns = [[one.added(arm, of) for one in seen] for of in added.values()]
        at = [place + (i - (len(arms) - 1) / 2) * width for place in range(len(added))]
        middles = [max(0.05, median(column)) for column in columns]
        spans = [quartiles(column) for column in columns]
        errors = [
            [max(0.0, middle - low) for middle, (low, _) in zip(middles, spans, strict=True)],
            [max(0.0, high - middle) for middle, (_, high) in zip(middles, spans, strict=True)],
        ]
        left.bar(at, middles, width, yerr=errors, label=arm, color=_COLOURS[1 + i % 4], capsize=2)
    left.set_xticks(range(len(added)), list(added))
    left.set_yscale("log")
    left.set_ylabel("added to the direct arm, ms (log)")
    left.legend()
    for i, arm in enumerate(arms):
        bottom = 0.0
        for j, process in enumerate(("gateway", "worker", "redis")):
            costs = [one.arms[arm].us_per_token.get(process, 0.0) for one in seen if arm in one.arms]
            right.bar(i, median(costs), 0.6, bottom=bottom, color=_COLOURS[1 + i % 4], alpha=1 - 0.3 * j)
            bottom += median(costs)
        right.text(i, bottom, f"{bottom:.0f}", ha="center", va="bottom")
    right.set_xticks(range(len(arms)), list(arms))
    right.set_ylabel("CPU, us per token (gateway, worker, Redis)")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def draw_speed(arms: Sequence[str], rounds: Sequence[Round], path: Path) -> Path:
    """Draws how many tokens arrive in each second of fast streams."""
    names = [DIRECT, *arms]
    columns = [[one.figure(arm, lambda seen: seen.tokens_per_second) for one in counting(rounds)] for arm in names]
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.bar(names, [median(column) for column in columns], color=_COLOURS[: len(names)])
    axes.set_ylabel("tokens delivered per second")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def draw_soak(seen: SoakFigures, path: Path) -> Path:
    """Draws memory over time."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for i, process in enumerate(("gateway", "worker", "redis")):
        axes.plot(*rss_series(seen, process), label=process, color=_COLOURS[1 + i])
    axes.set_xlabel("minutes")
    axes.set_ylabel("RSS, MiB")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
