"""How much a tenant may have computed for prompts that are still being typed; shared by all gateways."""

from enum import StrEnum

from msgspec import Struct
from redis.asyncio import Redis

from headrace_wire import redis_keys
from headrace_wire.functions import Argument, Functions, Reply


class DraftVerdict(StrEnum):
    """What became of a draft."""

    OK = "ok"
    BUDGET = "budget"
    """The tenant's tokens per minute are used up."""
    CROWDED = "crowded"
    """As many drafts of the tenant are being computed as may."""


class DraftDecision(Struct, frozen=True):
    """The answer of `DraftBudget.take`; a refusal has counted nothing."""

    verdict: DraftVerdict
    retry_after_seconds: float = 0.0


class DraftBudget:
    """Typed calls around `draft`."""

    def __init__(self, redis: "Redis", functions: Functions) -> None:
        self._redis = redis
        self._functions = functions

    async def take(
        self,
        tenant_id: str,
        *,
        tokens: int,
        tokens_per_minute: int,
        most_in_flight: int,
        prefill_id: str,
        replaces: str,
        life_seconds: float,
    ) -> DraftDecision:
        """Take `tokens` for a prefill that is over after `life_seconds` at the latest; one atomic decision.

        Raises:
            redis.exceptions.RedisError: Redis does not answer.
        """
        keys = [redis_keys.draft_bucket_key(tenant_id), redis_keys.drafts_key(tenant_id)]
        args: list[Argument] = [
            tokens,
            tokens_per_minute,
            most_in_flight,
            prefill_id,
            replaces,
            int(life_seconds * 1000),
        ]
        reply: Reply = await self._functions.call("draft", keys, args)
        verdict, retry_ms = reply
        return DraftDecision(DraftVerdict(verdict.decode()), int(retry_ms) / 1000)

    async def release(self, tenant_id: str, prefill_id: str) -> None:
        """Say that a prefill is not wanted any more; what was taken for it stays taken.

        Raises:
            redis.exceptions.RedisError: Redis does not answer.
        """
        await self._redis.zrem(redis_keys.drafts_key(tenant_id), prefill_id)
