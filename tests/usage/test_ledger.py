"""Exactly once, whatever is away, dies or cannot be read on the way; on a real Redis and a real database."""

from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, connections
from django.db.models import Sum
from redis import Redis

from apps.accounts.models import ApiKey
from apps.deployments.models import ModelDeployment
from apps.tenants.models import Membership, Tenant
from apps.usage import ledger
from apps.usage.models import UsageRecord, UsageRollup
from apps.usage.services import usage_record
from apps.usage.tasks import usage_collect_task
from headrace_wire import redis_keys
from headrace_wire.api_key import ApiKeyToken
from headrace_wire.messages import FinishReason, StreamState
from tests.support.database_outage import database_down

from .events import event, fields_of, waiting, write

pytestmark = pytest.mark.django_db


def counted(bucket: str = "day") -> int:
    total = UsageRollup.all_tenants.filter(bucket=bucket).aggregate(total=Sum("requests"))["total"]
    return int(total or 0)


def set_aside(redis: Redis) -> list[Any]:
    entries: Any = redis.xrange(redis_keys.usage_set_aside_key())
    return [fields for _, fields in entries]


def test_a_stream_is_stored_with_everything_that_it_names(
    live_redis: Redis, membership: Membership, issued: tuple[ApiKey, ApiKeyToken], deployment: ModelDeployment
) -> None:
    key, _ = issued
    ids: dict[str, Any] = {
        "tenant_id": membership.tenant_id.hex,
        "api_key_id": key.id.hex,
        "user_id": membership.user_id.hex,
        "deployment_id": deployment.id.hex,
    }
    cut = event("strm-1", **ids, owner="worker-1", state=StreamState.CANCELLED, finish_reason=FinishReason.ABORT)
    write(live_redis, cut, event("strm-2", **ids, owner="gateway-1"))
    assert usage_collect_task() == 2
    record = UsageRecord.objects.for_tenant(membership.tenant).get(stream_id="strm-1")
    assert (record.api_key, record.user, record.deployment) == (key, membership.user, deployment)
    assert (record.state, record.finish_reason, record.worker) == ("cancelled", "abort", "worker-1")
    assert not UsageRecord.all_tenants.get(stream_id="strm-2").worker, "a gateway ended what no worker had"
    assert (record.tenant_label, record.user_label, record.deployment_label) == ("Acme", "ann@example.com", "tiny")
    assert (record.ended_at - record.admitted_at).total_seconds() == 1.5
    for bucket in ("hour", "day"):
        total = UsageRollup.objects.for_tenant(membership.tenant).get(bucket=bucket)
        assert (total.requests, total.prompt_tokens, total.cached_tokens) == (2, 20, 8)
        assert (total.completion_tokens, total.cost_micros) == (10, 14)
    assert waiting(live_redis) == 0


def test_names_stay_when_what_they_name_is_gone(live_redis: Redis, tenant: Tenant, deployment: ModelDeployment) -> None:
    write(live_redis, event("strm-1", tenant_id=tenant.id.hex, deployment_id=deployment.id.hex))
    usage_collect_task()
    deployment.delete()
    tenant.delete()
    record = UsageRecord.all_tenants.get()
    assert (record.tenant, record.deployment) == (None, None)
    assert (record.tenant_label, record.deployment_label) == ("Acme", "tiny")
    assert counted() == 1


def test_an_event_that_comes_again_changes_nothing(live_redis: Redis) -> None:
    first = [event(f"strm-{number}") for number in range(5)]
    write(live_redis, *first)
    assert usage_collect_task() == 5
    # As after a crash between commit and delete: the same, with something new, and one twice in a batch.
    write(live_redis, *first, event("strm-5"), event("strm-5"))
    assert usage_collect_task() == 1
    assert (UsageRecord.all_tenants.count(), counted(), counted("hour")) == (6, 6, 6)
    assert waiting(live_redis) == 0


def test_it_goes_on_past_one_batch(live_redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "BATCH", 7)
    write(live_redis, *(event(f"strm-{number}") for number in range(20)))
    assert usage_collect_task() == 20
    assert counted() == 20


def test_the_first_name_of_a_stream_holds(live_redis: Redis) -> None:
    """Settlement writes one event a stream; a second one that says otherwise is not believed."""
    write(live_redis, event("strm-1", completion_tokens=5), event("strm-1", completion_tokens=500))
    usage_collect_task()
    assert UsageRecord.all_tenants.get().completion_tokens == 5


