"""The streams that this worker works on: from a claim to the engine, and from the engine to the publisher."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Mapping, Sequence

from redis.exceptions import RedisError

from headrace_wire import codec
from headrace_wire.functions import Functions
from headrace_wire.messages import Ended, GenerateRequest, StreamError
from headrace_wire.request_queue import Claimed, RequestQueue
from headrace_wire.token_log import Append, TokenLog
from headrace_worker.engine import (
    Engine,
    EngineDeadError,
    EngineInfo,
    EngineOutput,
    EngineRequest,
    RequestRefusedError,
)
from headrace_worker.generation import Generation
from headrace_worker.metrics import WorkerMetrics
from headrace_worker.outbox import Outbox
from headrace_worker.publisher import Publisher

log = logging.getLogger(__name__)

LATE = StreamError("server_overloaded", "No worker was free before the queue deadline; try again later.")
ENGINE_LOST = StreamError("engine_error", "The engine failed; what was sent stands, the rest is missing.")
WORKER_LOST = StreamError("engine_error", "The worker was lost; what was sent stands, the rest is missing.")
STALLED = StreamError("timeout", "The engine gave no token within the deployment's deadline.")
DRAINED = StreamError("engine_error", "The worker was shut down before the answer was complete.")
INTERNAL = StreamError("internal_error", "The worker failed on this request.")


class Streams:
    """All live generations of one worker, never more than `room` allowed. Belongs to one event loop."""

    def __init__(
        self, redis_url: str, functions: Functions, token_log: TokenLog, queue: RequestQueue, metrics: WorkerMetrics
    ) -> None:
        self.publisher = Publisher(redis_url, functions, token_log, queue, on_drop=self._dropped)
        self._log = token_log
        self._metrics = metrics
        self._live: dict[str, Generation] = {}
        self._engine: Engine | None = None
        self._info: EngineInfo | None = None
        self._rendering = asyncio.Lock()
        self._tasks = asyncio.TaskGroup()
        self._deadline_changed = asyncio.Event()
        self._next_check = math.inf
        """When deadlines are looked at next, monotonic."""
        self.batch_max: int | None = None
        """The deployment's bound of concurrent requests, below what the engine could run."""
        self.room_changed = asyncio.Event()
        """Set when there may be more room than before."""

    async def run(self) -> None:
        """Publish, and end what stalls, until cancelled."""
        async with self._tasks:
            self._tasks.create_task(self.publisher.run(), name="publisher")
            self._tasks.create_task(self._end_stalled(), name="deadlines")

    # ---- the engine

    def attach(self, engine: Engine, info: EngineInfo) -> None:
        """Use this engine from now on."""
        self._engine, self._info = engine, info
        self.room_changed.set()

    def detach(self, error: StreamError | None) -> None:
        """Stop using the engine; streams that it still had end with `error`."""
        self._engine = None
        if error is not None:
            self.fail_all(error)

    @property
    def room(self) -> int:
        """How many more streams may be claimed."""
        if self._engine is None or self._info is None:
            return 0
        return min(self._info.max_num_seqs, self.batch_max or self._info.max_num_seqs) - len(self._live)

    def __len__(self) -> int:
        return len(self._live)

    # ---- in

    def launch(self, claimed: Claimed, *, owner: str) -> None:
        """Begin to work on a claimed stream."""
        outbox = Outbox(
            claimed.stream_id,
            epoch=claimed.epoch,
            incarnation=owner,
            log_ttl_seconds=claimed.request.log_ttl_seconds,
        )
        publisher = self.publisher

        def emit(append: Append) -> None:
            publisher.put(outbox, append)

        publisher.open(outbox)
        generation = Generation(claimed, owner=owner, emit=emit)
        self._live[claimed.stream_id] = generation
        self._metrics.claimed(claimed)
        if claimed.is_late:
            self._fail(generation, LATE)
            return
        self._deadline_changed.set()
        self._tasks.create_task(self._start(generation, outbox))

    def feed(self, outputs: Sequence[EngineOutput]) -> None:
        """Take one batch of engine outputs; all entries that it makes go into one append."""
        now = time.monotonic()
        live = self._live
        tokens, to_abort = 0, []
        for output in outputs:
            generation = live.get(output.request_id)
            if generation is None:
                continue
            tokens += len(output.token_ids)
            try:
                is_stopped = generation.feed(output, now)
            except Exception:  # one stream's trouble is not the others'
                log.exception("failed on an output stream_id=%s", output.request_id)
                generation.fail(INTERNAL)
                is_stopped = True
            if is_stopped:
                to_abort.append(output.request_id)
            if generation.ended is not None:
                self._retire(generation)
            elif generation.deadline < self._next_check:
                self._deadline_changed.set()
        self.publisher.flush()
        self._metrics.generated(tokens)
        if to_abort:
            self._tasks.create_task(self._abort(to_abort))

    def cancel(self, reasons: Mapping[str, str]) -> None:
        """Stop streams that their clients cancelled; the end is written when the engine has stopped them."""
        found = [generation for stream_id in reasons if (generation := self._live.get(stream_id)) is not None]
        fresh = [generation for generation in found if not generation.is_cancelling]
        for generation in fresh:
            generation.is_cancelling = True
            log.info("cancel stream_id=%s reason=%s", generation.stream_id, reasons[generation.stream_id])
        if fresh:
            self._tasks.create_task(self._cancel(fresh))

    def fail_all(self, error: StreamError) -> None:
        """End every live stream with an error."""
        for generation in list(self._live.values()):
            self._fail(generation, error)

    def abandon_all(self) -> None:
        """Drop every live stream without a word: this incarnation may not write any more."""
        self.publisher.lose([stream_id for stream_id, _ in self.publisher.owned()])

    # ---- starting

    async def _start(self, generation: Generation, outbox: Outbox) -> None:
        try:
            if generation.claimed.attempt > 1 and not await self._is_untouched(generation, outbox):
                return
            await self._submit(generation)
        except RequestRefusedError as refusal:
            self._fail(generation, StreamError(refusal.code, refusal.message))
        except EngineDeadError:
            self._fail(generation, ENGINE_LOST)
        except RedisError as error:
            log.warning("claim given back stream_id=%s: %s", generation.stream_id, error)
            self.publisher.lose([generation.stream_id])  # not listed any more, so the next renew puts it back
        except Exception:
            log.exception("failed to start stream_id=%s", generation.stream_id)
            self._fail(generation, INTERNAL)

    async def _submit(self, generation: Generation) -> None:
        request, engine, info = generation.request, self._engine, self._info
        if engine is None or info is None:
            raise EngineDeadError("no engine")
        prompt_ids = await self._prompt_ids(request, info)
        if generation.ended is not None:
            return
        generation.prepare(info.tokenizer, prompt_ids)
        await engine.submit(EngineRequest(generation.stream_id, prompt_ids, request.sampling, request.cache_salt))
        if self._live.get(generation.stream_id) is generation:
            generation.start()
        else:  # it ended, or was lost, while the engine took it
            await engine.abort([generation.stream_id])

    async def _prompt_ids(self, request: GenerateRequest, info: EngineInfo) -> list[int]:
        if request.prompt_ids:
            return codec.unpack_token_ids(request.prompt_ids)
        async with self._rendering:  # tokenizers must not be used from two threads at once
            if request.conversation:
                return await asyncio.to_thread(info.renderer.render, request.conversation)
            return await asyncio.to_thread(info.renderer.tokenize, request.raw_prompt)

    async def _is_untouched(self, generation: Generation, outbox: Outbox) -> bool:
        """Look at what an earlier owner left; False when the stream was ended here instead of started."""
        tail = await self._log.tail(generation.stream_id)
        if isinstance(tail, Ended):
            self._live.pop(generation.stream_id, None)
            self.publisher.adopt(outbox, tail)
            return False
        if tail is not None and tail.seq > 0:
            generation.seq = tail.seq
            self._fail(generation, WORKER_LOST)
            return False
        return True

    # ---- ending

    async def _cancel(self, generations: Sequence[Generation]) -> None:
        await self._abort([generation.stream_id for generation in generations])
        for generation in generations:
            generation.cancel()
            self._retire(generation)

    async def _abort(self, stream_ids: Sequence[str]) -> None:
        if self._engine is not None:
            await self._engine.abort(stream_ids)

    def _fail(self, generation: Generation, error: StreamError) -> None:
        generation.fail(error)
        self._retire(generation)

    def _retire(self, generation: Generation) -> None:
        if self._live.get(generation.stream_id) is generation:
            del self._live[generation.stream_id]
            self.room_changed.set()
            if generation.ended is not None:
                self._metrics.ended(generation.ended)

    def _dropped(self, stream_id: str) -> None:
        generation = self._live.get(stream_id)
        if generation is not None:
            self._retire(generation)
            self._tasks.create_task(self._abort([stream_id]))

    async def _end_stalled(self) -> None:
        """End streams whose engine gives nothing. Wakes at the earliest deadline, which moves with each token."""
        while True:
            self._deadline_changed.clear()
            now = time.monotonic()
            stalled = [generation for generation in self._live.values() if generation.deadline <= now]
            for generation in stalled:
                log.warning("stalled stream_id=%s seq=%d", generation.stream_id, generation.seq)
                self._fail(generation, STALLED)
            if stalled:
                await self._abort([generation.stream_id for generation in stalled])
            self._next_check = min((generation.deadline for generation in self._live.values()), default=math.inf)
            pause = None if self._next_check == math.inf else self._next_check - time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._deadline_changed.wait()
