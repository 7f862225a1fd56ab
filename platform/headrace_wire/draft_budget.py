"""How much a tenant may have computed for prompts that are still being typed; shared by all gateways."""

from collections.abc import Sequence
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
    is_former_sent: bool = False
    """The prompt of the draft that it replaces was sent, through another gateway."""


class Sharing(Struct, frozen=True):
    """How other gateways find a draft, to count the hit when its prompt is sent through them."""

    name: bytes = b""
    """Empty where there are no others."""
    former: bytes = b""
    """The name of the draft whose place it takes."""
    seconds: float = 0.0
    """For how long."""


_NOT_SHARED = Sharing()


def draft_name(prefix_hash: bytes, prefill_id: str) -> bytes:
    """Return the name under which gateways share a draft; `prefix_hash` is that of all that is computed for it."""
    return prefix_hash + prefill_id.encode()


def claim_of(draft: bytes = b"", *, hashes: Sequence[bytes] = ()) -> bytes:
    """Return what admission is to be asked: of which drafts a prompt may be the first to go on from.

    Args:
        draft: The one draft, by name, where it is known.
        hashes: Else `prefix_hashes` of the whole prompt.
    """
    return b"=" + draft if draft else b"?" + b"".join(hashes) if hashes else b""


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
        sharing: Sharing = _NOT_SHARED,
    ) -> DraftDecision:
        """Take `tokens` for a prefill that is over after `life_seconds` at the latest; one atomic decision.

        Raises:
            redis.exceptions.RedisError: Redis does not answer.
        """
        keys = [redis_keys.draft_bucket_key(tenant_id), redis_keys.drafts_key(tenant_id), *_open_keys(tenant_id)]
        args: list[Argument] = [
            tokens,
            tokens_per_minute,
            most_in_flight,
            prefill_id,
            replaces,
            int(life_seconds * 1000),
            sharing.name,
            sharing.former,
            int(sharing.seconds * 1000),
        ]
        reply: Reply = await self._functions.call("draft", keys, args)
        verdict, retry_ms, was_open = reply
        return DraftDecision(DraftVerdict(verdict.decode()), int(retry_ms) / 1000, not was_open)

    async def release(self, tenant_id: str, prefill_id: str) -> None:
        """Say that a prefill is not wanted any more; what was taken for it stays taken.

        Raises:
            redis.exceptions.RedisError: Redis does not answer.
        """
        await self._redis.zrem(redis_keys.drafts_key(tenant_id), prefill_id)

    async def dismiss(self, tenant_id: str, drafts: Sequence[bytes]) -> list[bool]:
        """Say that nothing was sent of drafts; returns for each whether that is so: others may have had its prompt.

        Raises:
            redis.exceptions.RedisError: Redis does not answer.
        """
        reply: Reply = await self._functions.call("dismiss", _open_keys(tenant_id), drafts)
        return [bool(was_open) for was_open in reply]


def _open_keys(tenant_id: str) -> list[str]:
    return [redis_keys.open_drafts_key(tenant_id), redis_keys.open_drafts_ending_key(tenant_id)]
