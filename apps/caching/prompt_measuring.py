"""How long a prompt cache is, and whether the workers' memory holds what is pinned; asked of the live workers."""

from dataclasses import dataclass
from functools import lru_cache

import structlog
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _
from redis.exceptions import RedisError

from apps.caching.models import PromptCache
from apps.deployments.fleet_mirror import registrations_read
from apps.deployments.prompt_rendering import PromptRenderer, build_renderer
from apps.tenants.live_state import redis_client
from headrace_wire import codec, redis_keys
from headrace_wire.errors import InvalidRequestError
from headrace_wire.fleet import ModelAssets, WorkerInfo, WorkerState
from headrace_wire.prompt_caches import PINNED_SHARE, stable_prefix

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DeploymentMemory:
    """What the live workers of a deployment say of themselves."""

    renderer: PromptRenderer
    max_model_len: int
    cache_tokens: int
    """Of the worker with the least; 0 where none has a prefix cache."""

    @property
    def pinned_tokens(self) -> int:
        """How much of it may be pinned."""
        return int(self.cache_tokens * PINNED_SHARE)


def workers_read(*, deployment: str) -> dict[str, WorkerInfo]:
    """Returns the deployment's live workers that have a model, by incarnation; none where Redis does not answer."""
    try:
        alive = registrations_read().alive
    except RedisError as error:
        logger.warning("workers_unknown", error=str(error))
        return {}
    return {name: info for name, info in alive.items() if info.deployment == deployment and info.fingerprint}


def memory_read(*, deployment: str) -> DeploymentMemory | None:
    """Returns what a prompt cache of the deployment is measured with; None until a worker has said how it tokenises."""
    workers = workers_read(deployment=deployment)
    newest = max(workers.values(), key=lambda info: (info.state is WorkerState.READY, info.started_at), default=None)
    renderer = _renderer_read(newest.fingerprint) if newest is not None else None
    if renderer is None:
        return None
    return DeploymentMemory(
        renderer=renderer,
        max_model_len=min(info.max_model_len for info in workers.values()),
        cache_tokens=min(info.cache_tokens for info in workers.values()),
    )


def prefix_ids(cache: PromptCache, memory: DeploymentMemory) -> list[int]:
    """Returns the token ids that every prompt with this cache begins with, in whole blocks.

    Raises:
        ValidationError: The model's template does not take the messages.
    """
    try:
        return stable_prefix(memory.renderer.render, cache.messages)
    except InvalidRequestError as error:
        raise ValidationError(error.message, code="template") from error


def prompt_cache_measure(cache: PromptCache) -> None:
    """Sets the cache's token count where a worker can be asked, and refuses what workers cannot hold.

    Raises:
        ValidationError: It is longer than a prompt may be, or more would be pinned than fits; the numbers are told.
    """
    memory = memory_read(deployment=cache.deployment.name)
    if memory is None:
        return
    cache.token_count = tokens = len(prefix_ids(cache, memory))
    if tokens >= memory.max_model_len:
        raise ValidationError(
            _("This has %(tokens)s tokens, and a prompt with its answer may have %(limit)s.")
            % {"tokens": f"{tokens:,}", "limit": f"{memory.max_model_len:,}"},
            code="too_long",
        )
    if cache.is_pinned and cache.is_active and memory.cache_tokens:
        _check_memory(cache, memory)


def _check_memory(cache: PromptCache, memory: DeploymentMemory) -> None:
    others = PromptCache.all_tenants.filter(deployment=cache.deployment, is_pinned=True, is_active=True)
    counts = list(others.exclude(pk=cache.pk).values_list("token_count", flat=True))
    pinned = sum(count or 0 for count in counts)
    tokens = cache.token_count or 0
    if pinned + tokens <= memory.pinned_tokens:
        return
    raise ValidationError(
        _(
            "This has %(tokens)s tokens. %(caches)d other prompt caches of all tenants are pinned there with"
            " %(pinned)s; of a worker's %(memory)s tokens of cache, %(share)s may be pinned: %(missing)s too many."
        )
        % {
            "tokens": f"{tokens:,}",
            "caches": len(counts),
            "pinned": f"{pinned:,}",
            "memory": f"{memory.cache_tokens:,}",
            "share": f"{memory.pinned_tokens:,}",
            "missing": f"{pinned + tokens - memory.pinned_tokens:,}",
        },
        code="no_memory",
    )


def _renderer_read(fingerprint: str) -> PromptRenderer | None:
    try:
        return _renderer(fingerprint)
    except (RedisError, LookupError) as error:
        logger.warning("renderer_unknown", fingerprint=fingerprint, error=str(error))
        return None


@lru_cache(maxsize=8)
def _renderer(fingerprint: str) -> PromptRenderer:
    """Returns a renderer that agrees with the workers'; one that does not is not remembered."""
    raw = redis_client().get(redis_keys.model_assets_key(fingerprint))
    renderer = build_renderer(codec.decode(raw, ModelAssets)) if isinstance(raw, bytes) else None
    if renderer is None:
        raise LookupError("there is no renderer for this model")
    return renderer
