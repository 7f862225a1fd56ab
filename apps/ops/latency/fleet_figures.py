"""Arithmetic of fleet samples: from samples to rows of workers and deployments, to longer spans and to points.

A figure is a sum over workers (streams, bytes, watts), a mean (shares, clocks, batches) or the most there was; over
time all are means but the most. What nobody could tell is None and does not count.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from apps.ops.latency.samples import FleetState, QueueSample, WorkerSample

Figures = dict[str, float | None]
"""By the names of `FleetSample`'s and `FleetPoint`'s fields."""
Whose = tuple[str, str]
"""Deployment and worker; "" for a deployment's row."""

SUMS = (
    *("workers", "registered", "running", "held", "suspended", "spilled", "waiting", "waiting_most", "tokens"),
    *("preemptions", "rss_bytes", "gpu_memory_bytes", "gpu_power_watts"),
)
BATCHES = ("batch_limit", "batch_classic", "batch_objectives")
MEANS = ("kv_cache_usage", "prefix_hit_rate", "gpu_utilization", "gpu_bandwidth", "gpu_clock_mhz", *BATCHES)
MOSTS = ("kv_cache_usage_most", "gpu_memory_usage_most")
NAMES = (*SUMS, *MEANS, *MOSTS)
_MOST_OVER_TIME = frozenset({"waiting_most", *MOSTS})
_ALWAYS = frozenset(NAMES) - {
    *("registered", "prefix_hit_rate", "rss_bytes", "gpu_utilization", "gpu_bandwidth", "gpu_memory_bytes"),
    *("gpu_clock_mhz", "gpu_power_watts", "gpu_memory_usage_most", "preemptions"),
    *BATCHES,
}
"""Never None."""


def over_time(figures: Sequence[Mapping[str, float | None]]) -> Figures:
    """Returns what one thing was like over several spans of the same length."""
    return {name: (_most if name in _MOST_OVER_TIME else _mean)(name, figures) for name in NAMES}


def over_part(figures: Sequence[Mapping[str, float | None]], spans: int) -> Figures:
    """Returns what one thing was like over so many spans, of which it was there in those that are given.

    Only `registered` counts the others: it tells how long something was there.
    """
    whole = over_time(figures)
    registered = whole["registered"]
    return {**whole, "registered": None if registered is None else registered * len(figures) / spans}


def together(figures: Sequence[Mapping[str, float | None]]) -> Figures:
    """Returns what several things were like together, at one time."""
    return {
        **{name: _sum(name, figures) for name in SUMS},
        **{name: _mean(name, figures) for name in MEANS},
        **{name: _most(name, figures) for name in MOSTS},
    }


def figures_of(states: Sequence[FleetState], before: FleetState | None) -> dict[Whose, Figures]:
    """Returns rows over the time of some samples; `before` is the one that was taken before them.

    Tokens and preemptions per second and the hit rate are differences between one sample and the next.
    """
    seen: dict[Whose, list[Figures]] = defaultdict(list)
    for state in states:
        for whose, figures in _of_state(state, before).items():
            seen[whose].append(figures)
        before = state
    return {whose: over_part(figures, len(states)) for whose, figures in seen.items()}


def _of_state(state: FleetState, before: FleetState | None) -> dict[Whose, Figures]:
    earlier = {worker.worker: worker for worker in before.workers} if before is not None else {}
    seconds = state.at - before.at if before is not None else 0.0
    rows: dict[Whose, Figures] = {}
    members: dict[str, list[Figures]] = defaultdict(list)
    for worker in state.workers:
        figures = _of_worker(worker, earlier.get(worker.worker), seconds)
        rows[worker.deployment, worker.worker] = figures
        members[worker.deployment].append(figures)
    for queue in state.queues:
        rows[queue.deployment, ""] = _of_deployment(queue, members[queue.deployment])
    return rows


def _of_worker(worker: WorkerSample, earlier: WorkerSample | None, seconds: float) -> Figures:
    tokens = worker.tokens - earlier.tokens if earlier is not None else 0
    prompts = worker.prompt_tokens - earlier.prompt_tokens if earlier is not None else 0
    cached = worker.cached_tokens - earlier.cached_tokens if earlier is not None else 0
    gpu = worker.gpu
    return {
        **dict.fromkeys(NAMES, 0.0),
        "workers": float(worker.is_ready),
        "registered": 1.0,
        "running": float(worker.running),
        "held": float(worker.held),
        "spilled": float(worker.spilled),
        "kv_cache_usage": worker.kv_cache_usage,
        "kv_cache_usage_most": worker.kv_cache_usage,
        "tokens": tokens / seconds if seconds > 0 else 0.0,
        "preemptions": _preemptions(worker, earlier) / seconds if earlier is not None and seconds > 0 else None,
        "prefix_hit_rate": cached / prompts if prompts > 0 else None,
        "rss_bytes": float(worker.rss_bytes) or None,
        "gpu_utilization": gpu.utilization if gpu else None,
        "gpu_bandwidth": gpu.bandwidth if gpu else None,
        "gpu_memory_bytes": float(gpu.memory_bytes) if gpu else None,
        "gpu_memory_usage_most": gpu.memory_usage if gpu else None,
        "gpu_clock_mhz": gpu.clock_mhz if gpu else None,
        "gpu_power_watts": gpu.power_watts if gpu else None,
        **{name: float(batch) or None for name, batch in zip(BATCHES, worker.batches, strict=True)},
    }


def _preemptions(worker: WorkerSample, earlier: WorkerSample) -> int:
    """How many there were since; one that does not count them, or did not then, is taken to have had none."""
    if worker.preemptions is None or earlier.preemptions is None:
        return 0
    return worker.preemptions - earlier.preemptions


def _of_deployment(queue: QueueSample, workers: Sequence[Figures]) -> Figures:
    return {
        **together(workers),
        "registered": float(len(workers)),
        "waiting": float(queue.waiting),
        "waiting_most": float(queue.waiting),
        "suspended": float(queue.suspended),
    }


def _known(name: str, figures: Sequence[Mapping[str, float | None]]) -> list[float]:
    return [value for one in figures if (value := one[name]) is not None]


def _none(name: str) -> float | None:
    return 0.0 if name in _ALWAYS else None


def _sum(name: str, figures: Sequence[Mapping[str, float | None]]) -> float | None:
    known = _known(name, figures)
    return sum(known) if known else _none(name)


def _mean(name: str, figures: Sequence[Mapping[str, float | None]]) -> float | None:
    known = _known(name, figures)
    return sum(known) / len(known) if known else _none(name)


def _most(name: str, figures: Sequence[Mapping[str, float | None]]) -> float | None:
    known = _known(name, figures)
    return max(known) if known else _none(name)
