"""The decision as a function: each rule, and what must hold for every policy and every history."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.deployments.autoscale.decide import decide
from apps.deployments.autoscale.schedules import bounds_at
from apps.deployments.autoscale.terms import Decision, PolicyTerms, Rule, Sample, ScalingState, Window, WindowKind

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)  # a Monday
TICK = 15.0
PLACES = 10


def sample(at: datetime, load: float, workers: int = 1, **values: Any) -> Sample:
    """Workers of 10 places that serve 1 request/s each; `load` is the share of all of that."""
    return replace(
        Sample(
            at=at,
            workers=workers,
            ready=workers,
            running=int(load * workers * PLACES),
            places=workers * PLACES,
            requests_per_second=load * workers,
            worker_capacity=1.0,
        ),
        **values,
    )


def history(seconds: float, load: float | Callable[[int], float], workers: int = 1, **values: Any) -> list[Sample]:
    """Samples that end at noon."""
    count = int(seconds / TICK) + 1
    share = load if callable(load) else lambda _: load
    return [sample(NOON - timedelta(seconds=TICK * (count - 1 - i)), share(i), workers, **values) for i in range(count)]


def decided(policy: PolicyTerms, samples: Sequence[Sample], current: int = 1, **state: Any) -> Decision:
    return decide(policy, samples, NOON, replace(ScalingState(current=current), **state))


def test_five_minutes_above_80_percent_add_two() -> None:
    decision = decided(PolicyTerms(), history(300, 0.85))
    assert (decision.target, decision.rule) == (3, Rule.SCALE_OUT)
    assert decision.reason == "Above 80% for 300 s, now 85% (requests)."
    assert decision.inputs["loads"] == {"requests": 0.85, "queue": 0.0}
    assert decided(PolicyTerms(), history(240, 0.85)).rule is Rule.KEEP, "not long enough"
    assert decided(PolicyTerms(), history(300, lambda i: 0.5 if i == 10 else 0.9)).rule is Rule.KEEP


def test_thirty_minutes_below_30_percent_take_one_away() -> None:
    decision = decided(PolicyTerms(), history(1800, 0.2, 3), current=3)
    assert (decision.target, decision.rule) == (2, Rule.SCALE_IN)
    assert decided(PolicyTerms(), history(1700, 0.2, 3), current=3).rule is Rule.KEEP


@pytest.mark.parametrize(
    ("values", "signal"),
    [
        ({"queue_p95": 1.9}, "queue"),
        ({"waiting": 2}, "queue"),
        ({"ttft_p95": 0.45}, "ttft"),
        ({"kv_usage": 0.95}, "kv"),
    ],
)
def test_every_signal_counts(values: dict[str, Any], signal: str) -> None:
    policy = PolicyTerms(ttft_goal_seconds=0.5)
    decision = decided(policy, history(300, 0.1, **values))
    assert decision.rule is Rule.SCALE_OUT
    assert f"({signal})" in decision.reason


def test_first_tokens_that_take_their_time_do_not_keep_idle_workers() -> None:
    policy = PolicyTerms(ttft_goal_seconds=0.5)
    assert decided(policy, history(1800, 0.1, 2, ttft_p95=0.3), current=2).rule is Rule.SCALE_IN
    assert decided(policy, history(1800, 0.1, 2, ttft_p95=0.45), current=2).rule is Rule.SCALE_OUT


@pytest.mark.parametrize("values", [{"worker_capacity": None}, {"requests_per_second": 0.0}])
def test_places_that_are_taken_count_beside_what_comes(values: dict[str, Any]) -> None:
    decision = decided(PolicyTerms(), history(300, 0.9, **values))
    assert decision.inputs["loads"] == {"requests": 0.9, "queue": 0.0}
    assert decision.rule is Rule.SCALE_OUT


def test_missing_samples_are_no_evidence() -> None:
    gap = [one for index, one in enumerate(history(300, 0.9)) if index % 2]
    assert decided(PolicyTerms(), gap).rule is Rule.KEEP
    old = history(300, 0.9)[:-4]
    assert decided(PolicyTerms(), old).rule is Rule.KEEP
    assert decided(PolicyTerms(), []).reason == "Nothing was measured yet."


def test_nothing_more_is_asked_for_while_workers_start() -> None:
    samples = history(600, 1.5, 1)
    grown: dict[str, Any] = {"current": 3, "changed_at": NOON - timedelta(seconds=400), "has_grown": True}
    decision = decided(PolicyTerms(max_workers=9), samples, **grown)
    assert (decision.rule, decision.reason) == (Rule.STARTING, "1 of 3 workers are ready.")
    grown["changed_at"] = NOON - timedelta(seconds=600)
    assert decided(PolicyTerms(max_workers=9), samples, **grown).rule is Rule.SCALE_OUT, "they never come"


def test_a_request_that_waits_wakes_a_deployment_without_workers() -> None:
    policy = PolicyTerms(min_workers=0)
    nobody = [sample(NOON, 0.0, 0, waiting=1)]
    decision = decided(policy, nobody, current=0, changed_at=NOON - timedelta(seconds=1))
    assert (decision.target, decision.rule) == (1, Rule.WAKE_UP)
    assert decided(policy, [sample(NOON, 0.0, 0)], current=0).target == 0


def test_idle_workers_go_to_none_only_where_none_is_allowed() -> None:
    samples = history(900, 0.0)
    assert decided(PolicyTerms(min_workers=0), samples).rule is Rule.IDLE
    assert decided(PolicyTerms(min_workers=1), samples).target == 1
    held = history(900, 0.0, running=1)
    assert decided(PolicyTerms(min_workers=0), held).target == 1, "somebody reads slowly"


PEAK = Window(WindowKind.RESERVE, frozenset(range(5)), time(8), time(18), 20)
NIGHT = Window(WindowKind.RELEASE, frozenset(range(7)), time(22), time(6), 50)


def test_weekday_peak_keeps_a_reserve() -> None:
    policy = PolicyTerms(min_workers=5, max_workers=10, windows=(PEAK, NIGHT))
    assert decided(policy, history(0, 0.5, 5), current=5).target == 6
    assert decided(policy, history(0, 0.5, 5), current=5).rule is Rule.SCHEDULE
    assert decided(policy, history(300, 0.7, 6), current=6).rule is Rule.SCALE_OUT, "70 % count as 84 %"
    sunday = bounds_at(policy, NOON - timedelta(days=1))
    assert (sunday.low, sunday.high, sunday.load_factor) == (5, 10, 1.0)


def test_night_releases_half_by_the_clock_of_the_zone() -> None:
    policy = PolicyTerms(min_workers=4, max_workers=10, windows=(PEAK, NIGHT), time_zone="Asia/Tokyo")
    tokyo_22 = datetime(2026, 11, 30, 13, 0, tzinfo=UTC)
    assert (bounds_at(policy, tokyo_22).low, bounds_at(policy, tokyo_22).high) == (2, 5)
    assert bounds_at(policy, tokyo_22 - timedelta(minutes=1)).low == 4
    tuesday_5 = datetime(2026, 11, 30, 20, 59, tzinfo=UTC)
    assert bounds_at(policy, tuesday_5).low == 2, "began the evening before"
    assert bounds_at(policy, tuesday_5 + timedelta(minutes=1)).low == 4
    assert bounds_at(replace(policy, min_workers=1, max_workers=1), tokyo_22).high == 1


def test_a_release_moves_what_is_above_it_at_once() -> None:
    policy = PolicyTerms(min_workers=2, max_workers=8, windows=(replace(NIGHT, start=time(11), end=time(13)),))
    decision = decided(policy, history(0, 0.7, 6), current=6, changed_at=NOON)
    assert (decision.target, decision.rule) == (4, Rule.SCHEDULE)


# ---- for every policy and history

policies = st.builds(
    lambda low, more, out, inward, steps, seconds: PolicyTerms(
        min_workers=low,
        max_workers=max(1, low + more),
        scale_out_share=out,
        scale_in_share=out * inward,
        scale_out_step=steps[0],
        scale_in_step=steps[1],
        scale_out_seconds=seconds[0] * TICK,
        scale_in_seconds=seconds[1] * TICK,
        cooldown_seconds=seconds[2] * TICK,
        idle_seconds=seconds[3] * TICK,
        windows=(PEAK, NIGHT),
    ),
    st.integers(0, 4),
    st.integers(0, 12),
    st.floats(0.3, 1.0),
    st.floats(0.1, 0.95),
    st.tuples(st.integers(1, 4), st.integers(1, 3)),
    st.tuples(*[st.integers(1, 6)] * 4),
)


def run(policy: PolicyTerms, demand: Sequence[float], begin: datetime = NOON) -> list[tuple[datetime, int, Decision]]:
    """Lets decisions act at once on a demand in workers' worth; returns (when, workers before, decision)."""
    state = ScalingState(current=policy.min_workers)
    samples: list[Sample] = []
    made = []
    for index, wanted in enumerate(demand):
        now = begin + timedelta(seconds=TICK * index)
        load = wanted / state.current if state.current else 0.0
        waiting = int(wanted > 0) if not state.current else 0
        samples.append(sample(now, load, state.current, waiting=waiting))
        decision = decide(policy, samples, now, state)
        made.append((now, state.current, decision))
        if decision.target != state.current:
            state = ScalingState(current=decision.target, changed_at=now, has_grown=decision.target > state.current)
    return made


