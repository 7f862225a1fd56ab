"""Credit: what this gateway's readers acknowledged, turned into how far each engine may generate.

`up_to = acknowledged + window`, where the fastest reader counts (slower ones read the log). Positions are absolute and
only rise, so a lost, late or repeated message does no harm; they go out coalesced, one Redis call for all streams of a
moment.
"""

import asyncio

import structlog
from msgspec import Struct
from redis.exceptions import RedisError

from apps.streams import metrics
from headrace_wire.request_queue import RequestQueue

log = structlog.get_logger(__name__)

UNLIMITED = 2**31 - 1
"""Credit of a stream that nobody slows down."""

COALESCE_SECONDS = 0.002
RETRY_SECONDS = 0.25

WINDOW_PARTS = 4
"""Credit is sent in steps of a quarter of the window: a reader in step costs one message per quarter, not per token."""


class _Account(Struct):
    window: int
    acknowledged: int = 0
    granted: int = 0
    due_at: int = 0
    """Position with whose acknowledgement the next step is granted: the one thing that each token looks at."""

    def __post_init__(self) -> None:
        self.grant(self.granted)

    def grant(self, up_to: int) -> None:
        """Note how far the engine is told to go."""
        self.granted = up_to
        self.due_at = up_to + max(1, self.window // WINDOW_PARTS) - self.window


class CreditBook:
    """Accounts of the streams that are read through this gateway."""

    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue
        self._accounts: dict[str, _Account] = {}
        self._due: dict[str, int] = {}
        self._wake = asyncio.Event()

    def open(self, stream_id: str, *, window: int, granted: int = 0) -> None:
        """Start an account, unless the stream has one. `granted` is what its owner knows already."""
        if window and stream_id not in self._accounts:
            self._accounts[stream_id] = _Account(window, granted=granted)

    def acknowledge(self, stream_id: str, position: int) -> None:
        """Note that a reader has everything up to `position`."""
        account = self._accounts.get(stream_id)
        if account is None or position <= account.acknowledged:
            return
        account.acknowledged = position
        if position >= account.due_at:
            self._grant(stream_id, account, position + account.window)

    def release(self, stream_id: str, up_to: int = UNLIMITED) -> None:
        """Let a stream generate up to `up_to` whatever its readers do."""
        account = self._accounts.get(stream_id)
        if account is None:
            account = self._accounts[stream_id] = _Account(UNLIMITED)
        if up_to > account.granted:
            self._grant(stream_id, account, up_to)

    def grant_again(self) -> None:
        """Redis may have forgotten the last second: say again how far each stream may generate."""
        for stream_id, account in self._accounts.items():
            if account.granted:
                self._due.setdefault(stream_id, account.granted)
        if self._due:
            self._wake.set()

    def granted(self, stream_id: str) -> int:
        """Return how far the stream may generate, or 0 for no limit."""
        account = self._accounts.get(stream_id)
        return account.granted if account is not None else 0

    def close(self, stream_id: str) -> None:
        """Forget a stream; credit that is due is still sent."""
        self._accounts.pop(stream_id, None)

    async def run(self) -> None:
        """Send what is due, until cancelled. What Redis did not take is sent again."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(COALESCE_SECONDS)  # acknowledgements of one moment share a call
            self._wake.clear()
            if not await self.flush():
                self._wake.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def flush(self) -> bool:
        """Send what is due now; False when Redis did not take it (it stays due)."""
        due, self._due = self._due, {}
        try:
            if due:
                await self._queue.credit(list(due.items()))
                metrics.CREDIT_MESSAGES.inc(len(due))
        except RedisError as error:
            log.warning("credit_not_sent", streams=len(due), error=str(error))
            self._due = {**due, **self._due}
            return False
        return True

    def _grant(self, stream_id: str, account: _Account, up_to: int) -> None:
        account.grant(up_to)
        self._due[stream_id] = up_to
        self._wake.set()
