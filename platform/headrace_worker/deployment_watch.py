"""The deployment's configuration: the newest version in the snapshot, told at once and re-read every second."""

import asyncio
import logging

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from headrace_wire import redis_keys
from headrace_wire.adapters import AdapterConfig
from headrace_wire.engine_options import engine_part
from headrace_wire.functions import Reply
from headrace_wire.prompt_caches import PromptCacheConfig
from headrace_wire.snapshot import DeploymentConfig, decode_snapshot

log = logging.getLogger(__name__)

REREAD_SECONDS = 1.0


class DeploymentWatch:
    """Follows one deployment by name."""

    def __init__(self, redis: "Redis", name: str) -> None:
        self._redis = redis
        self._name = name
        self._seen = asyncio.Condition()
        self._said_absent = False
        self.version = 0
        self.current: DeploymentConfig | None = None
        """None until the snapshot has the deployment; the last one known where it was removed."""
        self.prompt_caches: list[PromptCacheConfig] = []
        """All tenants' for the deployment."""
        self.adapters: list[AdapterConfig] = []
        """Likewise."""
        self.goes_before: frozenset[str] = frozenset()
        """Deployments that load before ours where both load on one machine."""

    async def run(self) -> None:
        """Follow the snapshot until cancelled. `redis` is blocked by this: it needs a client of its own."""
        while True:
            try:
                async with self._redis.pubsub() as channel:
                    await channel.subscribe(redis_keys.snapshot_channel())
                    while True:
                        await self._refresh()
                        await channel.get_message(ignore_subscribe_messages=True, timeout=REREAD_SECONDS)
            except (RedisError, msgspec.DecodeError) as error:
                log.warning("cannot read the configuration: %s", error)
                await asyncio.sleep(REREAD_SECONDS)

    async def wait(self) -> DeploymentConfig:
        """Return the configuration, waiting for the first one."""
        async with self._seen:
            while self.current is None:
                await self._seen.wait()
            return self.current

    async def wait_change(self) -> DeploymentConfig:
        """Return the next version of the configuration."""
        version = self.version
        async with self._seen:
            while self.current is None or self.version == version:
                await self._seen.wait()
            return self.current

    async def wait_other(self, than: DeploymentConfig) -> None:
        """Wait until the engine of the deployment is configured otherwise than in `than`."""
        wanted = engine_part(than)
        async with self._seen:
            await self._seen.wait_for(lambda: self.current is not None and engine_part(self.current) != wanted)

    async def _refresh(self) -> None:
        key = redis_keys.snapshot_key()
        version: Reply = await self._redis.hget(key, "version")
        if version is None:
            self._say_absent()
            return
        if int(version) == self.version:
            return
        row: Reply = await self._redis.hmget(key, ["version", "data"])
        snapshot = decode_snapshot(row[1])
        found = next((d for d in snapshot.deployments if d.name == self._name), None)
        async with self._seen:
            self.version = snapshot.version
            if found is not None:
                self.current = found
                self.goes_before = frozenset(
                    d.name for d in snapshot.deployments if d.active and d.preload_priority < found.preload_priority
                )
            self.adapters = [adapter for adapter in snapshot.adapters if adapter.deployment == self._name]
            self.prompt_caches = [cache for cache in snapshot.prompt_caches if cache.deployment == self._name]
            self._seen.notify_all()
        if found is None:
            self._say_absent()

    def _say_absent(self) -> None:
        if self.current is None and not self._said_absent:
            self._said_absent = True
            log.warning(
                "deployment %r is not in the configuration snapshot (version %d): waiting", self._name, self.version
            )
