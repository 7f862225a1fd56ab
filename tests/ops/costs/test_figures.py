"""What must hold for all hours, all prices, all gaps and all tenants."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.ops.costs.figures import (
    HOUR,
    Terms,
    ToZero,
    Use,
    Used,
    costs_per_token,
    gaps_of,
    smaller_models,
    to_zero,
    use_of,
)
from tests.ops.costs.hours import Hour, sums_of

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
NAMES = ("large", "middle", "small")
TENANTS = ("acme", "globex")

shares = st.floats(0.0, 1.0)
amounts = st.just(0.0) | st.floats(1e-6, 1000.0)
"""Not so small that products have no digits left."""
hours_of_a_worker = st.lists(
    st.builds(
        Hour,
        there=st.none() | st.floats(0.001, 1.0),
        ready=shares,
        running=amounts,
        held=amounts,
        limit=st.none() | st.floats(1.0, 64.0),
        tokens=amounts,
        watts=st.none() | amounts,
        has_gpu=st.booleans(),
    ),
    max_size=12,
)
prices = st.none() | st.floats(0.0, 100.0)
terms = st.builds(
    Terms,
    places=st.none() | st.integers(1, 64),
    capacity=st.none() | amounts,
    gpus=st.integers(1, 8),
    worker_hour=prices,
    kwh=prices,
)
gaps = st.lists(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=30), max_size=8)
waits = st.floats(0.0, 40.0)


def used(**values: Any) -> Used:
    fields: dict[str, Any] = {"tenant_ref": "acme", "tenant": "Acme", "deployment": "large", "requests": 1}
    return Used(**{**fields, "tokens": 100, "charged_micros": 0, **values})


tenants_use = st.lists(
    st.builds(
        Used,
        tenant_ref=st.sampled_from(TENANTS),
        tenant=st.just("T"),
        deployment=st.sampled_from(NAMES),
        requests=st.integers(0, 10),
        tokens=st.integers(0, 10**9),
        charged_micros=st.integers(0, 10**9),
    ),
    max_size=10,
)


# ---- use


def test_an_hour_that_a_quarter_of_a_stream_ran_in_was_idle_for_three_quarters() -> None:
    hours = [Hour(running=0.25, tokens=10.0, watts=500.0), Hour(there=0.5, running=4.0, tokens=30.0)]
    use = use_of(sums_of(hours), Terms(capacity=30.0, worker_hour=2.0, kwh=0.4))
    assert (use.hours, use.idle_hours, use.busy_hours) == (1.5, 0.75, 0.75)
    assert use.idle_share == 0.5
    assert use.places_share == pytest.approx((0.25 + 0.5 * 4) / (1.5 * 8))
    assert use.tokens == pytest.approx(3600 * (10 + 15))
    assert use.capacity_share == pytest.approx(25 / 45)
    assert use.tokens_per_hour == pytest.approx(3600 * 25 / 1.5)
    assert use.known_kwh == 0.5
    assert use.powered_share == pytest.approx(2 / 3)
    assert use.tokens_per_kwh == pytest.approx(36_000 / 0.5), "only of the hour in which power was measured"
    assert use.known_cost == pytest.approx(1.5 * 2 + 0.5 * 0.4)
    assert use.known_idle_cost == pytest.approx(0.75 * 2), "without power"


def test_an_hour_of_two_gpus_is_two_gpu_hours() -> None:
    hours = [Hour(tokens=10.0, has_gpu=True), Hour(tokens=50.0)]
    use = use_of(sums_of(hours), Terms(gpus=2))
    assert (use.tokens_per_hour, use.tokens_per_gpu_hour) == (3600 * 30, 3600 * 5)
    assert use_of(sums_of([Hour(tokens=10.0)]), Terms(gpus=2)).tokens_per_gpu_hour is None


def test_what_is_not_known_is_not_zero() -> None:
    use = use_of(sums_of([Hour(limit=None)]), Terms())
    unknown = ("places_share", "capacity_share", "tokens_per_kwh", "known_kwh", "known_cost", "known_idle_cost")
    assert {name: getattr(use, name) for name in unknown} == dict.fromkeys(unknown)
    free = use_of(sums_of([Hour()]), Terms(worker_hour=0.0))
    assert (free.known_cost, free.known_idle_cost) == (0.0, 0.0)
    power = use_of(sums_of([Hour(watts=1000.0), Hour()]), Terms(kwh=0.5))
    assert (power.known_cost, power.costed_share, power.known_idle_cost) == (0.5, 0.5, None)
    assert use_of(sums_of([Hour(watts=1000.0)]), Terms()).known_cost is None
    assert use_of(sums_of([Hour()]), Terms(kwh=0.5)).known_cost is None


@given(hours_of_a_worker, terms)
def test_shares_are_shares_and_parts_are_parts(hours: list[Hour], given_terms: Terms) -> None:
    use = use_of(sums_of(hours), given_terms)
    for share in (use.idle_share, use.ready_share, use.powered_share, use.costed_share):
        assert share is None or -1e-9 <= share <= 1 + 1e-9
    assert use.busy_hours + use.idle_hours == pytest.approx(use.hours)
    assert (use.known_idle_cost or 0.0) <= (use.known_cost or 0.0) + 1e-6
    has_power = any(one.watts is not None for one in hours)
    is_known = given_terms.worker_hour is not None or (given_terms.kwh is not None and has_power)
    assert (use.known_cost is not None) == (is_known and bool(hours))


@given(hours_of_a_worker)
def test_nothing_is_busier_than_the_busiest_hour(hours: list[Hour]) -> None:
    busiest = max((one.tokens for one in hours), default=0.0)
    share = use_of(sums_of(hours), Terms(capacity=busiest)).capacity_share
    assert share is None or 0 <= share <= 1 + 1e-9


@given(hours_of_a_worker, hours_of_a_worker, terms)
def test_workers_add_up_to_their_deployment(one: list[Hour], other: list[Hour], given_terms: Terms) -> None:
    apart = use_of(sums_of(one), given_terms) + use_of(sums_of(other), given_terms)
    whole = use_of(sums_of([*one, *other]), given_terms)
    for name in Use.__dataclass_fields__:
        assert getattr(apart, name) == pytest.approx(getattr(whole, name), rel=1e-6, abs=1e-6), name


# ---- scale to zero


def test_a_gap_saves_what_is_left_of_it_after_the_wait_and_the_start() -> None:
    assert to_zero([[1.0, 1.0, 1.0], [2.0, 2.0], [1.0]], after_hours=1.25) == ToZero(2, 1.75 + 1.5)
    assert to_zero([[1.0]], after_hours=1.0) == ToZero()


def test_hours_that_do_not_follow_each_other_are_gaps_apart() -> None:
    quiet = [(NOON + number * HOUR, float(number)) for number in (0, 1, 3, 4, 5, 9)]
    assert list(gaps_of(quiet)) == [[0.0, 1.0], [3.0, 4.0, 5.0], [9.0]]
    assert list(gaps_of([])) == []


@given(st.sets(st.integers(0, 200)))
def test_gaps_have_every_quiet_hour_once(numbers: set[int]) -> None:
    quiet = [(NOON + number * HOUR, float(number)) for number in sorted(numbers)]
    found = list(gaps_of(quiet))
    assert [workers for gap in found for workers in gap] == [workers for _, workers in quiet]
    for gap in found:
        assert gap == [gap[0] + step for step in range(len(gap))]
        assert gap[0] - 1 not in numbers
        assert gap[-1] + 1 not in numbers


@given(gaps, waits, waits)
def test_who_waits_longer_saves_no_more(some: list[list[float]], one: float, other: float) -> None:
    shorter, longer = sorted((one, other))
    whole = sum(map(sum, some))
    assert 0 <= to_zero(some, after_hours=longer).hours <= to_zero(some, after_hours=shorter).hours + 1e-9
    assert to_zero(some, after_hours=shorter).hours <= whole + 1e-9
    assert to_zero(some, after_hours=0.0).hours == pytest.approx(whole)
    assert to_zero([gap for gap in some if len(gap) <= one], after_hours=one) == ToZero()


# ---- per token


def test_the_cheapest_one_that_the_tenant_sees() -> None:
    per_token = {"large": 3.0, "middle": 2.0, "small": 1.0}
    offered: dict[str, Sequence[str] | None] = {"large": None, "middle": None, "small": ["globex"]}
    (found,) = smaller_models([used()], per_token, offered)
    assert (found.other, found.cost, found.other_cost, found.saved) == ("middle", 300.0, 200.0, 100.0)
    (found,) = smaller_models([used(tenant_ref="globex")], per_token, offered)
    assert found.other == "small"
    assert smaller_models([used(deployment="middle")], per_token, offered) == [], "only a dearer one is offered"
    assert smaller_models([used(deployment="gone")], per_token, offered) == []
    assert smaller_models([used()], {"large": 3.0}, offered) == [], "of the others nothing is known"


@given(
    tenants_use,
    st.dictionaries(st.sampled_from(NAMES), st.floats(0.0, 10.0)),
    st.dictionaries(st.sampled_from(NAMES), st.none() | st.sets(st.sampled_from(TENANTS))),
)
def test_a_smaller_model_saves_something_and_is_seen(
    some: list[Used], per_token: dict[str, float], offered: dict[str, set[str] | None]
) -> None:
    for one in some:
        for found in smaller_models([one], per_token, offered):
            sees = offered[found.other]
            assert sees is None or one.tenant_ref in sees
            assert found.other != one.deployment
            assert per_token[found.other] < per_token[one.deployment]
            assert found.saved >= 0
    saved = [found.saved for found in smaller_models(some, per_token, offered)]
    assert saved == sorted(saved, reverse=True)


@given(tenants_use, st.dictionaries(st.sampled_from(NAMES), st.none() | st.floats(0.0, 1e6)))
def test_tenants_shares_add_up_to_the_cost(some: list[Used], costs: dict[str, float | None]) -> None:
    per_token = costs_per_token(costs, some)
    for name, one in per_token.items():
        assert sum(used.tokens * one for used in some if used.deployment == name) == pytest.approx(costs[name])
    for name, cost in costs.items():
        has_tokens = any(used.tokens for used in some if used.deployment == name)
        assert (name in per_token) == (cost is not None and has_tokens)
