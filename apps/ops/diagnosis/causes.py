"""The likely causes. Each looks for its own evidence beside the phase that moved; without it, it is not named."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from apps.ops.diagnosis.movements import Movement
from apps.ops.diagnosis.observations import Observation
from headrace_wire.latency.measures import Measure, Tally

LEAST_SHARE = 0.15
"""Of the growth: what explains less is not named as its cause."""
FULL = 0.9
"""A KV cache or memory that is used so far is full."""
BUSY = 0.7
"""Of slots, in the mean of a few samples: when streams wait, the others are those that change hands just then."""
GATEWAY_SECONDS = 0.05
"""That the gateway itself adds: less is a busy machine's."""
WAITS = 0.5
"""Streams in the queue in the mean: with fewer, a queue that became longer is not for want of places."""


class Cause(StrEnum):
    """What may be the reason."""

    CAPACITY = "capacity"
    NO_WORKER = "no_worker"
    COLD_START = "cold_start"
    CONTENTION = "contention"
    PREFIX_MISSES = "prefix_misses"
    LONGER_PROMPTS = "longer_prompts"
    GUARD = "guard"
    SLOW_CLIENTS = "slow_clients"
    NETWORK_TIMEOUTS = "network_timeouts"
    MEMORY_FULL = "memory_full"
    MODEL_NOT_UNLOADED = "model_not_unloaded"
    THROUGHPUT_SWINGS = "throughput_swings"
    GATEWAY = "gateway"

    @property
    def words(self) -> str:
        """For people."""
        return _WORDS[self]


