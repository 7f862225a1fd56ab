from pathlib import Path

import pytest
from pytest_django import Settings
from redis import Redis

from apps.deployments.models import ModelDeployment
from apps.streams.tasks import garbage_collect_task
from headrace_wire import redis_keys
from headrace_wire.checkpoint_folders import make_folder, stream_folder
from headrace_wire.ids import new_stream_id


@pytest.mark.django_db(transaction=True)
def test_bells_of_deployments_that_the_database_has_not_are_freed(
    live_redis: Redis, deployment: ModelDeployment
) -> None:
    kept, gone = redis_keys.bell_key(deployment.name), redis_keys.bell_key("gone")
    for bell in (kept, gone):
        live_redis.lpush(bell, "1")
    assert garbage_collect_task()["queues"] == 1
    assert live_redis.exists(kept)
    assert not live_redis.exists(gone)


@pytest.mark.django_db(transaction=True)
def test_checkpoints_of_tenants_that_the_database_has_not_are_freed(
    live_redis: Redis, deployment: ModelDeployment, settings: Settings, tmp_path: Path
) -> None:
    assert garbage_collect_task()["checkpoints"] == 0, "there is no directory"
    settings.HEADRACE_CHECKPOINT_DIR = tmp_path
    folder = stream_folder(tmp_path, "0" * 32, new_stream_id())
    make_folder(folder)
    assert garbage_collect_task()["checkpoint_tenants"] == 1
    assert not folder.exists()
