"""The renderers of this gateway, by model: a deployment without one renders in its worker."""

import asyncio

from redis.asyncio import Redis

from apps.deployments.prompt_rendering import PromptRenderer, build_renderer
from headrace_wire import codec, redis_keys
from headrace_wire.fleet import ModelAssets
from headrace_wire.functions import Reply


class Renderers:
    """Renderers by model fingerprint, built once each."""

    def __init__(self, redis: "Redis") -> None:
        self._redis = redis
        self._ready: dict[str, PromptRenderer | None] = {}
        self._building: dict[str, asyncio.Task[None]] = {}

    def get(self, fingerprint: str) -> PromptRenderer | None:
        """Return the renderer if it is there; None also where this model renders in the worker."""
        return self._ready.get(fingerprint)

    def is_tried(self, fingerprint: str) -> bool:
        """Say whether it is known if this model can be rendered here."""
        return fingerprint in self._ready

    async def prepare(self, fingerprint: str) -> None:
        """Make sure that the renderer was tried; concurrent callers share one attempt.

        Raises:
            redis.exceptions.RedisError: the assets could not be read; the next call tries again.
        """
        if fingerprint in self._ready:
            return
        task = self._building.get(fingerprint)
        if task is None:
            task = self._building[fingerprint] = asyncio.create_task(self._build(fingerprint))
            task.add_done_callback(lambda _: self._building.pop(fingerprint, None))
        await asyncio.shield(task)

    async def _build(self, fingerprint: str) -> None:
        raw: Reply = await self._redis.get(redis_keys.model_assets_key(fingerprint))
        if raw is None:
            return
        assets = codec.decode(raw, ModelAssets)
        self._ready[fingerprint] = await asyncio.to_thread(build_renderer, assets)
