"""The streams that this worker works on: from a claim to the engine, and from the engine to the publisher."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial

from redis.exceptions import RedisError

from headrace_wire.continuation import EXACT_ENGINE
from headrace_wire.functions import Functions
from headrace_wire.messages import StreamError
from headrace_wire.prefix_index import PrefixIndex
from headrace_wire.request_queue import Claimed, RequestQueue
from headrace_wire.token_log import TokenLog
from headrace_worker.adapter_shelf import AdapterShelf
from headrace_worker.batch_control import DynamicBatch
from headrace_worker.config import HealingLimits, HoldLimits
from headrace_worker.deadlines import Deadlines
from headrace_worker.departures import Departures
from headrace_worker.engine import Engine, EngineDeadError, EngineInfo, EngineOutput, EngineStats, RequestRefusedError
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings
from headrace_worker.failures import ENGINE_LOST, INTERNAL, LATE, STALLED
from headrace_worker.generation import Generation
from headrace_worker.guarding import Guarding
from headrace_worker.handover import Handover
from headrace_worker.healing import Health
from headrace_worker.held_prefixes import HeldPrefixes
from headrace_worker.holding import Holds
from headrace_worker.judging import Judging
from headrace_worker.metrics import WorkerMetrics
from headrace_worker.outbox import Outbox
from headrace_worker.places import LIVE_PER_SLOT, Places
from headrace_worker.publisher import Publisher
from headrace_worker.reckoning import Reckoning
from headrace_worker.refusing import Refusing
from headrace_worker.showing import Showing
from headrace_worker.starting import Starter

log = logging.getLogger(__name__)


class Streams:
    """All live generations of one worker, never more than `room` allowed. Belongs to one event loop."""

    def __init__(  # noqa: PLR0913  what a worker is made of
        self,
        redis_url: str,
        functions: Functions,
        token_log: TokenLog,
        queue: RequestQueue,
        metrics: WorkerMetrics,
        *,
        limits: HoldLimits,
        healing: HealingLimits,
        guarding: Guarding,
        adapters: AdapterShelf,
        checkpoints: CheckpointSettings | None = None,
    ) -> None:
        self.publisher = Publisher(
            redis_url, functions, token_log, on_drop=self._dropped, on_set_aside=metrics.settlements_set_aside.inc
        )
        self._metrics = metrics
        self._live: dict[str, Generation] = {}
        self._requests: dict[str, Generation] = {}
        """Those that the engine has, by its name for them."""
        self._starter = Starter(token_log, self.publisher, guarding.policies, guarding.report, adapters)
        self.stable_prefix = self._starter.stable_prefix
        adapters.in_use = self._adapters_in_use
        self._interventions = guarding.interventions
        self.held_prefixes = HeldPrefixes(PrefixIndex(functions), token_log, metrics.prefixes)
        self._handover = Handover(
            self.publisher, queue, metrics, save=self._starter.checkpoint, stop=self._withdraw, forget=self._retire
        )
        self._tasks = asyncio.TaskGroup()
        self.refusing = Refusing(queue, token_log, self.publisher, self._tasks, metrics)
        self._showing = Showing(queue, self._tasks)
        self._holds = Holds(limits, show=self._showing.states, suspend=self._suspend)
        self.places = Places(self._live, self._holds)
        self.batch = DynamicBatch(self._live, self.places)
        self.health = Health(healing)
        self.departures = Departures(
            self._live, self._handover, self._tasks, holds=self._holds, places=self.places, health=self.health
        )
        self._reckoning = Reckoning(
            metrics,
            health=self.health,
            batch=self.batch,
            held_prefixes=self.held_prefixes,
            guarding=guarding,
            checkpoints=checkpoints,
        )
        self._judging = Judging(guarding.judges, self._tasks, guarding.metrics, judged=self._judged)
        self._deadlines = Deadlines(self._waiting_for_tokens, self._end_stalled)

    async def run(self) -> None:
        """Publish, and see to what is stalled or held, until cancelled."""
        try:
            async with self._tasks:
                self._tasks.create_task(self.publisher.run(), name="publisher")
                self._tasks.create_task(self._deadlines.run(), name="deadlines")
                self._tasks.create_task(self._holds.run(), name="holds")
                self._tasks.create_task(self.batch.run(), name="batch")
                self._tasks.create_task(self._interventions.run(), name="interventions")
        finally:
            self._reckoning.close()

    # ---- the engine

    def attach(self, engine: Engine, info: EngineInfo, *, slots: int) -> None:
        """Use this engine from now on, for `slots` streams at once and what is spare beyond these."""
        self._starter.attach(engine, info)
        self._holds.max_held = info.max_num_seqs * (LIVE_PER_SLOT - 1)
        self.places.attach(slots)

    def detach(self) -> None:
        """Stop using the engine; streams that it still had go back into the queue."""
        self._starter.detach()
        self.places.attach(0)
        self.departures.engine_lost()

    def rest(self) -> None:
        """Stop using an engine that has no stream: what comes before somebody else is told goes back into the queue."""
        self._starter.engine = None
        self.places.attach(0)

    def consider(self, stats: EngineStats) -> None:
        """Take note of what the engine says of itself."""
        self._holds.consider(stats)
        self.batch.consider(stats)
        self._metrics.engine_load(len(self._live), stats)
        self._metrics.batch(self.batch.report)

    def _adapters_in_use(self) -> set[str]:
        return {one.request.adapter.key for one in self._live.values() if one.request.adapter and one.keeps_adapter}

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
        before = self._live.get(claimed.stream_id)
        if before is not None:  # given back a moment ago, and here again before we had forgotten it
            self._forget(before)
        self.publisher.open(outbox)
        info = self._starter.info
        emit = partial(self.publisher.put, outbox)
        generation = Generation(claimed, owner=owner, emit=emit, traits=info.traits if info else EXACT_ENGINE)
        self._live[claimed.stream_id] = generation
        self._metrics.claimed(claimed)
        if claimed.request.traceparent:
            _, trace_id, *_ = claimed.request.traceparent.split("-")
            log.info("claimed stream_id=%s trace_id=%s epoch=%d", claimed.stream_id, trace_id, claimed.epoch)
        if claimed.is_late:
            self._fail(generation, LATE)
            return
        self._deadlines.moved(generation)
        self._tasks.create_task(self._start(generation, outbox))

    def feed(self, outputs: Sequence[EngineOutput]) -> None:
        """Take one batch of engine outputs; all entries that it makes go into one append."""
        raised: dict[str, int] = {}
        to_abort: list[str] = []
        self.publisher.gather()
        try:
            tokens = self._feed_each(outputs, raised, to_abort)
        finally:
            self.publisher.flush()
        self._metrics.generated(tokens)
        self._starter.credit(raised)
        if to_abort:
            self._abort(to_abort)

    def _feed_each(self, outputs: Sequence[EngineOutput], raised: dict[str, int], to_abort: list[str]) -> int:
        """Give generations what the engine has for them; return how many tokens that is.

        `raised` gets what the engine is to be told of their credit, `to_abort` whom it must stop without knowing it.
        """
        now, tokens = time.monotonic(), 0
        requests, deadlines = self._requests, self._deadlines
        for output in outputs:
            generation = requests.get(output.request_id)
            if generation is None:
                continue
            tokens += len(output.token_ids)
            try:
                if generation.feed(output, now):
                    to_abort.append(output.request_id)
            except Exception:  # one stream's trouble is not the others'
                log.exception("failed on an output stream_id=%s", generation.stream_id)
                generation.fail(INTERNAL)
                to_abort.append(output.request_id)
            if generation.ended is not None:
                self._retire(generation)
            elif generation.seq >= generation.stop_at and generation.is_at_limit:
                self._moved(generation, now, raised)
            elif generation.deadline < deadlines.next_check:
                deadlines.moved(generation)
            guard = generation.guard
            if guard is not None and guard.has_windows:
                self._judging.consider(generation)
            if self._starter.is_careful or generation.claimed.attempt > 1:
                self._came_forward(generation, len(output.token_ids))
        return tokens

    def _moved(self, generation: Generation, now: float, raised: dict[str, int], *, is_judged: bool = False) -> None:
        """See to a stream that has got further; `raised` gets what its engine is to be told of its credit."""
        if generation.is_held:
            self._hold(generation, now)
            return
        was_stopped = generation.is_stopped
        if (was_stopped or is_judged) and (credit := generation.take_credit()):
            raised[generation.request_id] = credit
            if was_stopped:
                generation.resumed(now)
        self._deadlines.moved(generation)

    def cancel(self, reasons: Mapping[str, str]) -> None:
        """Stop streams that their clients cancelled; the end is written when the engine has stopped them."""
        found = [generation for stream_id in reasons if (generation := self._live.get(stream_id)) is not None]
        for generation in found:
            generation.cancel_reason = reasons[generation.stream_id]
        # One that is being given back is told by its record that it was cancelled.
        fresh = [generation for generation in found if not (generation.is_cancelling or generation.is_leaving)]
        for generation in fresh:
            generation.is_cancelling = True
            log.info("cancel stream_id=%s reason=%s", generation.stream_id, reasons[generation.stream_id])
        if fresh:
            self._tasks.create_task(self._cancel(fresh))

    def credit(self, positions: Mapping[str, int]) -> None:
        """Let streams generate up to these positions; ones that have as much, or no limit, stay as they are."""
        now = time.monotonic()
        raised: dict[str, int] = {}
        for stream_id, up_to in positions.items():
            generation = self._live.get(stream_id)
            if generation is None or generation.is_leaving or not 0 < generation.credit < up_to:
                continue
            was_held = generation.is_held
            generation.extend(up_to, now)
            if was_held and not generation.is_held:
                self._holds.remove(generation)
                self._deadlines.moved(generation)
            if generation.was_submitted and (credit := generation.take_credit()):
                raised[generation.request_id] = credit
        self._starter.credit(raised)

    def held_streams(self) -> list[str]:
        """Return the ids of those that wait for credit."""
        return self._holds.stream_ids()

    def abandon_all(self) -> None:
        """Drop every live stream without a word: this incarnation may not write any more."""
        self.publisher.lose([(stream_id, epoch) for stream_id, epoch, _ in self.publisher.owned()])

    # ---- out, before their end

    def _suspend(self, generation: Generation, reason: str) -> None:
        self.departures.suspend(generation, reason)

    async def _withdraw(self, generations: Sequence[Generation]) -> None:
        """Take streams from the engine; what it still says of them is not heard any more."""
        for generation in generations:
            self._requests.pop(generation.request_id, None)
        await self._starter.abort([generation.request_id for generation in generations if generation.was_submitted])

    # ---- held

    def _hold(self, generation: Generation, now: float) -> None:
        self._holds.add(generation, now)
        self._metrics.credit_stalls.inc()
        self.places.changed.set()

    def _came_forward(self, generation: Generation, tokens: int) -> None:
        if not tokens:
            return
        self._starter.moved(generation)  # also where they wait until its input is judged: its engine lives
        if generation.claimed.attempt > 1 and generation.new_tokens == tokens:
            self._showing.progress(generation)

    # ---- starting

    async def _start(self, generation: Generation, outbox: Outbox) -> None:
        def submitting() -> None:
            self._requests[generation.request_id] = generation

        is_in_engine = False
        try:
            is_in_engine = await self._starter.start(generation, outbox, submitting)
        except RequestRefusedError as refusal:
            generation.fail(StreamError(refusal.code, refusal.message, refusal.param))
        except EngineDeadError:
            await self._handover.requeue([generation], ENGINE_LOST)
            return
        except RedisError as error:
            log.warning("claim given back stream_id=%s: %s", generation.stream_id, error)
            # Not listed any more, so the next renewal puts it back.
            self.publisher.lose([(generation.stream_id, generation.epoch)])
            return
        except Exception:
            log.exception("failed to start stream_id=%s", generation.stream_id)
            generation.fail(INTERNAL)
        if generation.ended is not None:
            self._retire(generation)
        elif not is_in_engine:
            self._forget(generation)
        if is_in_engine:
            await self._entered(generation)

    async def _entered(self, generation: Generation) -> None:
        if generation.is_cancelling or self._live.get(generation.stream_id) is not generation:
            # It has ended, was lost, or given back, while the engine took it: the engine did not have it yet to abort.
            await self._starter.abort([generation.request_id])
            return
        generation.start()
        self.held_prefixes.computes(generation.request)
        if generation.is_held:
            self._hold(generation, time.monotonic())
        self._judging.check_input(generation)
        self._judging.consider(generation)  # of what an earlier owner left

    # ---- guarded

    def _judged(self, generation: Generation) -> None:
        """A window was judged: the stream has ended, or its engine may go on further than before."""
        if generation.ended is not None:
            self._requests.pop(generation.request_id, None)
            self._abort([generation.request_id])
            self._retire(generation)
        else:
            raised: dict[str, int] = {}
            self._moved(generation, time.monotonic(), raised, is_judged=True)
            self._starter.credit(raised)
        self._judging.consider(generation)

    # ---- ending

    async def _cancel(self, generations: Sequence[Generation]) -> None:
        await self._starter.abort([generation.request_id for generation in generations])
        for generation in generations:
            generation.cancel()
            self._retire(generation)

    def _abort(self, request_ids: Sequence[str]) -> None:
        self._tasks.create_task(self._starter.abort(request_ids))

    def _fail(self, generation: Generation, error: StreamError) -> None:
        generation.fail(error)
        self._retire(generation)

    def _retire(self, generation: Generation) -> None:
        """Let go of a stream that has ended, or was given back. One whose end waits for its history stays."""
        if generation.ended is None and not generation.is_leaving:
            return
        if self._forget(generation):
            self._reckoning.left(generation)

    def _forget(self, generation: Generation) -> bool:
        self._requests.pop(generation.request_id, None)
        self._holds.remove(generation)
        self._starter.moved(generation)
        self.places.changed.set()
        if self._live.get(generation.stream_id) is not generation:
            return False
        del self._live[generation.stream_id]
        return True

    def _dropped(self, stream_id: str, epoch: int) -> None:
        generation = self._live.get(stream_id)
        if generation is not None and generation.epoch == epoch:
            generation.is_leaving = True
            self._forget(generation)
            self._abort([generation.request_id])

    def _waiting_for_tokens(self) -> list[Generation]:
        return [g for g in self._live.values() if not (g.is_leaving or g.is_cancelling)]

    async def _end_stalled(self, stalled: Sequence[Generation]) -> None:
        """See to streams whose engine gives nothing: fail those that have no token, continue the others elsewhere."""
        self.health.stalled(sum(one.was_submitted for one in stalled))  # others wait for an adapter's place
        for generation in stalled:
            log.warning("stalled stream_id=%s seq=%d", generation.stream_id, generation.seq)
            if not generation.seq:
                self._fail(generation, STALLED)
        started = [generation for generation in stalled if generation.ended is None]
        self._tasks.create_task(self._handover.requeue(started, STALLED, blamed=started))
        await self._starter.abort([generation.request_id for generation in stalled])
