"""The lease of this worker's incarnation: kept every second, and final when it has ended."""

import asyncio
import logging
from collections.abc import Callable

from redis.asyncio import Redis
from redis.exceptions import RedisError

from headrace_wire import codec, redis_keys
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.ids import WORKER_KIND, new_incarnation
from headrace_wire.request_queue import LeaseLostError, RequestQueue
from headrace_worker.config import WorkerConfig
from headrace_worker.streams import Streams

log = logging.getLogger(__name__)


class Lease:
    """One incarnation after the other; what is registered of each is what `describe` says."""

    def __init__(
        self,
        redis: "Redis",
        queue: RequestQueue,
        streams: Streams,
        config: WorkerConfig,
        describe: Callable[[str], WorkerInfo],
    ) -> None:
        self._redis = redis
        self._queue = queue
        self._streams = streams
        self._config = config
        self._describe = describe
        self._changed = asyncio.Event()
        self._published: WorkerState | None = None
        self.incarnation = ""

    def announce(self) -> None:
        """Tell the fleet of a new state at once, not only with the next renewal."""
        self._changed.set()

    async def enlist(self) -> None:
        """Become a new incarnation; waits while Redis is away."""
        while True:
            self.incarnation = new_incarnation(WORKER_KIND)
            try:
                await self._queue.enlist(
                    self.incarnation,
                    lease_seconds=self._config.lease_seconds,
                    channels=[redis_keys.control_key(self.incarnation)],
                )
                self._published = None
                await self._register()
            except (RedisError, LeaseLostError) as error:
                log.warning("cannot enlist: %s", error)
                await asyncio.sleep(self._config.renew_seconds)
            else:
                log.info("enlisted as %s", self.incarnation)
                return

    async def keep(self) -> None:
        """Renew until cancelled.

        Raises:
            LeaseLostError: it has ended; nothing may be written under this incarnation any more.
        """
        while True:
            self._changed.clear()
            try:
                await self._renew()
                await self._register()
            except RedisError as error:
                log.warning("cannot renew: %s", error)
            try:
                async with asyncio.timeout(self._config.renew_seconds):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def leave(self) -> None:
        """Take the registration out. The lease runs out by itself, so that what was left assigned is found."""
        try:
            await self._redis.hdel(redis_keys.workers_key(), self.incarnation)
            await self._redis.publish(redis_keys.fleet_channel(), self.incarnation)
        except RedisError as error:
            log.warning("cannot deregister: %s", error)

    async def _renew(self) -> None:
        owned = self._streams.publisher.owned()
        renewal = await self._queue.renew(
            self.incarnation,
            lease_seconds=self._config.lease_seconds,
            owned=owned,
            channels=[redis_keys.control_key(self.incarnation), redis_keys.held_key(self.incarnation)],
            serving=(self._config.deployment, 0 if self._streams.places.is_closed else self._streams.places.slots),
        )
        self._streams.publisher.lose([(stream, epoch) for stream, epoch, _ in owned if stream in renewal.lost])
        if renewal.cancelled:
            self._streams.cancel(renewal.cancelled)
        held = self._streams.held_streams()
        if held:  # credit whose message got lost
            self._streams.credit(await self._queue.credits(held))

    async def _register(self) -> None:
        info = self._describe(self.incarnation)
        await self._redis.hset(redis_keys.workers_key(), self.incarnation, codec.encode(info))
        if info.state is not self._published:
            await self._redis.publish(redis_keys.fleet_channel(), self.incarnation)
            self._published = info.state
