import pytest
from redis import Redis

from apps.deployments.models import ModelDeployment
from apps.streams.tasks import garbage_collect_task
from headrace_wire import redis_keys


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
