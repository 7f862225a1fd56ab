"""Reads of prompt caches: for the snapshot, and what they are good for."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings

from apps.caching.models import PromptCache
from apps.caching.prompt_measuring import workers_read
from apps.caching.prompt_warming import warmth_read
from apps.tenants.live_state import redis_client
from headrace_wire import redis_keys
from headrace_wire.cache_salt import cache_salt
from headrace_wire.fleet import WorkerInfo
from headrace_wire.prefill_reports import PrefillReport
from headrace_wire.prompt_caches import PromptCacheConfig


def prompt_cache_configs() -> list[PromptCacheConfig]:
    """Returns the snapshot's section: the active ones."""
    secret = settings.SECRET_KEY.encode()
    rows = PromptCache.all_tenants.filter(is_active=True).select_related("deployment").order_by("pk")
    return [
        PromptCacheConfig(
            id=row.pk.hex,
            tenant_id=row.tenant_id.hex,
            deployment=row.deployment.name,
            name=row.name,
            version=row.version,
            messages=row.messages,
            pinned=row.is_pinned,
            tokens=row.token_count or 0,
            cache_salt=cache_salt(secret, row.tenant_id.hex),
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class PromptCacheUse:
    """What requests found of a prompt cache since it was made or purged."""

    requests: int = 0
    hits: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def hit_rate(self) -> float | None:
        """Share of the requests that found most of it computed; None before the first."""
        return self.hits / self.requests if self.requests else None


@dataclass(frozen=True, slots=True)
class Warmth:
    """A prompt cache at one live worker; without a report it was not computed there."""

    worker: WorkerInfo
    report: PrefillReport | None


def prompt_cache_uses(*, caches: Sequence[PromptCache]) -> dict[str, PromptCacheUse]:
    """Returns what each one is good for, by id, in one round trip.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    pipeline = redis_client().pipeline(transaction=False)
    for cache in caches:
        pipeline.hgetall(redis_keys.prompt_cache_use_key(cache.pk.hex))
    uses = {}
    for cache, row in zip(caches, pipeline.execute() if caches else [], strict=True):
        counts = {name.decode(): int(value) for name, value in row.items()}
        uses[cache.pk.hex] = PromptCacheUse(
            counts.get("requests", 0),
            counts.get("hits", 0),
            counts.get("tokens", 0),
            counts.get("microseconds", 0) / 1e6,
        )
    return uses


def prompt_cache_warmth(*, cache: PromptCache) -> list[Warmth]:
    """Returns where it is warm: each live worker of its deployment, with the last report.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    reports = warmth_read(cache_id=cache.pk.hex)
    workers = workers_read(deployment=cache.deployment.name)
    return [Warmth(info, reports.get(name)) for name, info in sorted(workers.items())]
