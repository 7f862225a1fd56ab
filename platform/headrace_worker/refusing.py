"""Ends streams whose requests this worker cannot read, each with an error; the others and the worker go on."""

import asyncio
import logging

from headrace_wire import codec
from headrace_wire.messages import Ended, FinishReason, StreamState, Timings, Usage
from headrace_wire.request_queue import RequestQueue, Unreadable
from headrace_wire.token_log import Append, TokenLog
from headrace_worker.failures import UNREADABLE_REQUEST
from headrace_worker.finishing import until_answered
from headrace_worker.metrics import WorkerMetrics
from headrace_worker.outbox import Outbox
from headrace_worker.publisher import Publisher

log = logging.getLogger(__name__)


class Refusing:
    """Belongs to one event loop."""

    def __init__(
        self,
        queue: RequestQueue,
        token_log: TokenLog,
        publisher: Publisher,
        tasks: asyncio.TaskGroup,
        metrics: WorkerMetrics,
    ) -> None:
        self._queue = queue
        self._log = token_log
        self._publisher = publisher
        self._tasks = tasks
        self._metrics = metrics

    def refuse(self, unreadable: Unreadable, *, owner: str) -> None:
        """Have a stream that was claimed end with an error; returns at once, and it is listed as owned until then."""
        stream_id, epoch = unreadable.stream_id, unreadable.epoch
        log.error("request unreadable stream_id=%s epoch=%d: %s", stream_id, epoch, unreadable.problem)
        self._metrics.claims_unreadable.inc()
        outbox = Outbox(stream_id, epoch=epoch, incarnation=owner, log_ttl_seconds=0)
        self._publisher.open(outbox)
        self._tasks.create_task(self._end(outbox))

    async def _end(self, outbox: Outbox) -> None:
        record = await until_answered(lambda: self._queue.record(outbox.stream_id))
        outbox.log_ttl_seconds = record.log_ttl_seconds if record is not None else 0
        try:
            tail = await until_answered(lambda: self._log.tail(outbox.stream_id))
        except codec.DecodeError:
            log.exception("its log cannot be read either stream_id=%s", outbox.stream_id)
            tail = None
        if outbox.dropped:
            return
        if tail is None:
            self._publisher.give_up(outbox)
        elif isinstance(tail, Ended):
            self._publisher.adopt(outbox, tail)
        else:
            usage = Usage(0, tail.seq)
            end = Ended(
                outbox.stream_id,
                outbox.epoch,
                tail.seq + 1,
                StreamState.FAILED,
                FinishReason.ERROR,
                None,
                usage,
                Timings(),
                UNREADABLE_REQUEST,
            )
            self._publisher.put(outbox, Append(end, [], tail.seq, outbox.log_ttl_seconds))
