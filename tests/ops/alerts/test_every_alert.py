"""Two hours of a deployment that goes wrong and gets well: each built-in alert fires once and is over once.

Gateways' slots, registrations of workers, queues and samples of the fleet are the real ones; only the time is moved.
Two beats look each minute.
"""

import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from importlib import import_module

import pytest
from django.apps import apps
from django.core.mail import EmailMessage
from django.db import connection
from django.utils import timezone
from redis import Redis

from apps.accounts.models import User
from apps.deployments.breaker_mirror import breakers_sync
from apps.deployments.fleet_mirror import workers_sync
from apps.deployments.models import ModelDeployment, Worker
from apps.ops.alerts.built_in import BUILT_IN_RULES
from apps.ops.alerts.enums import AlertState
from apps.ops.alerts.evaluation import alerts_evaluate
from apps.ops.alerts.sending import alerts_send
from apps.ops.latency.samples import fleet_sample_take
from apps.ops.models import Alert, AlertDelivery, AlertReceiver, AlertRule, ServiceObjective
from headrace_wire import codec, redis_keys
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.latency.measures import Tally
from headrace_wire.latency.summary import SeriesKey
from tests.support.latencies import latencies_file, summary_of

pytestmark = pytest.mark.django_db

BAD = range(10, 20)
"""Minutes."""
LOOKS = (*range(8, 22), *range(24, 76, 6))
"""Minutes in which something happens and somebody looks."""
LEFT_MINUTES = 110
"""The story begins so long ago: all of it is within what Redis has."""


@pytest.fixture
def rules(admin_user: User, deployment: ModelDeployment) -> Iterator[None]:
    AlertRule.objects.all().delete()
    AlertReceiver.objects.all().delete()
    for migration in ("0009_alert_rules", "0018_healing_rules"):
        import_module(f"apps.ops.migrations.{migration}").seed(apps, connection.schema_editor())
    ModelDeployment.objects.filter(pk=deployment.pk).update(is_breaker_on=True)
    ServiceObjective.objects.create(deployment=deployment, indicator="ttft", goal_seconds=0.5, target_percent=95)
    yield
    AlertRule.objects.all().delete()


def minute_pass(redis: Redis, minute: int, at: datetime) -> None:
    """What gateways, the worker and Celery do within it."""
    is_bad = minute in BAD
    requests = 10 if minute < BAD.start else 100 if is_bad else 6000
    summary = summary_of(3.0 if is_bad else 0.1, requests=requests)
    if is_bad:
        summary.count(Tally.ERRORS, requests // 2)
    latencies_file(f"g-{minute}", at - timedelta(seconds=20), {SeriesKey("tiny", "t", "k", "w"): summary})
    info = WorkerInfo(
        "w",
        "tiny",
        "simulated",
        WorkerState.BROKEN if is_bad else WorkerState.READY,
        "here",
        1,
        at.timestamp(),
        kv_cache_usage=0.97 if is_bad else 0.2,
        memory_usage=0.95 if is_bad else 0.5,
        engine_failures=6 if is_bad else 0,
        quarantined_at=at.timestamp() if is_bad else 0.0,
    )
    redis.hset(redis_keys.workers_key(), "w", codec.encode(info))
    redis.zadd(redis_keys.incarnations_key(), {"w": (time.time() + 3600) * 1000})
    redis.delete(redis_keys.waiting_key("tiny"))
    if is_bad:
        redis.sadd(redis_keys.waiting_key("tiny"), *(f"strm-{number}" for number in range(150)))
    breaker = redis_keys.breaker_key(ModelDeployment.objects.get(name="tiny").pk.hex)
    redis.delete(breaker)
    if is_bad:
        Worker.objects.create(
            incarnation=f"lost-{minute}",
            deployment_name="tiny",
            engine="simulated",
            state="lost",
            host="here",
            pid=2,
            started_at=at,
            last_seen_at=at,
            ended_at=at,
        )
        redis.hset(
            breaker,
            mapping={"state": "open", "reason": "errors", "since": int(at.timestamp() * 1000)},
        )
    workers_sync()
    breakers_sync()
    fleet_sample_take(now=at - timedelta(seconds=20))


def test_every_built_in_alert_fires_once_and_is_over_once(
    rules: None, live_redis: Redis, mailoutbox: list[EmailMessage]
) -> None:
    begin = timezone.now().replace(second=30, microsecond=0) - timedelta(minutes=LEFT_MINUTES)
    open_in_bad: set[str] = set()
    for minute in LOOKS:
        at = begin + timedelta(minutes=minute)
        minute_pass(live_redis, minute, at)
        for _beat in range(2):
            alerts_evaluate(now=at)
        alerts_send()
        firing = set(Alert.objects.filter(state=AlertState.FIRING).values_list("rule_key", flat=True))
        if minute < BAD.start:
            assert firing == set(), minute
        elif minute in BAD:
            open_in_bad |= firing
    keys = sorted(rule.key for rule in BUILT_IN_RULES)
    assert sorted(open_in_bad) == keys
    assert sorted(Alert.objects.values_list("rule_key", flat=True)) == keys
    assert set(Alert.objects.values_list("state", flat=True)) == {AlertState.RESOLVED}
    events = Counter(AlertDelivery.objects.values_list("alert__rule_key", "event"))
    assert events == Counter((key, event) for key in keys for event in ("fired", "resolved"))
    assert AlertDelivery.objects.filter(delivered_at__isnull=True).count() == 0
    assert len(mailoutbox) == 2 * len(keys)
    alert = Alert.objects.get(rule_key="ttft-p95")
    assert alert.worst_value == pytest.approx(3.0, rel=0.02)
    assert alert.fired_at is not None
    assert begin + timedelta(minutes=BAD.start) <= alert.since <= begin + timedelta(minutes=BAD.start + 5)
    assert alert.fired_at - alert.since >= timedelta(seconds=120)
