"""From Redis to rows: what runs twice, is lost, or comes late changes nothing and loses nothing."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, connections
from redis import Redis

from apps.ops.enums import LatencyLevel
from apps.ops.latency.roll_up import latency_expire, latency_roll_up
from apps.ops.latency.tiers import DAYS, HOURS, MINUTES, TEN_MINUTES, TIERS, Tier
from apps.ops.models import LatencyMark
from apps.ops.tasks import latency_expire_task, latency_roll_up_task
from headrace_wire.latency.measures import Measure, Tally
from headrace_wire.latency.store import minutes_waiting
from headrace_wire.latency.summary import SeriesKey, Summary
from tests.support.latencies import latencies_file, summary_of

pytestmark = pytest.mark.django_db

ANNA = SeriesKey("tiny", "a" * 32, "k1", "w1")
ANNA_KEPT = SeriesKey("tiny", "a" * 32, "k1")
BODO = SeriesKey("other", "b" * 32, "", "w2")
HOUR = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
"""Slots are kept for two hours by Redis' own clock, so tests are about this one."""


@pytest.fixture(autouse=True)
def _redis(live_redis: Redis) -> None:
    """Slots go there."""


def rows(tier: Tier) -> dict[tuple[datetime, str, str, str, str], int]:
    """Return how many requests each row has, by time, level, tenant, worker and deployment."""
    return {
        (row.at, row.level, row.tenant_ref[:1], row.worker, row.deployment): Summary.unpack(bytes(row.packed)).tally(
            Tally.REQUESTS
        )
        for row in tier.model._base_manager.all()
    }


def requests(tier: Tier) -> dict[datetime, int]:
    return {at: count for (at, level, *_), count in rows(tier).items() if level == LatencyLevel.ALL}


def after(minutes: float) -> datetime:
    return HOUR + timedelta(minutes=minutes)


def test_a_minute_has_a_row_for_each_scope() -> None:
    latency_roll_up(now=HOUR)
    latencies_file("g1-1", after(0), {ANNA: summary_of(0.1), ANNA_KEPT: summary_of(0.001)})
    latencies_file("g2-1", after(0.5), {ANNA: summary_of(0.3), BODO: summary_of(0.2, requests=4)})
    assert latency_roll_up(now=after(1.5)) == 10
    assert {key[1:]: count for key, count in rows(MINUTES).items()} == {
        ("all", "", "", ""): 7,
        ("deployment", "", "", "tiny"): 3,
        ("deployment", "", "", "other"): 4,
        ("tenant", "a", "", "tiny"): 3,
        ("tenant", "b", "", "other"): 4,
        ("worker", "", "w1", "tiny"): 2,
        ("worker", "", "w2", "other"): 4,
        ("series", "a", "w1", "tiny"): 2,
        ("series", "a", "", "tiny"): 1,
        ("series", "b", "w2", "other"): 4,
    }
    row = MINUTES.model._base_manager.get(level=LatencyLevel.DEPLOYMENT, deployment="tiny")
    summary = Summary.unpack(bytes(row.packed))
    assert summary.tally(Tally.REQUESTS) == 3
    assert summary.histograms[Measure.TTFT].quantile(1.0) == pytest.approx(0.3, rel=0.011)


def test_what_is_stored_is_not_due_any_more_and_a_second_run_changes_nothing(live_redis: Redis) -> None:
    latency_roll_up(now=HOUR)
    latencies_file("g1-1", after(0), {ANNA: summary_of()})
    latency_roll_up(now=after(1.5))
    assert minutes_waiting(live_redis) == {}
    before = rows(MINUTES)
    assert latency_roll_up(now=after(1.5)) == 0
    assert rows(MINUTES) == before


def test_a_minute_that_is_not_over_waits(live_redis: Redis) -> None:
    latencies_file("g1-1", after(0), {ANNA: summary_of()})
    assert latency_roll_up(now=after(1.1)) == 0, "gateways may still file its last slot"
    assert minutes_waiting(live_redis) == {int(HOUR.timestamp()): 1}