@pytest.mark.parametrize(
    "broken",
    [
        {"hello": "world"},
        {**fields_of(event("strm-x")), "state": "running"},
        {**fields_of(event("strm-x")), "state": "unheard of"},
        {**fields_of(event("strm-x")), "prompt": "many"},
        {**fields_of(event("strm-x")), "prompt": "-1"},
        {**fields_of(event("strm-x")), "cost": str(2**70)},
        {**fields_of(event("strm-x")), "ended_ms": str(2**62)},
        {**fields_of(event("strm-x")), "deployment": "x" * 5000},
        {**fields_of(event("strm-x")), "key": "a\0b"},
        {**fields_of(event("strm-x")), "deployment": b"\xff\xfe"},
        {**fields_of(event("strm-x")), "stream": ""},
    ],
)
def test_what_cannot_be_read_is_set_aside_and_stops_nobody(live_redis: Redis, broken: dict[Any, Any]) -> None:
    write(live_redis, event("strm-1"))
    live_redis.xadd(redis_keys.usage_key(), broken)
    write(live_redis, event("strm-2"))
    assert usage_collect_task() == 2
    assert waiting(live_redis) == 0
    (aside,) = set_aside(live_redis)
    assert b"problem" in aside
    assert counted() == 2


def test_what_the_database_refuses_is_set_aside_alone(live_redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """What slips through the checks: a text too long for its column, where the database counts (SQLite does not)."""
    counts = connection.vendor != "sqlite"
    monkeypatch.setattr(ledger, "LABEL_LENGTH", 10_000)
    write(live_redis, event("strm-1"), event("strm-2", deployment="x" * 300), event("strm-3"))
    assert usage_collect_task() == (2 if counts else 3)
    assert [aside[b"stream"] for aside in set_aside(live_redis)] == ([b"strm-2"] if counts else [])
    known = {"strm-1", "strm-3"} if counts else {"strm-1", "strm-2", "strm-3"}
    assert set(UsageRecord.all_tenants.values_list("stream_id", flat=True)) == known


def test_an_event_without_times_counts_when_it_came(live_redis: Redis) -> None:
    live_redis.xadd(redis_keys.usage_key(), fields_of(event("strm-1", admitted_ms=0, ended_ms=0)), id="1782909000000-0")
    assert usage_collect_task() == 1
    assert UsageRecord.all_tenants.get().admitted_at.isoformat() == "2026-07-01T12:30:00+00:00"


def test_what_was_set_aside_is_read_again_on_request(live_redis: Redis) -> None:
    live_redis.xadd(redis_keys.usage_key(), {**fields_of(event("strm-1")), "state": "of a newer version"})
    usage_collect_task()
    (aside,) = set_aside(live_redis)
    live_redis.delete(redis_keys.usage_set_aside_key())
    live_redis.xadd(redis_keys.usage_set_aside_key(), {**aside, b"state": b"finished"})
    out = StringIO()
    call_command("usage_retry", stdout=out)
    assert out.getvalue() == "1 moved back.\n"
    assert usage_collect_task() == 1
    assert set_aside(live_redis) == []


def test_one_at_a_time(live_redis: Redis) -> None:
    write(live_redis, event("strm-1"))
    with live_redis.lock(redis_keys.usage_lock_key(), timeout=30):
        assert usage_collect_task() == 0
    assert usage_collect_task() == 1
    assert not live_redis.exists(redis_keys.usage_lock_key())


@pytest.mark.django_db(transaction=True)
def test_a_database_that_is_away_loses_nothing(live_redis: Redis) -> None:
    write(live_redis, event("strm-1"))
    assert usage_collect_task() == 1
    with database_down():
        write(live_redis, event("strm-2"), event("strm-3"))
        assert usage_collect_task() == 0
        write(live_redis, event("strm-4"))
        assert usage_collect_task() == 0
        assert waiting(live_redis) == 3
        assert not live_redis.exists(redis_keys.usage_lock_key()), "the next one need not wait for the lock"
    assert usage_collect_task() == 3
    assert (UsageRecord.all_tenants.count(), counted(), set_aside(live_redis)) == (4, 4, [])


@pytest.mark.django_db(transaction=True)
def test_consumers_that_hold_no_lock_are_as_exact(live_redis: Redis) -> None:
    """The lock's time may end under a slow database; the same events then go to the ledger from two sides."""
    events = [event(f"strm-{number}", tenant_id=f"t{number % 3}") for number in range(120)]

    def store(shift: int) -> int:
        try:
            return sum(
                usage_record(events=events[start : start + 20])
                for start in (*range(shift, 120, 20), *range(0, shift, 20))
            )
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        stored = list(pool.map(store, (0, 20, 40, 60)))
    assert sum(stored) == 120
    assert (counted(), counted("hour")) == (120, 120)


@pytest.mark.parametrize("name", ["requests", "prompt_tokens", "cost_micros"])
def test_sums_are_never_negative(live_redis: Redis, name: str) -> None:
    write(live_redis, event("strm-1"))
    usage_collect_task()
    with pytest.raises(IntegrityError):
        UsageRollup.all_tenants.update(**{name: -1})