_WORDS = {
    Cause.CAPACITY: "Too little capacity",
    Cause.NO_WORKER: "No worker",
    Cause.COLD_START: "Cold start",
    Cause.CONTENTION: "Contention in the batch",
    Cause.PREFIX_MISSES: "Prefix cache misses",
    Cause.LONGER_PROMPTS: "Longer prompts",
    Cause.GUARD: "Guardrails",
    Cause.SLOW_CLIENTS: "Slow clients",
    Cause.NETWORK_TIMEOUTS: "Network timeouts",
    Cause.MEMORY_FULL: "Memory full",
    Cause.MODEL_NOT_UNLOADED: "A model that is not unloaded",
    Cause.THROUGHPUT_SWINGS: "Throughput swings",
    Cause.GATEWAY: "The gateway itself",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause with what speaks for it, and what helps."""

    cause: Cause
    evidence: tuple[str, ...]
    action: str
    share: float
    """Of the growth of the time to first token or of the total, 0 to 1."""
    seconds: float
    """What it adds to a stream's time in the mean; infinite where streams do not come through at all."""

    @property
    def percent(self) -> int:
        """The share for people."""
        return round(self.share * 100)


Moved = dict[Measure, Movement]
Look = Callable[[Observation, Observation, Moved], Finding | None]


def no_worker(now: Observation, before: Observation, moved: Moved) -> Finding | None:
    """Nothing was ready for most of the time, and something waited."""
    if now.fleet.workers >= 0.5 or before.fleet.workers < 0.5 or not now.fleet.waiting_most:
        return None
    evidence = (
        f"Ready workers {before.fleet.workers:.2g} → {now.fleet.workers:.2g}.",
        f"Up to {now.fleet.waiting_most:.0f} streams waited.",
    )
    action = "Start a worker; the deployment's page has the last engine error."
    queue = moved.get(Measure.QUEUE)
    return Finding(Cause.NO_WORKER, evidence, action, (queue.share if queue is not None else 0.0) or 1.0, inf)


def capacity(now: Observation, before: Observation, moved: Moved) -> Finding | None:
    """Streams wait for a place while all places are taken."""
    queue = _explains(moved, Measure.QUEUE)
    fleet = now.fleet
    # Held streams are no part of it: they have left their places to others.
    is_busy = fleet.waiting >= WAITS and fleet.running >= BUSY * fleet.slots
    if queue is None or not is_busy or fleet.workers < 0.5 or _has_fewer_or_new_workers(now, before):
        return None
    evidence = [
        queue.says + ".",
        (
            f"{fleet.running:.3g} of {fleet.slots:.0f} places were taken, {fleet.waiting:.3g} streams waited"
            f" (before: {before.fleet.running:.3g} and {before.fleet.waiting:.3g})."
        ),
    ]
    if now.requests_per_second > 1.25 * before.requests_per_second:
        evidence.append(f"Requests {before.requests_per_second:.3g}/s → {now.requests_per_second:.3g}/s.")
    action = "Add workers or places (max_num_seqs), or limit the tenants that send most."
    return Finding(Cause.CAPACITY, tuple(evidence), action, queue.share, queue.seconds)


def cold_start(now: Observation, before: Observation, moved: Moved) -> Finding | None:
    """Workers that had to load first, or had nothing warm."""
    late = _explains(moved, Measure.QUEUE) or _explains(moved, Measure.PREFILL)
    if late is None or not now.fleet.workers_started or now.fleet.workers_started <= before.fleet.workers_started:
        return None
    evidence = (
        late.says + ".",
        (
            f"{now.fleet.workers_started} worker(s) started in this time (before: {before.fleet.workers_started});"
            f" ready ones {before.fleet.workers:.2g} → {now.fleet.workers:.2g}."
        ),
    )
    action = "Keep a worker more as a reserve, pin prompt caches so that they are warm first, scale out earlier."
    return Finding(Cause.COLD_START, evidence, action, late.share, late.seconds)


def contention(now: Observation, before: Observation, moved: Moved) -> Finding | None:
    """More requests share one engine's steps."""
    slower = _explains(moved, Measure.TPOT) or _explains(moved, Measure.GAP)
    batch, batch_before = now.fleet.running_per_worker, before.fleet.running_per_worker
    preempts = (now.fleet.preemptions or 0.0) > 1.5 * (before.fleet.preemptions or 0.0) + 1
    grew = batch > 1.3 * batch_before and batch > batch_before + 1
    if slower is None or not (grew or preempts):
        return None
    evidence = [slower.says + ".", f"Requests that ran at once on a worker {batch_before:.3g} → {batch:.3g}."]
    if preempts:
        evidence.append(f"Preemptions {before.fleet.preemptions or 0:.0f} → {now.fleet.preemptions or 0:.0f}.")
    action = "Lower the batch limit, add workers, or let the batch limit follow the objectives."
    return Finding(Cause.CONTENTION, tuple(evidence), action, slower.share, slower.seconds)


def prefix_misses(now: Observation, before: Observation, moved: Moved) -> Finding | None:
    """Prompts that were found in the prefix cache are computed now."""
    prefill = _explains(moved, Measure.PREFILL)
    share, share_before = now.cached_share, before.cached_share
    if prefill is None or share is None or share_before is None or share > share_before - 0.15:
        return None
    evidence = (prefill.says + ".", f"Prompt tokens from the prefix cache {share_before:.0%} → {share:.0%}.")
    action = "Pin the prompts that many share, see that they begin alike, and give the KV cache more room."
    return Finding(Cause.PREFIX_MISSES, evidence, action, prefill.share, prefill.seconds)


def longer_prompts(now: Observation, before: Observation, moved: Moved) -> Finding | None:
    """There is more to compute for each request."""
    prefill = _explains(moved, Measure.PREFILL)
    length, length_before = now.per_request(Tally.PROMPT_TOKENS), before.per_request(Tally.PROMPT_TOKENS)
    if prefill is None or not length_before or length < 1.5 * length_before or length < length_before + 50:
        return None
    evidence = (prefill.says + ".", f"Prompt tokens of a request {length_before:.0f} → {length:.0f}.")
    action = "Limit what tenants send, compute the prefill in smaller pieces, or add workers."
    return Finding(Cause.LONGER_PROMPTS, evidence, action, prefill.share, prefill.seconds)


def guard(now: Observation, before: Observation, moved: Moved) -> Finding | None:  # noqa: ARG001
    """Text waits for its verdict."""
    held_back = _explains(moved, Measure.GUARD)
    if held_back is None:
        return None
    action = "Use a smaller window or a faster judge, or give the judges more processes."
    return Finding(Cause.GUARD, (held_back.says + ".",), action, held_back.share, held_back.seconds)


def slow_clients(now: Observation, before: Observation, moved: Moved) -> Finding | None:
    """Clients do not take what is there, and their streams stand still."""
    stalls, stalls_before = now.per_request(Tally.STALLS), before.per_request(Tally.STALLS)
    late = next((moved[one] for one in (Measure.TOTAL, Measure.GAP, Measure.TPOT, Measure.FLUSH) if one in moved), None)
    if late is None or not _has_more_stalls(now, before):
        return None
    evidence = (
        late.says + ".",
        (
            f"Stalls of clients for each request {stalls_before:.2g} → {stalls:.2g}; streams out of credit"
            f" {before.fleet.held:.2g} → {now.fleet.held:.2g}."
        ),
    )
    action = "Nothing is wrong with the engine: the clients' network or programs are slow. Held streams keep no slot."
    share = max((moved[one].share for one in (Measure.GAP, Measure.TPOT) if one in moved), default=0.0) or late.share
    return Finding(Cause.SLOW_CLIENTS, evidence, action, share, late.seconds)


def network_timeouts(now: Observation, before: Observation, moved: Moved) -> Finding | None:
    """Streams end at deadlines though nothing waits for a place."""
    timeouts, share, share_before = now.summary.tally(Tally.TIMEOUTS), *_timeout_shares(now, before)
    has_queue = _explains(moved, Measure.QUEUE) is not None and now.fleet.waiting >= WAITS
    waits = has_queue or now.fleet.waiting > before.fleet.waiting + 1
    if timeouts < 3 or share < 1.5 * share_before + 0.01 or waits or now.fleet.workers < 0.5 <= before.fleet.workers:
        return None
    evidence = (f"Streams that ended at a deadline {share_before:.1%} → {share:.1%} ({timeouts}).",)
    action = "Look at proxies and networks between clients, gateways and workers; then at the deadlines themselves."
    # Each of them is worth the time of a whole stream.
    return Finding(Cause.NETWORK_TIMEOUTS, evidence, action, share, (share - share_before) * now.mean(Measure.TOTAL))


def memory_full(now: Observation, before: Observation, moved: Moved) -> Finding | None:
    """The KV cache, or the memory itself, has no room left."""
    usage, usage_before = now.fleet.kv_cache_usage_most, before.fleet.kv_cache_usage_most
    explained = _by_memory(moved)
    memory, memory_before = now.fleet.memory_usage or 0.0, before.fleet.memory_usage or 0.0
    kv_is_full = usage >= FULL and usage_before < FULL
    memory_is_full = memory >= FULL and memory_before < FULL
    gpu_is_full = _gpu_has_filled(now, before)
    if not explained or not (kv_is_full or memory_is_full or gpu_is_full):
        return None
    evidence = [one.says + "." for one in explained]
    if kv_is_full:
        evidence.append(
            f"KV cache in use at most {usage_before:.0%} → {usage:.0%}; streams that lost theirs"
            f" {before.fleet.spilled:.2g} → {now.fleet.spilled:.2g}."
        )
    if memory_is_full:
        evidence.append(f"Memory in use {memory_before:.0%} → {memory:.0%}.")
    if gpu_is_full:
        evidence.append(_gpu_memory_says(now, before))
    action = "Give the KV cache more room, lower max_num_seqs or the model's length, or add workers."
    share, seconds = max(one.share for one in explained), sum(one.seconds for one in explained)
    return Finding(Cause.MEMORY_FULL, tuple(evidence), action, share, seconds)


def model_not_unloaded(now: Observation, before: Observation, moved: Moved) -> Finding | None:
    """Memory is full, and models that nobody asks for keep some of it."""
    memory = now.fleet.memory_usage or 0.0
    is_full = memory >= FULL > (before.fleet.memory_usage or 0.0)
    if not now.fleet.unused_models or not (is_full or _gpu_has_filled(now, before)):
        return None
    named = ", ".join(now.fleet.unused_models)
    evidence = (
        f"Memory in use {memory:.0%}." if is_full else _gpu_memory_says(now, before),
        f"Loaded and asked for nothing in this time: {named}.",
    )
    action = "Drain and stop the workers of models that nobody asks for."
    share = max((movement.share for movement in moved.values()), default=0.0)
    seconds = max((movement.seconds for movement in moved.values()), default=0.0)
    # It is why memory is full: never less than that.
    seconds = max(seconds, sum(one.seconds for one in _by_memory(moved)))
    return Finding(Cause.MODEL_NOT_UNLOADED, evidence, action, share, seconds)


def throughput_swings(now: Observation, before: Observation, moved: Moved) -> Finding | None:
    """The engine is slower than itself with the same batch: its clock, its power, or a neighbour."""
    swing, swing_before = now.fleet.swing, before.fleet.swing
    clock, clock_before = now.fleet.gpu_clock_mhz, before.fleet.gpu_clock_mhz
    slower = _explains(moved, Measure.TPOT) or _explains(moved, Measure.GAP)
    swings = swing > 0.35 and swing > swing_before + 0.25
    throttles = clock is not None and clock_before is not None and clock < 0.9 * clock_before
    if slower is None or not (swings or throttles):
        return None
    evidence = [slower.says + "."]
    if swings:
        evidence.append(
            f"Tokens per second of a request vary by {swing:.0%} of their mean (before: {swing_before:.0%})."
        )
    if throttles:
        evidence.append(f"GPU clock {clock_before:.0f} → {clock:.0f} MHz.")
    action = "Look at the GPU's temperature, power limit and neighbours, and at what else runs on the machine."
    return Finding(Cause.THROUGHPUT_SWINGS, tuple(evidence), action, slower.share, slower.seconds)


def gateway(now: Observation, before: Observation, moved: Moved) -> Finding | None:
    """The gateway's own part: reading and admitting requests, and bringing tokens to the client."""
    late = [one for one in (_explains(moved, Measure.ADMISSION), _explains(moved, Measure.FLUSH)) if one]
    if sum(one.mean - one.mean_before for one in late) < GATEWAY_SECONDS:
        late = []
    evidence = [one.says + "." for one in late]
    if (stutter := _stutter(now, before, moved)) is not None:
        evidence.append(f"{stutter.says}, while the engine took no longer for a token.")
        late.append(stutter)
    if not late:
        return None
    if now.requests_per_second > 1.25 * before.requests_per_second:
        evidence.append(f"Requests {before.requests_per_second:.3g}/s → {now.requests_per_second:.3g}/s.")
    action = "Look at the CPU of gateways and Redis; add gateways."
    share, seconds = min(sum(one.share for one in late), 1.0), sum(one.seconds for one in late)
    return Finding(Cause.GATEWAY, tuple(evidence), action, share, seconds)


# Of two that explain as much, the one that says more comes first.
LOOKS: tuple[Look, ...] = (
    *(no_worker, model_not_unloaded, memory_full, capacity, cold_start, contention, prefix_misses, longer_prompts),
    *(guard, slow_clients, network_timeouts, throughput_swings, gateway),
)


def _stutter(now: Observation, before: Observation, moved: Moved) -> Movement | None:
    """Texts come in bursts that the engine made at its pace: neither it, nor a guard, nor a client held them up."""
    gap = moved.get(Measure.GAP)
    if gap is None or gap.p95 - gap.p95_before < GATEWAY_SECONDS or {Measure.TPOT, Measure.GUARD} & moved.keys():
        return None
    return None if _has_more_stalls(now, before) else gap


def _has_more_stalls(now: Observation, before: Observation) -> bool:
    return now.per_request(Tally.STALLS) >= 1.5 * before.per_request(Tally.STALLS) + 0.1


def _explains(moved: Moved, measure: Measure) -> Movement | None:
    """A movement that is a good part of the growth."""
    found = moved.get(measure)
    return found if found is not None and found.share >= LEAST_SHARE else None


def _by_memory(moved: Moved) -> list[Movement]:
    """What memory without room slows: some wait for it, and those that run lose theirs to others, or are preempted."""
    slower = _explains(moved, Measure.TPOT) or _explains(moved, Measure.GAP)
    return [one for one in (_explains(moved, Measure.QUEUE), _explains(moved, Measure.PREFILL), slower) if one]


def _gpu_has_filled(now: Observation, before: Observation) -> bool:
    """Somebody else has come onto the GPU: an engine takes its own share when it starts, and is full by design then."""
    usage, usage_before = now.fleet.gpu_memory_usage, before.fleet.gpu_memory_usage
    return usage is not None and usage_before is not None and usage >= FULL > usage_before


def _gpu_memory_says(now: Observation, before: Observation) -> str:
    return f"GPU memory in use {before.fleet.gpu_memory_usage or 0.0:.0%} → {now.fleet.gpu_memory_usage or 0.0:.0%}."


def _has_fewer_or_new_workers(now: Observation, before: Observation) -> bool:
    return now.fleet.workers_started > before.fleet.workers_started and now.fleet.workers < before.fleet.workers + 0.1


def _timeout_shares(now: Observation, before: Observation) -> tuple[float, float]:
    return now.per_request(Tally.TIMEOUTS), before.per_request(Tally.TIMEOUTS)