def test_what_is_filed_late_is_added_to_every_span_that_it_is_in() -> None:
    latency_roll_up(now=HOUR)
    latencies_file("g1-1", after(3), {ANNA: summary_of()})
    latency_roll_up(now=after(61))
    assert [requests(tier) for tier in TIERS] == [{after(3): 1}, {HOUR: 1}, {HOUR: 1}, {}]
    latencies_file("g2-1", after(3), {ANNA: summary_of()})
    latencies_file("g2-2", after(15), {ANNA: summary_of()})
    latency_roll_up(now=after(62))
    assert [requests(tier) for tier in TIERS] == [
        {after(3): 2, after(15): 1},
        {HOUR: 2, after(10): 1},
        {HOUR: 3},
        {},
    ]


def test_runs_that_were_lost_are_made_good_by_the_next(live_redis: Redis) -> None:
    latency_roll_up(now=HOUR)
    for minute in (0, 12, 40, 59):
        latencies_file(f"g1-{minute}", after(minute), {ANNA: summary_of()})
    latency_roll_up(now=after(75))
    assert requests(MINUTES) == {after(minute): 1 for minute in (0, 12, 40, 59)}
    assert requests(TEN_MINUTES) == {after(minute): 1 for minute in (0, 10, 40, 50)}
    assert requests(HOURS) == {HOUR: 4}
    assert minutes_waiting(live_redis) == {}


def test_a_day_is_summed_up_when_it_is_over() -> None:
    midnight = HOUR.replace(hour=0)
    day = timedelta(days=1)
    latency_roll_up(now=midnight)
    for hour in (3, 20):
        HOURS.model._base_manager.create(
            at=midnight + timedelta(hours=hour), level=LatencyLevel.ALL, packed=summary_of(requests=hour).pack()
        )
    latency_roll_up(now=midnight + day)
    assert requests(DAYS) == {}
    latency_roll_up(now=midnight + day + timedelta(minutes=2))
    assert requests(DAYS) == {midnight: 23}


def test_a_run_that_dies_before_its_end_has_done_nothing(live_redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    latency_roll_up(now=HOUR)
    latencies_file("g1-1", after(0), {ANNA: summary_of()})
    with monkeypatch.context() as broken:
        broken.setattr("apps.ops.latency.roll_up._rows_replace", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            latency_roll_up(now=after(1.5))
    assert minutes_waiting(live_redis) == {int(HOUR.timestamp()): 1}
    assert LatencyMark.objects.get(tier=MINUTES.name).until == after(-1)
    latency_roll_up(now=after(1.5))
    assert requests(MINUTES) == {HOUR: 1}


def test_minutes_that_are_half_gone_are_left_as_they_are(live_redis: Redis) -> None:
    latencies_file("g1-1", HOUR, {ANNA: summary_of()})
    assert latency_roll_up(now=HOUR + timedelta(hours=2, minutes=5)) == 0
    assert minutes_waiting(live_redis) == {}


@pytest.mark.django_db(transaction=True)
def test_two_beats_at_once_store_what_one_would() -> None:
    latency_roll_up(now=HOUR)
    for minute in range(5):
        latencies_file(f"g1-{minute}", after(minute), {ANNA: summary_of(), BODO: summary_of()})
    barrier, failures = threading.Barrier(2), []

    def beat() -> None:
        try:
            barrier.wait()
            latency_roll_up(now=after(12))
        except Exception as error:  # noqa: BLE001  # whatever it is, the test tells it
            failures.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=beat) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert requests(MINUTES) == {after(minute): 2 for minute in range(5)}
    assert requests(TEN_MINUTES) == {HOUR: 10}
    connection.close()


def test_old_rows_go() -> None:
    for tier in TIERS:
        for at in (HOUR - tier.kept - timedelta(hours=1), HOUR - tier.kept + timedelta(hours=1)):
            tier.model._base_manager.create(at=at, level=LatencyLevel.ALL, packed=summary_of().pack())
    assert latency_expire(now=HOUR) == len(TIERS)
    assert [tier.model._base_manager.count() for tier in TIERS] == [1] * len(TIERS)


def test_the_tasks_run() -> None:
    assert latency_roll_up_task() == 0
    assert latency_expire_task() == 0
