"""Computes prefixes ahead of any request, while nobody else needs the engine.

A prefix goes to the engine in pieces, each a prompt of its own that begins with the one before: the engine's prefix
cache carries it on. So a request that comes meanwhile waits for one piece's step at most; the piece is aborted for it,
and what was computed stays in the cache. What is in the engine for this has no stream: it takes none of their places.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence

from headrace_wire.messages import Prefill, PrefillPurpose, SamplingParams
from headrace_wire.prefill_reports import PrefillOutcome, PrefillReport
from headrace_worker.engine import Engine, EngineInfo, EngineOutput, EngineRequest, RequestRefusedError
from headrace_worker.prefill_metrics import PrefillMetrics
from headrace_worker.prefill_queue import PrefillQueue, Prefix

log = logging.getLogger(__name__)

PIECE_SECONDS = 0.1
"""How long one piece should take; pieces become longer or shorter by what the last one took."""
SMALLEST_PIECE, FIRST_PIECE, LARGEST_PIECE = 64, 256, 8192
"""Tokens."""

Report = Callable[[Prefill, PrefillReport], Awaitable[None]]
Computed = Callable[[str, Sequence[int]], None]
"""Takes a salt, and the ids of the prefix that is there now."""


class Prefilling:
    """Holds what is to be computed, and works on it as long as an engine is there. Belongs to one event loop."""

    def __init__(
        self, metrics: PrefillMetrics, *, is_quiet: Callable[[], bool], report: Report, computed: Computed
    ) -> None:
        """`is_quiet` says whether nobody else needs the engine; `report` gets the end of prompt caches' prefixes.

        `computed` is told of every piece.
        """
        self._metrics = metrics
        self._is_quiet = is_quiet
        self._report = report
        self._computed = computed
        self._queue = PrefillQueue(self._dropped)
        self._changed = asyncio.Event()
        self._request_id = ""
        """Of the piece that the engine has."""
        self._in_engine: Prefix | None = None
        self._answer: asyncio.Future[int | None] | None = None
        """Cached tokens of that piece; None where it is to stop."""
        self._piece = FIRST_PIECE

    def put(self, prefill: Prefill) -> None:
        """Take a prefill, or drop it where too many wait."""
        self._queue.put(prefill)
        self._changed.set()

    def cancel(self, prefill_id: str) -> None:
        """Stop a prefill; an unknown one is fine."""
        self._queue.drop(prefill_id, PrefillOutcome.CANCELLED)

    def give_way(self) -> None:
        """Stop what runs: a request has come. It goes on when that one has its first token."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def feed(self, outputs: Sequence[EngineOutput]) -> None:
        """Look at what the engine gives: our own, or a sign that somebody may not need it any more."""
        for output in outputs if self._request_id else ():
            if output.request_id == self._request_id and self._answer is not None and not self._answer.done():
                self._answer.set_result(output.cached_tokens)
        self.consider()

    def consider(self) -> None:
        """Look again whether somebody else needs the engine."""
        if len(self._queue):
            self._changed.set()

    async def run(self, engine: Engine, info: EngineInfo) -> None:
        """Compute what comes, until cancelled: the engine has ended then, and with it what waited for it.

        Raises:
            EngineDeadError: the engine is gone.
        """
        try:
            while True:
                self._changed.clear()
                prefix = self._queue.first()
                if prefix is None or not self._is_quiet():
                    await self._changed.wait()
                    continue
                await self._advance(engine, info, prefix, self._piece)
        finally:
            self._queue.drop_all(PrefillOutcome.LOST)

    async def complete(self, engine: Engine, info: EngineInfo) -> None:
        """Compute all that waits at once, before there are any requests.

        Raises:
            EngineDeadError: the engine is gone.
        """
        while (prefix := self._queue.first()) is not None:
            await self._advance(engine, info, prefix, LARGEST_PIECE)

    async def _advance(self, engine: Engine, info: EngineInfo, prefix: Prefix, tokens: int) -> None:
        """Compute the next tokens of a prefix, and let go of it where these were the last."""
        purpose, prefill = prefix.prefill.purpose, prefix.prefill
        if not prefix.ids or len(prefix.ids) + 2 > info.max_model_len:
            self._queue.drop(prefill.prefill_id, PrefillOutcome.REFUSED)
            return
        if not prefix.is_begun:
            prefix.is_begun = True
            self._metrics.begun(purpose)
        up_to = min(prefix.done + tokens, len(prefix.ids))
        began = time.monotonic()
        try:
            cached = await self._compute(engine, prefix, up_to)
        except RequestRefusedError as error:
            log.warning("a prefix is refused prefill_id=%s: %s", prefill.prefill_id, error.message)
            self._queue.drop(prefill.prefill_id, PrefillOutcome.REFUSED)
            return
        if cached is None:
            self._metrics.given_way(purpose)
            return
        seconds, before = time.monotonic() - began, (prefix.computed, prefix.cached)
        prefix.advance(up_to, cached=cached, seconds=seconds)
        self._computed(prefill.cache_salt, prefix.ids[:up_to])
        computed, found = prefix.computed - before[0], prefix.cached - before[1]
        self._metrics.advanced(purpose, computed=computed, cached=found, seconds=seconds)
        self._adapt(seconds)
        if prefix.done == len(prefix.ids) and self._queue.take(prefix):
            self._metrics.ended(purpose, PrefillOutcome.DONE)
            await self._tell(prefix)

    async def _compute(self, engine: Engine, prefix: Prefix, up_to: int) -> int | None:
        """Have the engine compute a prefix up to a position; return how much of it was cached, None if it stopped.

        The prompt is one token longer: engines compute the last token of a prompt anew, and its whole block with it.
        """
        request = EngineRequest(
            f"prefill-{secrets.token_hex(6)}",
            [*prefix.ids[:up_to], prefix.ids[min(up_to, len(prefix.ids) - 1)]],
            SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
            prefix.prefill.cache_salt,
            behind=True,
        )
        self._in_engine, self._request_id = prefix, request.request_id
        self._answer = answer = asyncio.get_running_loop().create_future()
        try:
            await engine.submit(request)
            cached: int | None = await answer
            if cached is None:
                await engine.abort([request.request_id])
            return cached
        finally:
            self._in_engine = self._answer = None
            self._request_id = ""

    def _adapt(self, seconds: float) -> None:
        if seconds < PIECE_SECONDS / 2:
            self._piece = min(self._piece * 2, LARGEST_PIECE)
        elif seconds > PIECE_SECONDS * 2:
            self._piece = max(self._piece // 2, SMALLEST_PIECE)

    def _dropped(self, prefix: Prefix, outcome: PrefillOutcome) -> None:
        self._metrics.ended(prefix.prefill.purpose, outcome)
        if prefix is self._in_engine:
            self.give_way()

    async def _tell(self, prefix: Prefix) -> None:
        if prefix.prefill.purpose is PrefillPurpose.PROMPT_CACHE:
            report = PrefillReport(
                PrefillOutcome.DONE, len(prefix.ids), prefix.cached, prefix.computed, prefix.seconds, time.time()
            )
            await self._report(prefix.prefill, report)
