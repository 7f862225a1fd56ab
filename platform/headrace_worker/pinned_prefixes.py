"""Computes the deployment's pinned prompt caches: before the worker says that it is ready, and, where need be, later.

Later it is Celery that has them computed, which makes their ids as gateways do. Where only workers make ids, this here
does: when one is saved, and every few minutes, for what was evicted.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from headrace_wire.codec import pack_token_ids
from headrace_wire.messages import ChatTurn, Prefill, PrefillPurpose
from headrace_wire.prompt_caches import PINNED_SHARE, PromptCacheConfig
from headrace_worker.deployment_watch import DeploymentWatch
from headrace_worker.engine import Engine, EngineInfo, RequestRefusedError
from headrace_worker.held_prefixes import HeldPrefixes
from headrace_worker.prefilling import Prefilling

log = logging.getLogger(__name__)

WARM_SECONDS = 120.0
"""For so long at most a worker is not ready because of prompt caches; what is missing comes with the next round."""

LOOK_SECONDS = 300.0
"""How often they are looked at again, as Celery does it. One that is still there costs a step or two."""

Render = Callable[[EngineInfo, Sequence[ChatTurn]], Awaitable[list[int]]]
"""Returns what every prompt with these messages begins with (`stable_prefix`)."""


class PinnedPrefixes:
    """Those of one deployment."""

    def __init__(self, watch: DeploymentWatch, prefilling: Prefilling, held: HeldPrefixes, render: Render) -> None:
        self._watch = watch
        self._prefilling = prefilling
        self._held = held
        self._render = render

    async def warm(self, engine: Engine, info: EngineInfo) -> None:
        """Compute them one after the other, as far as they may fill the KV cache. Nothing else may need the engine.

        Raises:
            EngineDeadError: the engine is gone.
        """
        for cache, ids in await self._fitting(info):
            self._prefilling.put(_prefill(cache, ids))
            await self._prefilling.complete(engine, info)
            self._held.pinned(cache.cache_salt, cache.messages)

    async def keep(self, info: EngineInfo) -> None:
        """Have them computed while there is time for it, again and again, until cancelled; not where Celery does so."""
        known = self._watch.prompt_caches
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    while self._watch.prompt_caches == known:
                        await self._watch.wait_change()
            known = self._watch.prompt_caches
            if not self._held.goes_by_text:
                continue
            for cache, ids in await self._fitting(info):
                self._prefilling.put(_prefill(cache, ids))
                self._held.pinned(cache.cache_salt, cache.messages)

    async def _fitting(self, info: EngineInfo) -> list[tuple[PromptCacheConfig, list[int]]]:
        """Return those that there is room for, with their ids."""
        room = int(info.cache_tokens * PINNED_SHARE) or info.max_model_len
        fitting: list[tuple[PromptCacheConfig, list[int]]] = []
        for cache in [cache for cache in self._watch.prompt_caches if cache.pinned]:
            try:
                ids = await self._render(info, cache.messages)
            except RequestRefusedError as error:
                log.warning("prompt cache %s is refused: %s", cache.name, error.message)
                continue
            room -= len(ids)
            if room < 0:
                log.warning("no more prompt caches fit from %s on", cache.name)
                break
            if ids:
                fitting.append((cache, ids))
        return fitting


def _prefill(cache: PromptCacheConfig, ids: list[int]) -> Prefill:
    expires_at_ms = int((time.time() + WARM_SECONDS) * 1000)
    return Prefill(
        cache.id, cache.tenant_id, cache.cache_salt, pack_token_ids(ids), expires_at_ms, PrefillPurpose.PROMPT_CACHE
    )
