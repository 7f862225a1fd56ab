"""Keeps idle engines warm: a worker that has nothing to do is asked for a dummy inference."""

from collections.abc import Iterable, Sequence

from asgiref.sync import async_to_sync
from django.conf import settings
from redis.asyncio import Redis

from apps.deployments.enums import WorkerState
from apps.deployments.models import Worker
from headrace_wire.functions import Functions
from headrace_wire.messages import WarmUp
from headrace_wire.request_queue import RequestQueue


def workers_warm_up(*, workers: Iterable[Worker] | None = None) -> int:
    """Asks idle ready workers (of `workers`, or of all); returns how many got the message.

    A worker looks for itself whether it is still idle: the rows here are some seconds old.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    candidates = Worker.objects.filter(state=WorkerState.READY) if workers is None else workers
    idle = [worker.incarnation for worker in candidates if _is_idle(worker)]
    return _tell(idle) if idle else 0


def _is_idle(worker: Worker) -> bool:
    return worker.state == WorkerState.READY and not (worker.num_requests_running or worker.num_requests_waiting)


@async_to_sync
async def _tell(incarnations: Sequence[str]) -> int:
    async with Redis.from_url(settings.REDIS_URL) as redis:
        queue = RequestQueue(redis, Functions(redis))
        return await queue.tell([(f"@{incarnation}", WarmUp()) for incarnation in incarnations])
