"""Computes the deployment's pinned prompt caches before the worker says that it is ready."""

import asyncio
import logging
import time

from headrace_wire.codec import pack_token_ids
from headrace_wire.messages import Prefill, PrefillPurpose
from headrace_wire.prompt_caches import PINNED_SHARE, PromptCacheConfig, stable_prefix
from headrace_worker.deployment_watch import DeploymentWatch
from headrace_worker.engine import Engine, EngineInfo, RequestRefusedError
from headrace_worker.held_prefixes import HeldPrefixes
from headrace_worker.prefilling import Prefilling

log = logging.getLogger(__name__)

WARM_SECONDS = 120.0
"""For so long at most a worker is not ready because of prompt caches; what is missing comes with the next round."""


class PinnedPrefixes:
    """Those of one deployment."""

    def __init__(self, watch: DeploymentWatch, prefilling: Prefilling, held: HeldPrefixes) -> None:
        self._watch = watch
        self._prefilling = prefilling
        self._held = held

    async def warm(self, engine: Engine, info: EngineInfo) -> None:
        """Compute them one after the other, as far as they may fill the KV cache. Nothing else may need the engine.

        Raises:
            EngineDeadError: the engine is gone.
        """
        room = int(info.cache_tokens * PINNED_SHARE) or info.max_model_len
        for cache in [cache for cache in self._watch.prompt_caches if cache.pinned]:
            try:
                # Nobody else renders yet, so that a thread may.
                ids = await asyncio.to_thread(stable_prefix, info.renderer.render, cache.messages)
            except RequestRefusedError as error:
                log.warning("prompt cache %s is refused: %s", cache.name, error.message)
                continue
            room -= len(ids)
            if room < 0:
                log.warning("no more prompt caches fit from %s on", cache.name)
                return
            if ids:
                self._prefilling.put(_prefill(cache, ids))
                await self._prefilling.complete(engine, info)
                self._held.pinned(cache.cache_salt, cache.messages)


def _prefill(cache: PromptCacheConfig, ids: list[int]) -> Prefill:
    expires_at_ms = int((time.time() + WARM_SECONDS) * 1000)
    return Prefill(
        cache.id, cache.tenant_id, cache.cache_salt, pack_token_ids(ids), expires_at_ms, PrefillPurpose.PROMPT_CACHE
    )