demands = st.lists(st.floats(0, 8), min_size=1, max_size=60)
begins = st.integers(0, 7 * 24 * 4).map(lambda quarters: NOON + timedelta(minutes=15 * quarters))


@given(policies, demands, begins)
def test_never_outside_the_bounds_and_only_by_rule(policy: PolicyTerms, demand: list[float], begin: datetime) -> None:
    for now, before, decision in run(policy, demand, begin):
        bounds = bounds_at(policy, now)
        target = decision.target
        if before or decision.rule is not Rule.KEEP:
            assert bounds.low <= target <= bounds.high
        assert decision.reason
        match decision.rule:
            case Rule.SCALE_OUT:
                assert before < target <= before + policy.scale_out_step
            case Rule.SCALE_IN:
                assert max(1, before - policy.scale_in_step) <= target < before
            case Rule.WAKE_UP:
                assert (before, target) == (0, max(1, bounds.low))
            case Rule.IDLE:
                assert target == 0
            case Rule.MINIMUM | Rule.MAXIMUM | Rule.SCHEDULE:
                assert target in {bounds.low, bounds.high}
            case _:
                assert target == before


@given(policies, demands, begins)
def test_cooldown_is_held(policy: PolicyTerms, demand: list[float], begin: datetime) -> None:
    changed: datetime | None = None
    at_once = {Rule.MINIMUM, Rule.MAXIMUM, Rule.SCHEDULE, Rule.WAKE_UP}
    for now, before, decision in run(policy, demand, begin):
        if decision.target == before:
            continue
        if changed is not None and decision.rule not in at_once:
            assert (now - changed).total_seconds() >= policy.cooldown_seconds
        changed = now


@given(policies, st.lists(st.floats(0, 1), min_size=1, max_size=80))
def test_oscillation_within_the_hysteresis_changes_nothing(policy: PolicyTerms, wobble: list[float]) -> None:
    policy = replace(policy, min_workers=1, windows=())
    inner = [policy.scale_in_share + (policy.scale_out_share - policy.scale_in_share) * part for part in wobble]
    assert {decision.target for _, _, decision in run(policy, inner)} == {1}


@given(policies, st.floats(0, 12))
def test_under_a_steady_load_no_step_in_is_undone(policy: PolicyTerms, wanted: float) -> None:
    policy = replace(policy, windows=())
    rules = [decision.rule for _, _, decision in run(policy, [wanted] * 200)]
    if Rule.SCALE_IN in rules:
        assert Rule.SCALE_OUT not in rules[rules.index(Rule.SCALE_IN) :]
