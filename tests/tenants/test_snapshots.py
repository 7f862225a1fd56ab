import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings
from redis import Redis
from redis.client import PubSub
from structlog.testing import capture_logs

from apps.accounts.models import ApiKey
from apps.deployments.models import ModelDeployment
from apps.tenants import snapshots
from apps.tenants.models import Tenant
from apps.tenants.services import tenant_create, tenant_update
from headrace_wire import redis_keys
from headrace_wire.api_key import ApiKeyToken
from headrace_wire.snapshot import ConfigSnapshot, decode_snapshot


def stored(redis: Redis) -> ConfigSnapshot:
    data = redis.hget(redis_keys.snapshot_key(), "data")
    assert isinstance(data, bytes)
    return decode_snapshot(data)


def test_holds_every_section(
    live_redis: Redis, tenant: Tenant, issued: tuple[ApiKey, ApiKeyToken], deployment: ModelDeployment
) -> None:
    version = snapshots.snapshot_publish()

    snapshot = stored(live_redis)
    key, token = issued
    assert snapshot.version == version
    assert [entry.slug for entry in snapshot.tenants] == ["acme"]
    assert [entry.name for entry in snapshot.deployments] == ["tiny"]
    assert [entry.public_id for entry in snapshot.api_keys] == [key.public_id]
    assert token.matches(snapshot.api_keys[0].secret_sha256)
    assert token.secret.encode() not in (live_redis.hget(redis_keys.snapshot_key(), "data") or b"")


def test_published_once_per_transaction_and_only_after_commit(
    live_redis: Redis, tenant: Tenant, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    before = snapshots.snapshot_publish()
    assert before is not None
    with capture_logs() as logs, django_capture_on_commit_callbacks(execute=True):
        for window in (64, 128, 256):
            tenant.stream_window = window
            tenant_update(tenant=tenant)
        assert stored(live_redis).version == before
    assert stored(live_redis).tenants[0].stream_window == 256
    assert [line["event"] for line in logs] == ["snapshot_published"]


def test_a_rolled_back_change_is_not_published(live_redis: Redis, tenant: Tenant) -> None:
    version = snapshots.snapshot_publish()
    with transaction.atomic():
        tenant.stream_window = 64
        tenant_update(tenant=tenant)
        transaction.set_rollback(True)
    assert stored(live_redis).version == version


def test_told_on_the_channel(live_redis: Redis, tenant: Tenant) -> None:
    with PubSub(live_redis.connection_pool, ignore_subscribe_messages=True) as channel:
        channel.subscribe(redis_keys.snapshot_channel())
        channel.get_message(timeout=5)
        version = snapshots.snapshot_publish()
        message = channel.get_message(timeout=5)
    assert message is not None
    assert int(message["data"]) == version


def test_a_change_stands_even_where_redis_is_away(
    tenant: Tenant, settings: Settings, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    settings.REDIS_URL = "unix:///nowhere/redis.sock"
    tenant.stream_window = 64
    with capture_logs() as logs, django_capture_on_commit_callbacks(execute=True):
        tenant_update(tenant=tenant)
    tenant.refresh_from_db()
    assert tenant.stream_window == 64
    assert [line["event"] for line in logs] == ["snapshot_not_published"]


def test_ensure_publishes_what_is_missing_or_differs_and_nothing_else(live_redis: Redis, tenant: Tenant) -> None:
    first = snapshots.snapshot_ensure()
    assert first is not None
    assert snapshots.snapshot_ensure() is None

    Tenant.objects.filter(pk=tenant.pk).update(stream_window=99)
    second = snapshots.snapshot_ensure()
    assert second is not None
    assert second > first
    assert stored(live_redis).tenants[0].stream_window == 99

    live_redis.hset(redis_keys.snapshot_key(), "data", b"broken")
    assert snapshots.snapshot_ensure() is not None


def test_versions_rise_even_after_redis_lost_its_counter(live_redis: Redis, tenant: Tenant) -> None:
    first = snapshots.snapshot_publish()
    live_redis.delete(redis_keys.snapshot_version_key())
    second = snapshots.snapshot_publish()
    assert first is not None
    assert second is not None
    assert second > first


def test_a_publisher_that_read_earlier_never_overwrites(
    live_redis: Redis, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another publisher takes its version and stores between this one's version and its store."""
    build = snapshots.snapshot_build

    def overtaken(*, version: int) -> ConfigSnapshot:
        stale = build(version=version)
        monkeypatch.setattr(snapshots, "snapshot_build", build)
        Tenant.objects.filter(pk=tenant.pk).update(stream_window=77)
        assert snapshots.snapshot_publish() is not None
        return stale

    monkeypatch.setattr(snapshots, "snapshot_build", overtaken)
    assert snapshots.snapshot_publish() is None
    assert stored(live_redis).tenants[0].stream_window == 77


@pytest.mark.django_db(transaction=True)
def test_concurrent_writers_end_with_the_last_commit(live_redis: Redis) -> None:
    """Versions seen by a gateway only rise, and the last snapshot shows what the database says."""
    writers, rounds = 4, 6
    tenants = [tenant_create(tenant=Tenant(slug=f"tenant-{n}", name=f"Tenant {n}")) for n in range(writers)]
    start = threading.Barrier(writers)

    def write(tenant: Tenant) -> None:
        start.wait(timeout=30)
        try:
            for window in range(100, 100 + rounds):
                tenant.stream_window = window
                tenant_update(tenant=tenant)
        finally:
            connection.close()

    with PubSub(live_redis.connection_pool, ignore_subscribe_messages=True) as channel:
        channel.subscribe(redis_keys.snapshot_channel())
        channel.get_message(timeout=5)
        with ThreadPoolExecutor(writers) as pool:
            list(pool.map(write, tenants))
        seen = []
        while (message := channel.get_message(timeout=0.2)) is not None:
            seen.append(int(message["data"]))

    assert seen == sorted(set(seen))
    assert {tenant.stream_window for tenant in stored(live_redis).tenants} == {100 + rounds - 1}
