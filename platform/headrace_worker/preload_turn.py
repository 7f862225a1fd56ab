"""Whose turn it is to load: of the workers of one machine, those of deployments that an admin put first go first.

Each worker looks for itself at what the others have registered. So the order holds whoever starts them (the supervisor
of `make up`, systemd, a person), and a worker that dies keeps nobody waiting for longer than its lease.
"""

import asyncio
import logging
import time
from contextlib import suppress

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from headrace_wire import codec, redis_keys
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.functions import Reply
from headrace_wire.request_queue import RequestQueue
from headrace_worker.deployment_watch import DeploymentWatch

log = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0
"""For how long a worker that has just begun leaves those that were begun with it the time to register."""
LOOK_SECONDS = 1.0
LONGEST_SECONDS = 600.0
"""For how long an engine waits for others at most."""


class PreloadTurn:
    """Of one worker. Waits for workers of smaller numbers alone, so that no two ever wait for each other."""

    def __init__(
        self,
        redis: "Redis",
        queue: RequestQueue,
        watch: DeploymentWatch,
        host: str,
        *,
        settle_seconds: float = SETTLE_SECONDS,
        longest_seconds: float = LONGEST_SECONDS,
    ) -> None:
        """`host`: the machine's name, as workers register it."""
        self._redis = redis
        self._queue = queue
        self._watch = watch
        self._host = host
        self._settle_seconds = settle_seconds
        self._longest_seconds = longest_seconds
        self._has_settled = False

    async def wait(self) -> None:
        """Return when no worker here loads what goes before ours, or it takes too long; waits for the configuration."""
        await self._watch.wait()
        if not self._watch.goes_before:
            return
        if not self._has_settled:
            self._has_settled = True
            await asyncio.sleep(self._settle_seconds)
        until, said = time.monotonic() + self._longest_seconds, ""
        while loading := ", ".join(sorted(await self._loading())):
            if time.monotonic() >= until:
                log.warning("%s still loading after %.0f s: not waited for any longer", loading, self._longest_seconds)
                return
            if loading != said:
                log.info("waiting until these have loaded, which go first on this machine: %s", loading)
                said = loading
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._watch.wait_change()

    async def _loading(self) -> set[str]:
        """Return the deployments that go first and are loading here, or about to; none where Redis does not say."""
        try:
            workers = await self._registered()
            first = [one for one in workers if one.host == self._host and one.deployment in self._watch.goes_before]
            # One whose engine has failed already tries again by itself, perhaps for ever.
            loading = {one.deployment for one in first if one.state is WorkerState.LOADING and not one.last_error}
            asleep = {one.deployment for one in first if one.state is WorkerState.SLEEPING}
            return loading | {name for name in asleep - loading if await self._queue.waiting(name)}
        except RedisError as error:
            log.warning("cannot see what else is loading: %s", error)
            return set()

    async def _registered(self) -> list[WorkerInfo]:
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.hgetall(redis_keys.workers_key())
        pipeline.zrange(redis_keys.incarnations_key(), 0, -1, withscores=True)
        pipeline.time()
        reply: Reply = await pipeline.execute()
        rows, leases, (seconds, microseconds) = reply
        now_ms = seconds * 1000 + microseconds // 1000
        leased = {name for name, expiry in leases if expiry > now_ms}
        found = []
        for name, raw in rows.items():
            with suppress(msgspec.DecodeError):  # of a newer version
                if name in leased:
                    found.append(codec.decode(raw, WorkerInfo))
        return found
