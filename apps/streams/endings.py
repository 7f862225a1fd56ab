"""Ending streams that this gateway owns: cancelled in the queue, or left behind by a worker that died.

Order as everywhere: terminal entry in the log, settle, publish (DESIGN 3, Settle).
"""

import structlog

from apps.streams import metrics
from headrace_wire.cancel_reasons import told_of_cancel
from headrace_wire.errors import EngineError, HeadraceError, RateLimitError, ServerOverloadedError
from headrace_wire.messages import Delta, Ended, FinishReason, Started, StreamError, StreamState, Timings, Usage
from headrace_wire.request_queue import MAX_ATTEMPTS, GivenBack, RequestQueue, Taken, settle_call
from headrace_wire.token_log import Append, AppendResult, TokenLog

log = structlog.get_logger(__name__)

QUEUE_TIMEOUT = "queue_timeout"
"""Cancel reason of a stream that nobody took, or went on with, in time."""
OWN_LIMIT_TIMEOUT = "own_limit_timeout"
"""Likewise, of one that waited for parallel requests of its own tenant, member or key to end."""
OWN_LIMIT_KEPT_IT = (
    "As many parallel requests as `max_parallel_requests` allows were running until the request's deadline; "
    "send it again when one of them has ended."
)
_NOBODY_WENT_ON = "No worker went on with this stream in time; what was sent stands, the rest is missing."


class Endings:
    """Writes terminal entries for streams owned by `incarnation`."""

    def __init__(self, token_log: TokenLog, queue: RequestQueue, incarnation: str) -> None:
        self._log = token_log
        self._queue = queue
        self._incarnation = incarnation

    async def cancelled(self, stream_id: str, *, epoch: int, reason: str = "") -> None:
        """End a stream that was cancelled; its readers are told the reason where that was not theirs."""
        error = told_of_cancel(reason)
        await self._end(stream_id, epoch, StreamState.CANCELLED, FinishReason.ABORT, error)

    async def failed(self, stream_id: str, *, epoch: int, error: HeadraceError) -> None:
        """End a stream with an error that its readers see."""
        logged = StreamError(error.code, error.message, error.param, error.retry_after_seconds)
        await self._end(stream_id, epoch, StreamState.FAILED, FinishReason.ERROR, logged)

    async def left_behind(self, taken: Taken) -> None:
        """Bring a stream on whose owner died: end it as its client asked, else give it to another worker.

        One whose attempts are used up (it may be what kills its workers) fails explicitly; its text stays readable.
        """
        tail = await self._log.tail(taken.stream_id)
        if isinstance(tail, Ended):
            # The worker died between its terminal entry and the settlement.
            await self._settle_and_publish(tail, taken.epoch)
        elif taken.cancel_reason == QUEUE_TIMEOUT:
            await self.failed(taken.stream_id, epoch=taken.epoch, error=ServerOverloadedError(_NOBODY_WENT_ON))
        elif taken.cancel_reason == OWN_LIMIT_TIMEOUT:
            await self.failed(taken.stream_id, epoch=taken.epoch, error=RateLimitError(OWN_LIMIT_KEPT_IT))
        elif taken.cancel_reason:
            await self.cancelled(taken.stream_id, epoch=taken.epoch, reason=taken.cancel_reason)
        elif await self._requeue(taken) is GivenBack.EXHAUSTED:
            await self.failed(
                taken.stream_id,
                epoch=taken.epoch,
                error=EngineError(
                    "The worker that served this stream was lost; what was sent stands, the rest is missing."
                ),
            )

    async def tell_again(self, stream_id: str) -> None:
        """Publish an end whose owner may have died before it did; who knows it already takes no notice."""
        tail = await self._log.tail(stream_id)
        if isinstance(tail, Ended):
            await self._log.publish([tail])

    async def _requeue(self, taken: Taken) -> GivenBack:
        outcome = await self._queue.requeue(
            taken.stream_id,
            epoch=taken.epoch,
            incarnation=self._incarnation,
            deployment=taken.deployment,
            max_attempts=MAX_ATTEMPTS,
        )
        log.info("stream_requeued", stream_id=taken.stream_id, attempts=taken.attempts, outcome=outcome.value)
        return outcome

    async def _end(
        self,
        stream_id: str,
        epoch: int,
        state: StreamState,
        finish_reason: FinishReason,
        error: StreamError | None,
    ) -> None:
        record = await self._queue.record(stream_id)
        tail = await self._log.tail(stream_id)
        if tail is None or record is None:
            log.warning("stream_vanished", stream_id=stream_id)
            nothing_sent = Ended(stream_id, epoch, 1, state, FinishReason.ERROR, None, Usage(), Timings())
            await self._settle(nothing_sent, epoch, log_ttl_seconds=0)
            return
        has_begun = isinstance(tail, Delta | Started)
        usage = Usage(await self._queue.prompt_tokens(stream_id), tail.seq) if has_begun else Usage()
        entry = Ended(stream_id, epoch, tail.seq + 1, state, finish_reason, None, usage, Timings(), error)
        (result,) = await self._log.append([Append(entry, log_ttl_seconds=record.log_ttl_seconds)])
        if result is AppendResult.ACCEPTED:
            await self._settle_and_publish(entry, epoch, log_ttl_seconds=record.log_ttl_seconds)
        else:
            log.warning("ending_refused", stream_id=stream_id, result=result.name)

    async def _settle_and_publish(self, entry: Ended, epoch: int, *, log_ttl_seconds: int | None = None) -> None:
        if log_ttl_seconds is None:
            record = await self._queue.record(entry.stream_id)
            log_ttl_seconds = record.log_ttl_seconds if record else 0
        await self._settle(entry, epoch, log_ttl_seconds=log_ttl_seconds)
        await self._log.publish([entry])

    async def _settle(self, entry: Ended, epoch: int, *, log_ttl_seconds: int) -> None:
        call = settle_call(
            entry.stream_id,
            epoch=epoch,
            incarnation=self._incarnation,
            state=entry.state,
            log_ttl_seconds=log_ttl_seconds,
            finish_reason=entry.finish_reason,
            usage=entry.usage,
        )
        await self._queue.settle_or_set_aside(call, metrics.SETTLEMENTS_SET_ASIDE.inc)
