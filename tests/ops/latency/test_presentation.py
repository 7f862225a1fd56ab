from datetime import UTC, datetime, timedelta

import pytest

from apps.deployments.models import ModelDeployment
from apps.ops.latency.goals import USUAL, Goal, error_goal_for, goals_for
from apps.ops.latency.panels import PANELS, QUANTILES, TILES
from apps.ops.latency.presentation import goals_json, numbers_json
from apps.ops.latency.scopes import FleetPoint, LatencyPoint, TimeRange
from apps.ops.models import ServiceObjective
from apps.ops.objectives.enums import Indicator
from headrace_wire.latency.measures import PHASES, Measure, Tally

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
RANGE = TimeRange(NOON, NOON + 3 * MINUTE, MINUTE)


def point(minute: int, requests: int = 10) -> LatencyPoint:
    """A minute in which each request took 0.1 s and more, a phase of it 10 ms and more, and 6 tokens."""
    made = LatencyPoint(at=NOON + minute * MINUTE)
    for number in range(requests):
        for phase in PHASES:
            made.histogram(phase).add(0.010 + number / 1000)
        made.histogram(Measure.TTFT).add(len(PHASES) * (0.010 + number / 1000))
    made.count(Tally.REQUESTS, requests)
    made.count(Tally.TOKENS, 6 * requests)
    return made


def test_quantiles_rates_and_shares_of_each_point_and_of_all() -> None:
    busy = point(0)
    busy.count(Tally.ERRORS, 1)
    busy.count(Tally.PROMPT_TOKENS, 100)
    busy.count(Tally.CACHED_TOKENS, 25)
    told = numbers_json(RANGE, [busy, LatencyPoint(at=NOON + MINUTE), point(2)], None, now=NOON + 4 * MINUTE)
    series, totals = told["series"], told["totals"]
    assert told["at"] == [int((NOON + minute * MINUTE).timestamp()) for minute in range(3)]
    assert series["ttft.p50"][0] == pytest.approx(6 * 0.014, rel=0.02)
    assert series["ttft.p99"] == [pytest.approx(6 * 0.019, rel=0.02), None, pytest.approx(6 * 0.019, rel=0.02)]
    assert series["count.requests"] == [10, 0, 10]
    assert series["rate.tokens"] == [1.0, 0.0, 1.0]
    assert series["share.errors"] == [0.1, None, 0.0]
    assert series["share.cached"] == [0.25, None, None]
    assert (totals["count.requests"], totals["share.errors"]) == (20, 0.05)
    assert totals["rate.tokens"] == pytest.approx(120 / 180, rel=0.001)


def test_phases_add_up_to_the_mean_also_where_few_have_one() -> None:
    some = point(0)
    some.histograms[Measure.GUARD].counts.clear()
    some.histograms[Measure.GUARD].sum_seconds = 0.0
    some.histogram(Measure.GUARD).add(0.5)
    told = numbers_json(RANGE, [some], None, now=NOON + MINUTE)
    shares = [told["totals"][f"{phase}.share"] for phase in PHASES]
    others = 5 * 0.0145
    assert sum(shares) == pytest.approx(others + 0.05, rel=0.01)
    assert told["totals"]["guard.p50"] == pytest.approx(0.5, rel=0.02), "by itself it is as long as it is"


def test_a_step_that_is_not_over_has_no_rates_until_they_say_something() -> None:
    told = numbers_json(RANGE, [point(0), point(1), point(2)], None, now=NOON + timedelta(seconds=80))
    assert len(told["at"]) == 2, "a step that has not begun is not a point"
    assert told["series"]["rate.requests"] == [pytest.approx(10 / 60, rel=0.001), None]
    assert told["series"]["count.requests"] == [10, 10]
    hours = TimeRange(NOON, NOON + timedelta(hours=1), timedelta(hours=1))
    told = numbers_json(hours, [point(0)], None, now=NOON + timedelta(seconds=410))
    assert told["series"]["rate.requests"] == [0.025]


def test_what_a_breaker_did_is_told_where_it_did_something() -> None:
    quiet, diverted = point(0), LatencyPoint(at=NOON + MINUTE)
    diverted.count(Tally.DIVERTED, 4)
    told = numbers_json(RANGE, [quiet, diverted], None, now=NOON + 2 * MINUTE)
    assert told["series"]["count.diverted"] == [0, 4]
    assert told["totals"]["count.diverted"] == 4
    assert "count.turned_away" not in told["series"]
    assert "count.diverted" not in numbers_json(RANGE, [quiet], None, now=NOON + MINUTE)["series"]


def test_what_could_not_begin_is_at_most_all() -> None:
    refused = LatencyPoint(at=NOON)
    refused.count(Tally.ERRORS, 3)
    assert numbers_json(RANGE, [refused], None, now=NOON + MINUTE)["totals"]["share.errors"] == 1.0


def test_samples_stand_at_their_points_and_the_last_is_the_total() -> None:
    fleet = [FleetPoint(at=NOON, running=3.0), FleetPoint(at=NOON + 2 * MINUTE, running=5.0, gpu_power_watts=300.5)]
    points = [point(minute) for minute in range(3)]
    told = numbers_json(RANGE, points, fleet, now=NOON + 3 * MINUTE)
    assert told["series"]["fleet.running"] == [3.0, None, 5.0]
    assert told["series"]["fleet.gpu_power_watts"] == [None, None, 300.5]
    assert told["totals"]["fleet.running"] == 5.0
    assert not any(name.startswith("fleet.") for name in numbers_json(RANGE, points, None, now=NOON)["series"])


def test_every_line_of_a_panel_is_a_series_that_exists() -> None:
    full = point(0)
    for measure in Measure:
        full.histogram(measure).add(0.1)
    for tally in Tally:
        full.count(tally, 1)
    series = numbers_json(RANGE, [full], [FleetPoint(at=NOON)], now=NOON + MINUTE)["series"]
    drawn = {line.series for panel in PANELS for line in panel.lines}
    drawn |= {line.series for panel in PANELS for variant in panel.variants for line in variant.lines}
    drawn |= {panel.total.series for panel in PANELS if panel.total is not None}
    drawn |= {tile.series for tile in TILES}
    assert drawn <= set(series)
    assert {f"{measure}.{name}" for measure in PHASES for name in QUANTILES} <= drawn


def test_every_goal_has_its_line() -> None:
    drawn = {name for panel in PANELS for name in panel.goals}
    durations = [indicator for indicator in Indicator if indicator is not Indicator.ERRORS]
    of_durations = goals_json(Goal(Measure(one), share, 1.0) for one in durations for share in QUANTILES.values())
    assert len(of_durations) == len(durations) * len(QUANTILES)
    assert set(of_durations) | {"share.errors"} | set(goals_json(USUAL)) <= drawn


def test_the_usual_goals() -> None:
    assert goals_json(USUAL) == {"ttft.p50": 0.2, "ttft.p95": 0.5, "ttft.p99": 2.0}


@pytest.mark.django_db
def test_objectives_are_goals(deployment: ModelDeployment) -> None:
    for indicator, target, goal in (("queue", 95, 0.1), ("errors", 99, None), ("errors", 99.5, None)):
        ServiceObjective.objects.create(
            deployment=deployment, indicator=indicator, target_percent=target, goal_seconds=goal
        )
    goals = goals_json(goals_for(deployment.name), error_goal_for(deployment.name))
    assert goals == {**goals_json(USUAL), "queue.p95": 0.1, "share.errors": 0.005}
    assert error_goal_for(None) is None
