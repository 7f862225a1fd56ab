"""What rules see of the fleet."""

import pytest
from django.utils import timezone
from redis import Redis

from apps.deployments.autoscale.enums import AutoscaleMode
from apps.deployments.models import AutoscalePolicy, ModelDeployment
from apps.ops.alerts.enums import FleetFigure
from apps.ops.alerts.fleet_figures import figures_read
from apps.ops.latency.samples import fleet_sample_take
from headrace_wire import redis_keys

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("mode", "min_workers", "waiting", "is_missed"),
    [
        (AutoscaleMode.ON, 0, 0, False),
        (AutoscaleMode.ON, 0, 3, True),
        (AutoscaleMode.ON, 1, 0, True),
        (AutoscaleMode.SHADOW, 0, 0, True),
    ],
)
def test_no_worker_is_missed_where_none_is_to_run(
    deployment: ModelDeployment,
    live_redis: Redis,
    mode: AutoscaleMode,
    min_workers: int,
    waiting: int,
    is_missed: bool,
) -> None:
    AutoscalePolicy.objects.create(deployment=deployment, mode=mode, min_workers=min_workers)
    for number in range(waiting):
        live_redis.sadd(redis_keys.waiting_key("tiny"), f"strm-{number}")
    fleet_sample_take()
    figures = figures_read(["tiny"], timezone.now())["tiny"]
    assert (FleetFigure.WORKERS_READY in figures) == is_missed
    assert figures[FleetFigure.WAITING] == waiting
