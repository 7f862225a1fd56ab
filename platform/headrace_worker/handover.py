"""Streams that leave this worker before their end: suspended until their reader comes on, or back into the queue.

Pause, migration, engine death and drain are this one thing: stop the engine, let the log have what was generated, give
the stream up. Whoever claims it next goes on from the log.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from headrace_wire.messages import StreamError
from headrace_wire.request_queue import MAX_ATTEMPTS, GivenBack, RequestQueue
from headrace_worker.finishing import until_answered
from headrace_worker.generation import Generation
from headrace_worker.metrics import WorkerMetrics
from headrace_worker.publisher import Publisher

log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0
"""How long the log may take to get what was generated; what it does not get is generated again."""

ELSEWHERE_SECONDS = 10.0
"""How long a stream that was sent elsewhere is left to the others; then it is better served here than not at all."""


class Handover:
    """Gives streams up; each is in here once at most, and still owned until the queue has it."""

    def __init__(
        self,
        publisher: Publisher,
        queue: RequestQueue,
        metrics: WorkerMetrics,
        *,
        save: Callable[[Sequence[Generation]], Awaitable[None]],
        stop: Callable[[Sequence[Generation]], Awaitable[None]],
        forget: Callable[[Generation], None],
    ) -> None:
        """`save` has the engine keep what it has computed for streams, which may end meanwhile.

        `stop` takes streams from the engine; `forget` is told of each that is gone, or has ended instead.
        """
        self._publisher = publisher
        self._queue = queue
        self._metrics = metrics
        self._save = save
        self._stop = stop
        self._forget = forget

    async def suspend(self, generation: Generation, reason: str) -> None:
        """Give up a held stream until it gets more credit than it has."""
        if not generation.is_held or not self._begin([generation]):
            return
        await self._save([generation])
        await self._withdraw([generation])
        outcome = await until_answered(
            lambda: self._queue.suspend(
                generation.stream_id,
                epoch=generation.epoch,
                incarnation=generation.owner,
                deployment=generation.request.deployment,
                credit=generation.credit,
                reason=reason,
            )
        )
        self._metrics.suspended(reason)
        self._conclude(generation, outcome, None)

    async def requeue(
        self,
        generations: Sequence[Generation],
        error: StreamError,
        *,
        blamed: Sequence[Generation] = (),
        saving: bool = False,
        elsewhere: bool = False,
    ) -> None:
        """Give streams to whoever claims them next, in this order; those that cannot be continued end with `error`.

        For the `blamed` ones this was one of their attempts, and whose are used up end with `error` too. With `saving`,
        what the engine has computed is kept first. With `elsewhere`, this worker leaves them to the others for a while.
        """
        leaving = self._begin(generations)
        if saving:
            await self._save(leaving)
            leaving = [generation for generation in leaving if generation.ended is None]
        await self._withdraw(leaving)
        for generation in reversed(leaving):  # each goes to the head: the first one last
            if not generation.may_continue:
                self._conclude(generation, GivenBack.EXHAUSTED, error)
                continue
            outcome = await until_answered(
                partial(self._requeue, generation, counts=generation in blamed, elsewhere=elsewhere)
            )
            self._conclude(generation, outcome, error)

    def _begin(self, generations: Sequence[Generation]) -> list[Generation]:
        leaving = [g for g in generations if not (g.is_leaving or g.is_cancelling or g.ended is not None)]
        for generation in leaving:
            generation.is_leaving = True
        return leaving

    async def _withdraw(self, generations: Sequence[Generation]) -> None:
        await self._stop(generations)
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                for generation in generations:
                    await self._publisher.wait_flushed(generation.stream_id, generation.epoch)
        except TimeoutError:
            log.warning("streams are given back without their last tokens, redis is slow: %d", len(generations))

    async def _requeue(self, generation: Generation, *, counts: bool, elsewhere: bool) -> GivenBack:
        return await self._queue.requeue(
            generation.stream_id,
            epoch=generation.epoch,
            incarnation=generation.owner,
            deployment=generation.request.deployment,
            max_attempts=MAX_ATTEMPTS,
            counts=counts,
            elsewhere_seconds=ELSEWHERE_SECONDS if elsewhere else 0.0,
        )

    def _conclude(self, generation: Generation, outcome: GivenBack, error: StreamError | None) -> None:
        log.info("given back stream_id=%s seq=%d: %s", generation.stream_id, generation.seq, outcome.value)
        if outcome is GivenBack.CANCELLED:
            generation.cancel()
        elif outcome is GivenBack.EXHAUSTED and error is not None:
            generation.fail(error)
        else:
            self._publisher.release(generation.stream_id, generation.epoch)
        self._metrics.given_back(outcome.value)
        self._forget(generation)
