"""Exactly once, whatever is away, dies or cannot be read on the way; on a real Redis and a real database."""

from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any

import msgspec
import pytest
from django.core.management import call_command
from django.db import connections
from redis import Redis

from apps.guardrails import intervention_collector
from apps.guardrails.intervention_records import interventions_record
from apps.guardrails.models import Intervention
from apps.guardrails.tasks import interventions_collect_task
from apps.tenants.models import Tenant
from headrace_wire import redis_keys
from headrace_wire.guard_policy import Direction
from headrace_wire.interventions import Outcome
from tests.support.database_outage import database_down

from .found import found, waiting, write
from .policies import card_rule, saved_policy

pytestmark = pytest.mark.django_db


def set_aside(redis: Redis) -> list[Any]:
    entries: Any = redis.xrange(redis_keys.interventions_set_aside_key())
    return [fields for _, fields in entries]


def stored() -> set[str]:
    return set(Intervention.all_tenants.values_list("stream_id", flat=True))


def test_it_is_stored_with_everything_that_it_names(live_redis: Redis, tenant: Tenant) -> None:
    rule = card_rule(name="No cards")
    policy = saved_policy(tenant, rule)
    ids = {"tenant_id": tenant.id.hex, "policy": policy.id.hex, "rule": rule.id.hex}
    write(live_redis, found(**ids, direction=Direction.INPUT, is_shadow=True))
    assert interventions_collect_task() == 1
    row = Intervention.objects.for_tenant(tenant).get()
    assert row.policy_version == policy.versions.get()
    assert (row.tenant_label, row.policy_label, row.rule_label, row.policy_number) == ("Acme", "Cards", "No cards", 1)
    assert (row.rule_kind, row.finding, row.direction) == ("personal_data", "CREDIT_CARD", "input")
    assert (row.action, row.outcome, row.is_shadow, row.start, row.end) == ("mask", "masked", True, 10, 26)
    assert (row.excerpt, row.held_ms, row.deployment_label) == ("4…1 (16 characters)", 12.5, "tiny")
    assert row.occurred_at.isoformat() == "2026-07-01T12:30:00+00:00"
    assert waiting(live_redis) == 0


def test_names_stay_when_what_they_name_is_gone(live_redis: Redis, tenant: Tenant) -> None:
    policy = saved_policy(tenant)
    write(live_redis, found(tenant_id=tenant.id.hex, policy=policy.id.hex))
    interventions_collect_task()
    tenant.delete()
    row = Intervention.all_tenants.get()
    assert (row.tenant, row.policy_version, row.tenant_label, row.policy_label) == (None, None, "Acme", "Cards")


def test_what_comes_again_changes_nothing(live_redis: Redis) -> None:
    """A takeover judges again what its predecessor has judged."""
    write(live_redis, found("strm-1"), found("strm-2"))
    assert interventions_collect_task() == 2
    write(live_redis, found("strm-1", held_ms=99.0), found("strm-1", start=500), found("strm-3"), found("strm-3"))
    assert interventions_collect_task() == 2
    assert Intervention.all_tenants.count() == 4
    assert Intervention.all_tenants.get(stream_id="strm-1", start=10).held_ms == 12.5


def test_it_goes_on_past_one_batch(live_redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervention_collector, "BATCH", 7)
    write(live_redis, *(found(f"strm-{number}") for number in range(20)))
    assert interventions_collect_task() == 20


@pytest.mark.parametrize(
    "broken",
    [
        {"hello": "world"},
        {"d": b"\xc1"},
        {"d": msgspec.msgpack.encode({"stream_id": "strm-x"})},
        {"d": msgspec.msgpack.encode({**msgspec.to_builtins(found("strm-x")), "outcome": "of a newer version"})},
        {"d": msgspec.msgpack.encode(found("strm-x", rule_kind="of a newer version"))},
        {"d": msgspec.msgpack.encode(found(""))},
        {"d": msgspec.msgpack.encode(found("x" * 65))},
        {"d": msgspec.msgpack.encode(found("strm-x", policy="a\0b"))},
        {"d": msgspec.msgpack.encode(found("strm-x", start=-1))},
        {"d": msgspec.msgpack.encode(found("strm-x", end=2**40))},
        {"d": msgspec.msgpack.encode(found("strm-x", occurred_at=1e18))},
    ],
)
def test_what_cannot_be_read_is_set_aside_and_stops_nobody(live_redis: Redis, broken: dict[Any, Any]) -> None:
    write(live_redis, found("strm-1"))
    live_redis.xadd(redis_keys.interventions_key(), broken)
    write(live_redis, found("strm-2"))
    assert interventions_collect_task() == 2
    assert (stored(), waiting(live_redis)) == ({"strm-1", "strm-2"}, 0)
    (aside,) = set_aside(live_redis)
    assert b"problem" in aside


def test_what_was_set_aside_is_read_again_on_request(live_redis: Redis) -> None:
    live_redis.xadd(redis_keys.interventions_key(), {"d": b"\xc1"})
    interventions_collect_task()
    (aside,) = set_aside(live_redis)
    live_redis.delete(redis_keys.interventions_set_aside_key())
    live_redis.xadd(redis_keys.interventions_set_aside_key(), {**aside, b"d": msgspec.msgpack.encode(found())})
    out = StringIO()
    call_command("interventions_retry", stdout=out)
    assert out.getvalue() == "1 moved back.\n"
    assert interventions_collect_task() == 1
    assert set_aside(live_redis) == []


def test_texts_that_no_column_takes_are_cut_not_lost(live_redis: Redis) -> None:
    write(live_redis, found("strm-1", finding="x" * 500, deployment="d" * 300, excerpt="a\0b" + "ä" * 5_000))
    assert interventions_collect_task() == 1
    row = Intervention.all_tenants.get()
    assert (len(row.finding), len(row.deployment_label), row.excerpt[:3]) == (200, 200, "a\ufffdb")


def test_a_finding_without_a_time_counts_when_it_came(live_redis: Redis) -> None:
    data = msgspec.msgpack.encode(found(occurred_at=0.0, outcome=Outcome.UNCHECKED))
    live_redis.xadd(redis_keys.interventions_key(), {"d": data}, id="1782909000000-0")
    assert interventions_collect_task() == 1
    assert Intervention.all_tenants.get().occurred_at.isoformat() == "2026-07-01T12:30:00+00:00"


@pytest.mark.django_db(transaction=True)
def test_a_database_that_is_away_loses_nothing(live_redis: Redis) -> None:
    write(live_redis, found("strm-1"))
    assert interventions_collect_task() == 1
    with database_down():
        write(live_redis, found("strm-2"))
        assert interventions_collect_task() == 0
        write(live_redis, found("strm-3"))
        assert interventions_collect_task() == 0
        assert waiting(live_redis) == 2
    assert interventions_collect_task() == 2
    assert (stored(), waiting(live_redis), set_aside(live_redis)) == ({"strm-1", "strm-2", "strm-3"}, 0, [])


@pytest.mark.django_db(transaction=True)
def test_collectors_that_hold_no_lock_are_as_exact(live_redis: Redis) -> None:
    findings = [found(f"strm-{number}") for number in range(90)]

    def store(shift: int) -> int:
        try:
            return sum(
                interventions_record(interventions=findings[start : start + 15])
                for start in (*range(shift, 90, 15), *range(0, shift, 15))
            )
        finally:
            connections.close_all()

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(store, (0, 30, 60))) == 90
    assert Intervention.all_tenants.count() == 90
