"""Keeps idle engines warm: a worker that has nothing to do is asked for a dummy inference."""

from collections.abc import Iterable, Sequence

from asgiref.sync import async_to_sync
from django.conf import settings

from apps.deployments.enums import WorkerState
from apps.deployments.models import Worker
from headrace_wire.functions import Functions
from headrace_wire.messages import WarmUp
from headrace_wire.redis_client import connect
from headrace_wire.request_queue import RequestQueue


def workers_warm_up(*, workers: Iterable[Worker] | None = None) -> int:
    """Asks ready workers that seem idle: `workers` at once, or all as their deployments want it. Returns how many.

    A worker looks for itself whether it is idle, and for how long: the rows here are some seconds old.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    if workers is not None:
        return _tell([(worker.incarnation, 0.0) for worker in workers if _is_idle(worker)])
    return _tell(warm_ups_due())


def warm_ups_due() -> list[tuple[str, float]]:
    """Returns workers that seem idle, with how long they must have been; in front those of what loads first."""
    ready = Worker.objects.filter(state=WorkerState.READY).select_related("deployment")
    return [
        (worker.incarnation, float(worker.deployment.warm_up_seconds))
        for worker in ready.order_by("deployment__preload_priority", "pk")
        if _is_idle(worker) and worker.deployment is not None and worker.deployment.warm_up_seconds
    ]


def _is_idle(worker: Worker) -> bool:
    return worker.state == WorkerState.READY and not (worker.num_requests_running or worker.num_requests_waiting)


def _tell(wanted: Sequence[tuple[str, float]]) -> int:
    return _send([(f"@{incarnation}", WarmUp(seconds)) for incarnation, seconds in wanted]) if wanted else 0


@async_to_sync
async def _send(messages: Sequence[tuple[str, WarmUp]]) -> int:
    redis = connect(settings.REDIS_URL)
    try:
        return await RequestQueue(redis, Functions(redis)).tell(messages)
    finally:
        await redis.aclose()
