"""When an engine that nobody uses is ended, and when it is wanted again."""

import asyncio
import contextlib
import time

from redis.exceptions import RedisError

from headrace_wire.request_queue import RequestQueue
from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.deployment_watch import DeploymentWatch

LOOK_SECONDS = 1.0
"""Between two looks at the queue of a worker that sleeps; between two at an engine that may be unused."""


class UnusedError(Exception):
    """Nobody has used the engine for as long as its deployment says: it is to be ended."""


class Rest:
    """Of one worker. Warm-ups and prefixes that are computed ahead are no use: nobody has asked for them."""

    def __init__(self, queue: RequestQueue, watch: DeploymentWatch) -> None:
        self._queue = queue
        self._watch = watch
        self._used_at = time.monotonic()
        self._is_woken = False

    def used(self) -> None:
        """Somebody uses the engine, or may from now on."""
        self._used_at = time.monotonic()

    def wake(self) -> None:
        """Have an engine that sleeps started again, for what is to come."""
        self._is_woken = True

    def is_due(self, deployment: DeploymentConfig) -> bool:
        """Say whether it was unused for long enough."""
        after = deployment.sleep_after_seconds
        return after > 0 and time.monotonic() - self._used_at >= after

    async def until_wanted(self, deployment: DeploymentConfig) -> None:
        """Return when it is told to wake, somebody waits for the deployment, or that has changed.

        Other workers may take what waits first.
        """
        self._is_woken = False
        while not (self._is_woken or await self._is_wanted(deployment.name)):
            if self._watch.current is not None and not self._watch.current.sleep_after_seconds:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._watch.wait_other(deployment)
                    return

    async def _is_wanted(self, name: str) -> bool:
        try:
            return await self._queue.waiting(name) > 0
        except RedisError:
            return False
