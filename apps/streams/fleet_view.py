"""What this gateway knows of workers: who serves which deployment, and with which model."""

import asyncio

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from apps.streams.rendering import Renderers
from headrace_wire import codec, redis_keys
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.functions import Reply

log = structlog.get_logger(__name__)

REREAD_SECONDS = 1.0


class FleetView:
    """Live workers, re-read when told and every second; renderers of their models are prepared on the way."""

    def __init__(self, redis: "Redis", renderers: Renderers) -> None:
        self._redis = redis
        self._renderers = renderers
        self._by_deployment: dict[str, list[WorkerInfo]] = {}
        self._fingerprints: dict[str, str] = {}
        self._context_limits: dict[str, int] = {}
        self._unreadable: set[bytes] = set()
        """Registrations of another release; said once of each."""

    def workers(self, deployment: str) -> list[WorkerInfo]:
        """Return the live workers of a deployment, in any state."""
        return self._by_deployment.get(deployment, [])

    def ready(self, deployment: str) -> bool:
        """Say whether a worker of the deployment takes requests, at once or when it has woken."""
        return any(worker.state in (WorkerState.READY, WorkerState.SLEEPING) for worker in self.workers(deployment))

    def waking_seconds(self, deployment: str) -> float | None:
        """Return what a worker took to start last, where all are asleep or are being woken; else None."""
        workers = self.workers(deployment)
        if any(worker.state is WorkerState.READY for worker in workers):
            return None
        asleep = [worker for worker in workers if worker.state is WorkerState.SLEEPING]
        woken = [worker for worker in workers if worker.state is WorkerState.LOADING and worker.cold_start_seconds]
        return min((worker.cold_start_seconds for worker in asleep + woken), default=None)

    def fingerprint(self, deployment: str) -> str:
        """Return the model that the deployment's workers serve, or served last; empty when none was seen."""
        return self._fingerprints.get(deployment, "")

    def context_limit(self, deployment: str) -> int:
        """Return how many tokens prompt and answer may have at all workers, or at those of last; 0: none has said."""
        return self._context_limits.get(deployment, 0)

    async def refresh(self) -> None:
        """Read registrations and leases.

        Raises:
            redis.exceptions.RedisError: the view stays as it was.
        """
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hgetall(redis_keys.workers_key())
        pipeline.zrangebyscore(redis_keys.incarnations_key(), "-inf", "+inf", withscores=True)
        pipeline.time()
        reply: Reply = await pipeline.execute()
        rows, leases, (seconds, microseconds) = reply
        now_ms = seconds * 1000 + microseconds // 1000
        alive = {name for name, expiry in leases if expiry > now_ms}
        by_deployment: dict[str, list[WorkerInfo]] = {}
        unreadable: set[bytes] = set()
        for name, raw in rows.items():
            if name not in alive:
                continue
            try:
                info = codec.decode(raw, WorkerInfo)
            except codec.DecodeError as error:
                unreadable.add(name)
                if name not in self._unreadable:
                    log.warning("registration_unreadable", incarnation=name.decode(), error=str(error))
            else:
                by_deployment.setdefault(info.deployment, []).append(info)
        self._by_deployment, self._unreadable = by_deployment, unreadable
        for deployment, workers in by_deployment.items():
            if limits := [worker.max_model_len for worker in workers if worker.max_model_len]:
                self._context_limits[deployment] = min(limits)
        await self._prepare_renderers()

    async def _prepare_renderers(self) -> None:
        for deployment, workers in self._by_deployment.items():
            for worker in workers:
                if worker.fingerprint:
                    self._fingerprints[deployment] = worker.fingerprint
                    await self._renderers.prepare(worker.fingerprint)

    async def run(self) -> None:
        """Follow changes until cancelled."""
        while True:
            try:
                async with self._redis.pubsub() as channel:
                    await channel.subscribe(redis_keys.fleet_channel())
                    while True:
                        await self.refresh()
                        await channel.get_message(ignore_subscribe_messages=True, timeout=REREAD_SECONDS)
            except RedisError as error:
                log.warning("fleet_unreachable", error=str(error))
                await asyncio.sleep(REREAD_SECONDS)
