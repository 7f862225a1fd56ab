"""From a save to what gateways and workers read, on a real Redis."""

import pytest
from pytest_django import DjangoCaptureOnCommitCallbacks
from redis import Redis
from redis.client import PubSub

from apps.guardrails.enums import PolicyMode
from apps.guardrails.models import GuardrailPolicy
from apps.guardrails.publication import BODY_SECONDS
from apps.guardrails.services import policy_publish, policy_save
from apps.tenants import snapshots
from apps.tenants.models import Tenant
from headrace_wire import redis_keys
from headrace_wire.guard_policy import GuardAttachment, LiteralRule, decode_policy, policy_digest
from headrace_wire.snapshot import ConfigSnapshot, decode_snapshot, encode_snapshot

from .policies import saved_policy, word_rule


def published(redis: Redis) -> list[GuardAttachment]:
    data = redis.hget(redis_keys.snapshot_key(), "data")
    assert isinstance(data, bytes)
    return decode_snapshot(data).guardrails


def body(redis: Redis, digest: str) -> bytes:
    data = redis.get(redis_keys.guard_policy_key(digest))
    assert isinstance(data, bytes)
    return data


def words(redis: Redis) -> list[tuple[str, ...]]:
    """Of the policies that apply now."""
    rules = [decode_policy(body(redis, row.digest)).rules[0] for row in published(redis)]
    return [rule.words for rule in rules if isinstance(rule, LiteralRule)]


@pytest.mark.django_db(transaction=True)
def test_a_saved_change_acts_on_new_streams_at_once(live_redis: Redis) -> None:
    """Gateways hear of it on the channel, within the request that saved it; the one-second re-read is their net."""
    tenant = Tenant.objects.create(slug="acme", name="Acme")
    with PubSub(live_redis.connection_pool, ignore_subscribe_messages=True) as channel:
        channel.subscribe(redis_keys.snapshot_channel())
        channel.get_message(timeout=5)
        policy = saved_policy(tenant, word_rule("red"))
        assert words(live_redis) == [("red",)]
        old = published(live_redis)[0].digest
        policy_save(policy=policy, rules=[word_rule("blue")])
        assert words(live_redis) == [("blue",)]
        messages = [channel.get_message(timeout=5) for _ in range(2)]
    assert None not in messages
    assert decode_policy(body(live_redis, old)).version == 1, "a running stream keeps the version that it began with"
    policy_publish(policy=policy, mode=PolicyMode.DRAFT)
    assert published(live_redis) == []


@pytest.mark.django_db
def test_bodies_are_named_by_their_content_and_kept_for_a_month(live_redis: Redis, tenant: Tenant) -> None:
    saved_policy(tenant)
    snapshots.snapshot_publish()
    (row,) = published(live_redis)
    assert policy_digest(body(live_redis, row.digest)) == row.digest
    key = redis_keys.guard_policy_key(row.digest)
    assert 0 < live_redis.ttl(key) <= BODY_SECONDS


@pytest.mark.django_db
def test_what_redis_lost_or_would_lose_is_brought_again(live_redis: Redis, tenant: Tenant) -> None:
    saved_policy(tenant)
    snapshots.snapshot_publish()
    (row,) = published(live_redis)
    key = redis_keys.guard_policy_key(row.digest)
    live_redis.expire(key, 60)
    assert snapshots.snapshot_ensure() is None
    assert live_redis.ttl(key) > 60
    live_redis.delete(key)
    assert snapshots.snapshot_ensure() is None
    assert policy_digest(body(live_redis, row.digest)) == row.digest


@pytest.mark.django_db
def test_a_body_is_there_before_the_snapshot_that_names_it(
    live_redis: Redis, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_policy(tenant)
    seen: list[bool] = []

    def encoded(snapshot: ConfigSnapshot) -> bytes:
        seen.extend(bool(live_redis.exists(redis_keys.guard_policy_key(row.digest))) for row in snapshot.guardrails)
        return encode_snapshot(snapshot)

    monkeypatch.setattr(snapshots, "encode_snapshot", encoded)
    snapshots.snapshot_publish()
    assert seen == [True]


@pytest.mark.django_db
def test_a_refused_save_publishes_nothing(
    live_redis: Redis, tenant: Tenant, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    with django_capture_on_commit_callbacks() as callbacks, pytest.raises(Exception, match="rule"):
        policy_save(policy=GuardrailPolicy(tenant=tenant, name="Empty"), rules=[])
    assert callbacks == []
