"""Error budgets and burn rates are counted from what gateways measured, and goals are a deployment's own."""

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from apps.deployments.models import ModelDeployment
from apps.ops.latency.goals import USUAL, Goal, goals_for
from apps.ops.models import ServiceObjective
from apps.ops.objectives.budgets import budget_of, burn_rate, spent_of, totals_until
from headrace_wire.latency.measures import Measure, Tally
from headrace_wire.latency.summary import SeriesKey, Summary
from tests.support.latencies import latencies_file, summary_of


def objective(deployment: ModelDeployment, **values: object) -> ServiceObjective:
    fields = {"indicator": "ttft", "goal_seconds": 0.5, "target_percent": 90.0, **values}
    row = ServiceObjective(deployment=deployment, **fields)
    row.full_clean()
    row.save()
    return row


def file(minutes: int, *, good: int, bad: int, errors: int = 0) -> None:
    """What a gateway files so many minutes ago."""
    summary = summary_of(0.1, requests=good)
    summary.merge(summary_of(3.0, requests=bad))
    summary.count(Tally.ERRORS, errors)
    latencies_file(f"g-{minutes}", timezone.now() - timedelta(minutes=minutes), {SeriesKey("tiny", "t"): summary})


@pytest.mark.django_db
def test_a_budget_is_spent_by_requests_that_took_too_long(deployment: ModelDeployment, live_redis: Redis) -> None:
    row = objective(deployment)
    file(2, good=50, bad=50)
    file(40, good=900, bad=0)
    total_of = totals_until(timezone.now())
    budget = budget_of(row, total_of)
    assert [budget.spent.requests, budget.spent.bad] == pytest.approx([1000, 50])
    assert [budget.allowed, budget.left] == pytest.approx([100, 0.5])
    assert burn_rate(row, 300, total_of) == pytest.approx(5.0), "half of them were bad, a tenth may be"
    assert burn_rate(row, 3600, total_of) == pytest.approx(0.5)


@pytest.mark.django_db
def test_errors_are_counted_by_streams_that_failed(deployment: ModelDeployment, live_redis: Redis) -> None:
    row = objective(deployment, indicator="errors", target_percent=99.0)
    assert row.goal_seconds is None
    file(2, good=100, bad=0, errors=5)
    assert burn_rate(row, 3600, totals_until(timezone.now())) == pytest.approx(5.0)
    assert budget_of(row, totals_until(timezone.now())).left == pytest.approx(-4.0)


@pytest.mark.django_db
def test_without_requests_the_budget_is_whole(deployment: ModelDeployment, live_redis: Redis) -> None:
    row = objective(deployment)
    assert budget_of(row, totals_until(timezone.now())).left == 1.0
    assert burn_rate(row, 3600, totals_until(timezone.now())) == 0.0


@given(durations=st.lists(st.floats(0.001, 10), min_size=1, max_size=200), goal=st.floats(0.01, 5))
def test_what_is_bad_is_counted_within_a_bucket(durations: list[float], goal: float) -> None:
    row = ServiceObjective(indicator="ttft", goal_seconds=goal, target_percent=95.0)
    summary = Summary()
    for seconds in durations:
        summary.histogram(Measure.TTFT).add(seconds)
    spent = spent_of(row, summary)
    surely, perhaps = (sum(one > goal * factor for one in durations) for factor in (1.0201, 1 / 1.0201))
    assert surely <= spent.bad <= perhaps
    assert spent.requests == len(durations)


@pytest.mark.django_db
def test_goals_are_the_deployments_own_where_it_has_some(deployment: ModelDeployment) -> None:
    assert goals_for(None) == goals_for("tiny") == goals_for("unknown") == USUAL
    objective(deployment, indicator="tpot", goal_seconds=0.05, target_percent=99.0)
    objective(deployment, indicator="errors", target_percent=99.0)
    tpot = Goal(Measure.TPOT, 0.99, 0.05)
    assert goals_for("tiny") == (*USUAL, tpot)
    objective(deployment, goal_seconds=1.0, target_percent=95.0)
    assert set(goals_for("tiny")) == {tpot, Goal(Measure.TTFT, 0.95, 1.0)}


@pytest.mark.django_db
@pytest.mark.parametrize(
    "wrong",
    [
        {"goal_seconds": None},
        {"goal_seconds": 0.0},
        {"target_percent": 100.0},
        {"target_percent": 0.5},
        {"window_days": 91},
        {"window_days": 0},
        {"indicator": "luck"},
    ],
)
def test_an_objective_that_cannot_be_is_refused(deployment: ModelDeployment, wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        objective(deployment, **wrong)
    objective(deployment)
    with pytest.raises(IntegrityError), transaction.atomic():
        ServiceObjective.objects.update(**wrong)
