"""A cause is named where it was put in, with its evidence, and nowhere else."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.ops.diagnosis.causes import Cause, Finding
from apps.ops.diagnosis.diagnose import diagnose
from apps.ops.diagnosis.observations import Fleet, Observation
from headrace_wire.latency.measures import PHASES, Measure, Tally
from headrace_wire.latency.summary import Summary

USUAL: Mapping[Measure, float] = {
    Measure.ADMISSION: 0.003,
    Measure.QUEUE: 0.010,
    Measure.PREFILL: 0.080,
    Measure.FLUSH: 0.004,
    Measure.TPOT: 0.020,
}
FLEET = Fleet(
    workers=2.0,
    workers_started=0,
    slots=32.0,
    running=8.0,
    kv_cache_usage_most=0.4,
    memory_usage=0.6,
    preemptions=0.0,
    gpu_clock_mhz=1700.0,
    paces=(400.0, 410.0, 395.0, 405.0, 402.0, 398.0),
)
TOKENS = 100


def observe(
    *,
    requests: int = 300,
    seed: int = 1,
    noise: float = 0.1,
    plus: Mapping[Measure, float] | None = None,
    rare: float = 1.0,
    tallies: Mapping[Tally, float] | None = None,
    fleet: Fleet = FLEET,
) -> Observation:
    """Makes what the gateways would have measured; `plus` is added to a `rare` share of the requests.

    Tallies are for each request.
    """
    random, summary = Random(seed), Summary()
    for _ in range(requests):
        spread = {measure: mean * random.uniform(1 - noise, 1 + noise) for measure, mean in USUAL.items()}
        if plus and random.random() < rare:
            for measure, seconds in plus.items():
                spread[measure] = spread.get(measure, 0.0) + seconds
        ttft = sum(spread.get(phase, 0.0) for phase in PHASES)
        for measure, seconds in spread.items():
            summary.histogram(measure).add(seconds)
        summary.histogram(Measure.TTFT).add(ttft)
        summary.histogram(Measure.GAP).add(spread[Measure.TPOT], TOKENS - 1)
        summary.histogram(Measure.TOTAL).add(ttft + spread[Measure.TPOT] * (TOKENS - 1))
    counted = {Tally.TOKENS: TOKENS, Tally.PROMPT_TOKENS: 400, Tally.CACHED_TOKENS: 300, **(tallies or {})}
    summary.count(Tally.REQUESTS, requests)
    for tally, each in counted.items():
        summary.count(tally, round(each * requests))
    return Observation(seconds=600.0, summary=summary, fleet=fleet)


INJECTED: dict[Cause, dict[str, Any]] = {
    Cause.CAPACITY: {
        "plus": {Measure.QUEUE: 0.6},
        "requests": 600,
        "fleet": replace(FLEET, running=31.0, waiting=20.0, waiting_most=40.0),
    },
    Cause.NO_WORKER: {
        "plus": {Measure.QUEUE: 20.0},
        "fleet": replace(FLEET, workers=0.2, running=0.0, waiting=15.0, waiting_most=30.0),
    },
    Cause.COLD_START: {
        "plus": {Measure.QUEUE: 4.0},
        "rare": 0.1,
        "fleet": replace(FLEET, workers=1.6, workers_started=1, waiting_most=10.0),
    },
    Cause.CONTENTION: {"plus": {Measure.TPOT: 0.03}, "fleet": replace(FLEET, running=24.0, preemptions=40.0)},
    Cause.PREFIX_MISSES: {"plus": {Measure.PREFILL: 0.3}, "tallies": {Tally.CACHED_TOKENS: 20}},
    Cause.LONGER_PROMPTS: {
        "plus": {Measure.PREFILL: 0.4},
        "tallies": {Tally.PROMPT_TOKENS: 2000, Tally.CACHED_TOKENS: 1500},
    },
    Cause.GUARD: {"plus": {Measure.GUARD: 0.25}, "rare": 0.5},
    Cause.SLOW_CLIENTS: {
        "plus": {Measure.TPOT: 0.05},
        "tallies": {Tally.STALLS: 2.0},
        "fleet": replace(FLEET, held=10.0),
    },
    Cause.NETWORK_TIMEOUTS: {"tallies": {Tally.TIMEOUTS: 0.1}},
    Cause.MEMORY_FULL: {
        "plus": {Measure.PREFILL: 0.5},
        "fleet": replace(FLEET, kv_cache_usage_most=0.99, spilled=3.0),
    },
    Cause.MODEL_NOT_UNLOADED: {
        "plus": {Measure.PREFILL: 0.5},
        "fleet": replace(FLEET, memory_usage=0.97, unused_models=("old",)),
    },
    Cause.THROUGHPUT_SWINGS: {
        "plus": {Measure.TPOT: 0.02},
        "fleet": replace(FLEET, gpu_clock_mhz=1200.0, paces=(400.0, 90.0, 390.0, 80.0, 410.0, 85.0)),
    },
    Cause.GATEWAY: {"plus": {Measure.FLUSH: 0.3}},
}
BESIDES = {Cause.MODEL_NOT_UNLOADED: {Cause.MEMORY_FULL}}
"""What is named with it, and rightly."""


def causes(findings: list[Finding]) -> list[Cause]:
    return [finding.cause for finding in findings]


def test_every_cause_is_put_in() -> None:
    assert set(INJECTED) == set(Cause)


@pytest.mark.parametrize("cause", list(Cause))
@pytest.mark.parametrize("seed", range(3))
def test_the_cause_that_was_put_in_is_named_and_no_other(cause: Cause, seed: int) -> None:
    found = diagnose(observe(seed=seed, **INJECTED[cause]), observe(seed=seed + 100))
    assert set(causes(found)) == {cause} | BESIDES.get(cause, set())
    first = next(finding for finding in found if finding.cause is cause)
    assert first.evidence
    assert all(text.endswith(".") for text in (*first.evidence, first.action))
    assert 0 < first.share <= 1


@pytest.mark.parametrize("cause", list(Cause))
def test_what_was_so_before_is_no_cause_now(cause: Cause) -> None:
    assert diagnose(observe(seed=1, **INJECTED[cause]), observe(seed=2, **INJECTED[cause])) == []
    assert diagnose(observe(seed=1), observe(seed=2, **INJECTED[cause])) == []


@settings(max_examples=30)
@given(
    now=st.integers(0, 10_000), before=st.integers(0, 10_000), noise=st.floats(0, 0.2), requests=st.integers(10, 400)
)
def test_noise_has_no_cause(now: int, before: int, noise: float, requests: int) -> None:
    assert diagnose(observe(seed=now, noise=noise, requests=requests), observe(seed=before, noise=noise)) == []


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), factor=st.floats(0.5, 20), cause=st.sampled_from(list(Cause)))
def test_it_is_named_whatever_its_size(seed: int, factor: float, cause: Cause) -> None:
    injected = dict(INJECTED[cause])
    injected["plus"] = {measure: seconds * factor for measure, seconds in injected.get("plus", {}).items()}
    assert cause in causes(diagnose(observe(seed=seed, **injected), observe(seed=seed + 1)))


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), phase=st.sampled_from([*PHASES, Measure.TPOT]), seconds=st.floats(0.06, 5))
def test_a_phase_without_its_evidence_is_not_explained_by_the_fleet(seed: int, phase: Measure, seconds: float) -> None:
    found = set(causes(diagnose(observe(seed=seed, plus={phase: seconds}), observe(seed=seed + 1))))
    by_itself = {Measure.GUARD: {Cause.GUARD}, Measure.ADMISSION: {Cause.GATEWAY}, Measure.FLUSH: {Cause.GATEWAY}}
    assert found == by_itself.get(phase, set())


def test_of_two_causes_the_larger_one_comes_first() -> None:
    plus = {Measure.QUEUE: 1.0, Measure.GUARD: 0.4}
    busy = replace(FLEET, running=31.0, waiting=20.0)
    first, second = diagnose(observe(plus=plus, fleet=busy), observe(seed=2))
    assert (first.cause, second.cause) == (Cause.CAPACITY, Cause.GUARD)
    assert first.share + second.share == pytest.approx(1.0, abs=0.02), "means add up"


def test_what_adds_most_seconds_comes_first() -> None:
    """All of a first token that came 50 ms later is less than half of an answer that took seconds longer."""
    plus = {Measure.QUEUE: 0.05, Measure.TPOT: 0.03}
    busy = replace(FLEET, running=30.0, waiting=3.0, waiting_most=5.0)
    first, second = diagnose(observe(plus=plus, fleet=busy), observe(seed=2))
    assert (first.cause, second.cause) == (Cause.CONTENTION, Cause.CAPACITY)
    assert first.seconds > 10 * second.seconds
    assert second.share == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("fleet", [{"running": 30.0}, {"running": 8.0, "held": 24.0, "waiting": 5.0}])
def test_places_that_nobody_waits_for_or_that_are_free_are_no_lack(fleet: dict[str, Any]) -> None:
    assert diagnose(observe(plus={Measure.QUEUE: 0.6}, fleet=replace(FLEET, **fleet)), observe(seed=2)) == []


def test_timeouts_are_of_the_network_also_where_a_busy_machine_queues_for_a_moment() -> None:
    """The queue may be most of what the first token came later by, and nobody waits in it for a place."""
    plus, tallies = {Measure.QUEUE: 0.02}, {Tally.TIMEOUTS: 0.1}
    assert causes(diagnose(observe(plus=plus, tallies=tallies), observe(seed=2))) == [Cause.NETWORK_TIMEOUTS]
    busy = replace(FLEET, waiting=0.9)
    assert diagnose(observe(plus=plus, tallies=tallies, fleet=busy), observe(seed=2)) == []


def test_a_gateway_that_is_late_at_both_ends_is_named_for_both() -> None:
    """Where it stands still, requests wait to be read and first tokens to be sent; the queue adds less than these."""
    plus = {Measure.ADMISSION: 0.4, Measure.FLUSH: 0.4, Measure.QUEUE: 0.6}
    busy = replace(FLEET, running=31.0, waiting=20.0)
    first, second = diagnose(observe(plus=plus, fleet=busy), observe(seed=2))
    assert (first.cause, second.cause) == (Cause.GATEWAY, Cause.CAPACITY)
    assert first.seconds == pytest.approx(0.8, abs=0.02)
    assert len(first.evidence) == 2


def in_bursts(seed: int, **more: Any) -> Observation:
    """What a gateway measures that stands still at times: of some answers, half is there at once when it runs again."""
    observed = observe(seed=seed, **more)
    observed.summary.histogram(Measure.GAP).add(1.6, observed.summary.histogram(Measure.GAP).count // 10)
    return observed


def test_a_gateway_that_stands_still_between_tokens_is_named() -> None:
    (finding,) = diagnose(in_bursts(1), observe(seed=2))
    assert finding.cause is Cause.GATEWAY
    assert finding.evidence[0].startswith("GAP p95")
    assert diagnose(in_bursts(1), in_bursts(2)) == []


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"plus": {Measure.GUARD: 0.25}}, Cause.GUARD),
        ({"plus": {Measure.TPOT: 0.05}, "tallies": {Tally.STALLS: 2.0}}, Cause.SLOW_CLIENTS),
        ({"plus": {Measure.TPOT: 0.03}, "fleet": replace(FLEET, running=24.0)}, Cause.CONTENTION),
    ],
)
def test_bursts_that_somebody_else_makes_are_not_the_gateways(more: dict[str, Any], cause: Cause) -> None:
    assert causes(diagnose(in_bursts(1, **more), observe(seed=2))) == [cause]


def test_a_model_that_is_not_unloaded_comes_before_the_memory_that_it_fills() -> None:
    full = replace(FLEET, memory_usage=0.97, unused_models=("old",))
    plus = {Measure.PREFILL: 0.5, Measure.QUEUE: 0.5, Measure.TPOT: 0.01}
    found = diagnose(observe(plus=plus, fleet=full), observe(seed=2))
    assert causes(found)[:2] == [Cause.MODEL_NOT_UNLOADED, Cause.MEMORY_FULL]


def test_memory_that_was_full_before_is_no_news() -> None:
    full = replace(FLEET, memory_usage=0.97, unused_models=("old",))
    assert diagnose(observe(plus={Measure.PREFILL: 0.5}, fleet=full), observe(seed=2, fleet=full)) == []


def test_too_little_is_not_compared() -> None:
    slow: dict[str, Any] = {"plus": {Measure.GUARD: 1.0}}
    assert diagnose(observe(requests=9, **slow), observe()) == []
    assert diagnose(observe(**slow), observe(requests=9)) == []


def test_nothing_at_all_is_no_error() -> None:
    nothing = Observation(seconds=600.0, summary=Summary())
    assert diagnose(nothing, nothing) == []
    assert diagnose(nothing, observe()) == []
    assert diagnose(observe(), nothing) == []
