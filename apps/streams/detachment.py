"""What becomes of a stream that nobody reads any more: its tenant's policy (finish, continue a little, abort)."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog
from msgspec import Struct
from redis.exceptions import RedisError

from apps.streams.credit_book import UNLIMITED, CreditBook
from headrace_wire.snapshot import DetachedPolicy, TenantConfig
from headrace_wire.token_log import TokenLog

log = structlog.get_logger(__name__)

RETRY_SECONDS = 0.5
MOST_UNHEARD = 4096
"""Departures that wait for Redis to answer again; of more, the oldest are given up."""


class Departure(Struct, frozen=True):
    """The last reader of a stream on this gateway has left."""

    stream_id: str
    tenant_id: str
    policy: DetachedPolicy
    grace_seconds: float
    """How long somebody may come back before the policy acts; 0 where the client cannot (a plain SSE request)."""
    position: int
    """Of the last token that the reader was given."""
    continue_tokens: int = 0
    """Tokens that `continue` still allows beyond `position`."""


def departure_of(tenant: TenantConfig, stream_id: str, *, position: int, can_return: bool) -> Departure:
    """Return what a tenant's policy makes of a stream whose last reader has left."""
    return Departure(
        stream_id,
        tenant.id,
        tenant.detached_policy if can_return else DetachedPolicy.ABORT,
        tenant.detached_grace_seconds if can_return else 0.0,
        position,
        tenant.detached_tokens,
    )


class Detachment:
    """Waits out the grace of unread streams, then lets their policy act. Attaching again in time stops it."""

    def __init__(
        self,
        token_log: TokenLog,
        credit: CreditBook,
        *,
        abort: Callable[[Departure], Awaitable[None]],
    ) -> None:
        self._log = token_log
        self._credit = credit
        self._abort = abort
        self._waiting: dict[str, tuple[Departure, asyncio.Task[None]]] = {}
        self._hurry = asyncio.Event()
        self._unheard: deque[Departure] = deque(maxlen=MOST_UNHEARD)

    def unheard(self, departure: Departure) -> None:
        """Note a stream of which nobody has heard whether it was admitted: its caller left, or the answer got lost."""
        self._unheard.append(departure)

    def take_unheard(self) -> list[Departure]:
        """Return such departures, which are to begin once Redis answers: it knows which of the streams there are."""
        taken = list(self._unheard)
        self._unheard.clear()
        return taken

    def departed(self, departure: Departure, *, gateway: str) -> None:
        """Begin the grace of a stream; returns at once."""
        self.returned(departure.stream_id)
        task = asyncio.create_task(self._act(departure, gateway), name=f"detached {departure.stream_id}")
        self._waiting[departure.stream_id] = departure, task
        task.add_done_callback(lambda _: self._forget(departure.stream_id, task))

    def returned(self, stream_id: str) -> Departure | None:
        """Stop waiting: somebody reads the stream again. Returns what was waited out, for one who cannot after all."""
        departure, task = self._waiting.pop(stream_id, (None, None))
        if task is not None:
            task.cancel()
        return departure

    def stream_ids(self) -> list[str]:
        """Return the streams that are attached here though nobody reads them."""
        return list(self._waiting)

    def is_waiting(self, stream_id: str) -> bool:
        """Say whether the grace of a stream runs, or its policy acts."""
        return stream_id in self._waiting

    async def ends_within(self, seconds: float) -> bool:
        """Wait for so long; return at once, and True, where the gateway ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        return self._hurry.is_set()

    async def finish(self) -> None:
        """Let every waiting policy act now (the gateway ends); returns when all have."""
        self._hurry.set()
        await asyncio.gather(*[task for _, task in self._waiting.values()], return_exceptions=True)

    def _forget(self, stream_id: str, task: "asyncio.Task[None]") -> None:
        if stream_id in self._waiting and self._waiting[stream_id][1] is task:
            del self._waiting[stream_id]

    async def _act(self, departure: Departure, gateway: str) -> None:
        if departure.grace_seconds:
            await self.ends_within(departure.grace_seconds)
        while True:
            try:
                if await self._log.detach(departure.stream_id, gateway) == 0:
                    await self._apply(departure)
            except RedisError as error:
                log.warning("detach_failed", stream_id=departure.stream_id, error=str(error))
                if self._hurry.is_set():
                    return
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._credit.close(departure.stream_id)
                return

    async def _apply(self, departure: Departure) -> None:
        log.info("stream_unread", stream_id=departure.stream_id, policy=departure.policy.value)
        if departure.policy is DetachedPolicy.ABORT:
            await self._abort(departure)
            return
        up_to = UNLIMITED
        if departure.policy is DetachedPolicy.CONTINUE:
            up_to = departure.position + departure.continue_tokens
        self._credit.release(departure.stream_id, up_to)
