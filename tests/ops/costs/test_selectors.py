"""Costs from rows: samples, prices, policies, workers and the ledger."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries

from apps.deployments.enums import EngineKind, WorkerState
from apps.deployments.models import AutoscalePolicy, ModelDeployment, Worker
from apps.ops.costs.asked import STEPS, CostAsked
from apps.ops.costs.figures import Terms, Use, use_of
from apps.ops.costs.readings import known_deployments, sums_by_worker
from apps.ops.costs.selectors import CostReport, DeploymentCost, cost_points, cost_report, cost_total
from apps.ops.latency.scopes import TimeRange
from apps.tenants.models import Tenant
from apps.usage.services import usage_record
from tests.ops.costs.hours import HOUR, Hour, seed, sums_of
from tests.usage.events import event

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
START = NOW - 24 * HOUR
DAY = TimeRange(START, NOW, HOUR)


def deploy(name: str, **values: Any) -> ModelDeployment:
    row = ModelDeployment(name=name, model="m", **values)
    row.full_clean()
    row.save()
    return row


def register(incarnation: str, deployment: str, **values: Any) -> Worker:
    fields = {"engine": EngineKind.SIMULATED, "state": WorkerState.READY, "host": "h", "pid": 1, "max_num_seqs": 8}
    times = {"started_at": START, "last_seen_at": NOW}
    return Worker.objects.create(incarnation=incarnation, deployment_name=deployment, **{**fields, **times, **values})


def use(tenant: Tenant, deployment: str, tokens: int, *, at: datetime = START + HOUR, **values: Any) -> None:
    """A stream with so many computed tokens."""
    counts = {"prompt_tokens": 10, "cached_tokens": 10, "completion_tokens": tokens}
    one = event(
        f"strm-{tenant.slug}-{deployment}-{tokens}-{at:%d%H}", tenant_id=tenant.pk.hex, deployment=deployment,
        admitted_at=at, **{**counts, **values},
    )  # fmt: skip
    usage_record(events=[one])


def the_one(report: CostReport, name: str) -> DeploymentCost:
    (found,) = [one for one in report.deployments if one.name == name]
    return found


def random_hours(random: Random, count: int) -> list[Hour]:
    return [
        Hour(
            there=random.choice([None, 1.0, random.random()]),
            ready=random.random(),
            running=random.choice([0.0, random.random(), 5 * random.random()]),
            held=random.choice([0.0, random.random()]),
            limit=random.choice([None, 4.0, 8.0]),
            tokens=random.choice([0.0, 100 * random.random()]),
            watts=random.choice([None, 700 * random.random()]),
            has_gpu=random.choice([True, False]),
        )
        for _ in range(count)
    ]


def test_the_database_sums_up_as_python_does() -> None:
    random = Random(9)
    hours = {(name, f"{name}-{number}"): random_hours(random, 20) for name in ("a", "b") for number in range(3)}
    seed(hours, START)
    found = {(name, worker): sums for name, worker, sums in sums_by_worker(DAY)}
    assert found.keys() == hours.keys()
    for whose, sums in found.items():
        assert tuple(sums) == pytest.approx(tuple(sums_of(hours[whose]))), whose
    assert list(sums_by_worker(TimeRange(NOW, NOW + HOUR, HOUR))) == []


@pytest.mark.parametrize("step", [HOUR, timedelta(hours=6)])
def test_points_and_tables_tell_the_same(tenant: Tenant, step: timedelta) -> None:
    for name in ("a", "b"):
        deploy(name, worker_hour_cost=Decimal("2.5"), kwh_cost=Decimal("0.3"))
    random = Random(10)
    seed({(name, f"{name}-{number}"): random_hours(random, 24) for name in ("a", "b") for number in range(2)}, START)
    use(tenant, "a", 100)
    use(tenant, "b", 50, at=START + 5 * HOUR)
    time_range = TimeRange(START, NOW, step)
    points = cost_points(time_range, None, known_deployments())
    assert [point.at for point in points] == list(time_range.steps())
    total, report = cost_total(points, START), cost_report(time_range, None)
    tabled = sum((one.use for one in report.deployments), Use())
    for name in Use.__dataclass_fields__:
        assert getattr(total.use, name) == pytest.approx(getattr(tabled, name)), name
    assert (total.requests, total.charged_micros) == (2, 14)
    assert sum(one.charged_micros for one in report.tenants) == 14
    assert report.hours_sampled == 24
    one = cost_total(cost_points(time_range, "a", known_deployments()), START)
    assert one.use.hours == pytest.approx(the_one(report, "a").use.hours)
    assert one.requests == 1
    assert [row.name for row in cost_report(time_range, "a").deployments] == ["a"]


def test_the_busiest_hour_may_lie_before_the_range() -> None:
    deploy("a")
    seed({("a", "w"): [Hour(tokens=40.0)]}, START - 48 * HOUR)
    seed({("a", "w"): [Hour(tokens=10.0)] * 2}, START)
    (found,) = cost_report(DAY, None).deployments
    assert found.use.capacity_share == 0.25


def test_what_is_not_given_is_not_known(tenant: Tenant) -> None:
    deploy("a", max_num_seqs=4)
    seed({("a", "w"): [Hour(limit=None, running=1.0, tokens=5.0)]}, START)
    use(tenant, "a", 100)
    report = cost_report(DAY, None)
    found = the_one(report, "a")
    assert found.use.places_share == 0.25, "as many places as the deployment has"
    assert (found.use.known_cost, found.use.known_kwh, found.per_token, found.to_zero_saved) == (None,) * 4
    assert not report.is_cost_known
    assert not report.is_power_known
    assert [one.share for one in report.tenants] == [None]
    assert report.smaller == []


def test_a_deployment_that_is_gone_keeps_its_hours(tenant: Tenant) -> None:
    seed({("gone", "w"): [Hour(limit=None, tokens=5.0)]}, START)
    use(tenant, "gone", 100)
    found = the_one(cost_report(DAY, None), "gone")
    assert (found.use.hours, found.requests, found.terms) == (1.0, 1, Terms(capacity=None))
    assert found.use.places_share is None


def test_workers_have_names_while_they_are_known() -> None:
    register("w1", "a")
    seed({("a", "w1"): [Hour()], ("a", "w2"): [Hour()] * 3}, START)
    assert [one.name for one in cost_report(DAY, None).workers] == ["w2", "a on h (1)"], "most hours first"


def test_tenants_share_what_a_deployment_cost_by_computed_tokens(tenant: Tenant, other_tenant: Tenant) -> None:
    deploy("a", worker_hour_cost=Decimal(3))
    seed({("a", "w"): [Hour(tokens=1.0)] * 4}, START)
    use(tenant, "a", 100, prompt_tokens=300, cached_tokens=200)
    use(other_tenant, "a", 600)
    report = cost_report(DAY, None)
    assert {one.name: one.share for one in report.tenants} == {"Acme": pytest.approx(3.0), "Globex": pytest.approx(9.0)}
    assert the_one(report, "a").per_token == pytest.approx(12 / 800)


# ---- what would have cost less


def quiet_day(busy: Sequence[int]) -> list[Hour]:
    return [Hour(tokens=10.0, running=1.0) if hour in busy else Hour() for hour in range(24)]


def test_gaps_longer_than_the_policys_wait_and_a_start_would_have_been_saved() -> None:
    row = deploy("a", worker_hour_cost=Decimal(2))
    seed({("a", "w1"): quiet_day([10, 12]), ("a", "w2"): quiet_day([10])}, START)
    found = the_one(cost_report(DAY, None), "a")
    assert (found.idle_seconds, found.start_seconds, found.is_start_measured) == (900.0, 60.0, False)
    after = 960 / 3600
    # Ten hours before the first request, one between, eleven after the second, of two workers each.
    assert found.to_zero.gaps == 3
    assert found.to_zero.hours == pytest.approx(2 * (10 + 1 + 11 - 3 * after))
    assert found.to_zero_saved == pytest.approx(2 * found.to_zero.hours)
    AutoscalePolicy.objects.create(deployment=row, idle_seconds=3600.0, min_workers=0)
    register("w1", "a", cold_start_seconds=1800.0)
    register("w2", "a", cold_start_seconds=20.0)
    found = the_one(cost_report(DAY, None), "a")
    assert (found.idle_seconds, found.start_seconds, found.is_start_measured) == (3600.0, 1800.0, True)
    assert found.to_zero.gaps == 2
    assert found.to_zero.hours == pytest.approx(2 * (10 + 11 - 2 * 1.5))


@pytest.mark.parametrize("change", [{"held": 0.5}, {"tokens": 0.1}])
def test_an_hour_that_somebody_used_is_no_gap(change: dict[str, Any]) -> None:
    seed({("a", "w"): [Hour(**change)] * 24}, START)
    assert the_one(cost_report(DAY, None), "a").to_zero.gaps == 0


def test_who_has_no_worker_has_nothing_to_save(tenant: Tenant) -> None:
    use(tenant, "a", 100)
    assert the_one(cost_report(DAY, None), "a").to_zero.hours == 0


def test_a_smaller_model_is_one_that_the_tenant_sees(tenant: Tenant, other_tenant: Tenant) -> None:
    deploy("large", worker_hour_cost=Decimal(10))
    small = deploy("small", worker_hour_cost=Decimal(1), is_restricted=True)
    small.visible_tenants.add(tenant)
    deploy("off", worker_hour_cost=Decimal("0.1"), is_active=False)
    seed({(name, f"{name}-w"): [Hour(tokens=1.0)] for name in ("large", "small", "off")}, START)
    for who in (tenant, other_tenant):
        for name in ("large", "small", "off"):
            use(who, name, 100)
    (found,) = cost_report(DAY, None).smaller
    assert (found.tenant, found.deployment, found.other) == ("Acme", "large", "small")
    assert found.cost == pytest.approx(5.0)
    assert found.other_cost == pytest.approx(0.5)
    assert cost_report(DAY, "large").smaller == [found], "looked for among all of them"
    assert cost_report(DAY, "small").smaller == []


# ---- prices, ranges, queries


@pytest.mark.parametrize("name", list(STEPS))
def test_ranges_are_whole_steps_up_to_now(name: str) -> None:
    now = NOW + timedelta(minutes=17)
    found = CostAsked(None, name, "before", None).time_range(now)
    assert found.start < now <= found.end
    assert (found.end - found.start) % found.step == timedelta()
    assert len(list(found.steps())) <= 240
    past = CostAsked(None, name, "", NOW - timedelta(days=3)).time_range(now)
    assert past.end == NOW - timedelta(days=3) or past.step == timedelta(days=1)


def test_it_takes_a_fixed_number_of_queries(tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    def fill(first: int, count: int) -> None:
        for number in range(first, first + count):
            row = deploy(f"d{number}", worker_hour_cost=Decimal(1 + number), is_restricted=True)
            row.visible_tenants.add(tenant)
            register(f"w{number}", row.name)
            seed({(row.name, f"w{number}"): quiet_day([3])}, START)
            use(tenant, row.name, 100)

    fill(0, 1)
    for count in (0, 15):
        fill(1, count)
        with django_assert_num_queries(8):
            cost_report(DAY, None)
        known = known_deployments()
        with django_assert_num_queries(2):
            cost_points(DAY, None, known)


def test_sums_of_hours_are_of_the_range_alone() -> None:
    seed({("a", "w"): [Hour()] * 30}, START - 3 * HOUR)
    assert use_of(next(iter(sums_by_worker(DAY)))[2], Terms()).hours == 24
