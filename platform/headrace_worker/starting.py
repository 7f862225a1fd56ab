"""From a claim to the engine: what was there before, the prompt's ids, and the request itself."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from headrace_guard.findings import Subject
from headrace_guard.policy_store import PolicyMissingError, PolicyStore
from headrace_wire import codec
from headrace_wire.continuation import Exactness, NotExact
from headrace_wire.interventions import Intervention
from headrace_wire.messages import ChatTurn, Ended, GenerateRequest, Started, StreamError
from headrace_wire.prompt_caches import stable_prefix
from headrace_wire.token_log import TokenLog
from headrace_worker.adapter_shelf import AdapterShelf
from headrace_worker.engine import (
    AdapterRefusedError,
    Engine,
    EngineAdapter,
    EngineDeadError,
    EngineInfo,
    EngineRequest,
    RequestRefusedError,
)
from headrace_worker.failures import UNGUARDED, UNREADABLE
from headrace_worker.generation import DivergedError, Generation
from headrace_worker.outbox import KEPT_ENTRIES, Outbox
from headrace_worker.output_guard import OutputGuard
from headrace_worker.publisher import Publisher
from headrace_worker.takeover import FencedError, LogBrokenError, LogGoneError, take_over

log = logging.getLogger(__name__)

CAREFUL_SECONDS = 30.0
"""After the start of an engine whose predecessor died."""


class Starter:
    """Starts generations on the engine that is attached; `engine` is None between two."""

    def __init__(
        self,
        token_log: TokenLog,
        publisher: Publisher,
        policies: PolicyStore,
        report: Callable[[Intervention], None],
        adapters: AdapterShelf,
    ) -> None:
        self._log = token_log
        self._publisher = publisher
        self._policies = policies
        self._report = report
        self._adapters = adapters
        self._rendering = asyncio.Lock()
        self._turns = asyncio.Lock()
        self._moved: dict[str, asyncio.Event] = {}
        self._careful_until = 0.0
        self.is_careful = False
        """An engine died: streams enter the next one in turn, so that the one that ends it is known."""
        self.engine: Engine | None = None
        self.info: EngineInfo | None = None

    async def start(self, generation: Generation, outbox: Outbox, submitting: Callable[[], None]) -> bool:
        """Bring a claimed stream to the engine; `submitting` is called before the engine may answer.

        False where the engine is not to have it: it has ended, here or before, or is not ours (any more).

        Raises:
            RequestRefusedError: it cannot be served as it is.
            EngineDeadError: there is no engine (any more).
            redis.exceptions.RedisError: Redis does not answer.
        """
        if generation.claimed.had_owner and not await self._take_over(generation, outbox):
            return False
        async with self._in_turn(generation):
            return await self._submit(generation, submitting)

    def attach(self, engine: Engine, info: EngineInfo) -> None:
        """Start on this engine from now on."""
        self.engine, self.info = engine, info
        self._careful_until = time.monotonic() + CAREFUL_SECONDS

    def detach(self) -> None:
        """The engine is gone."""
        self.engine = None
        self.is_careful = True

    def credit(self, positions: Mapping[str, int]) -> None:
        """Have the engine generate up to these positions, if there is one."""
        if self.engine is not None and positions:
            self.engine.credit(positions)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Have the engine stop requests, if there is one."""
        if self.engine is not None and request_ids:
            await self.engine.abort(request_ids)

    async def checkpoint(self, generations: Sequence[Generation]) -> None:
        """Have the engine keep what it has computed for streams that somebody else goes on with."""
        if self.engine is not None:
            await self.engine.checkpoint([one.request_id for one in generations if one.was_submitted])

    def moved(self, generation: Generation) -> None:
        """Note that a stream got its first token here, or is gone."""
        if self._moved and (event := self._moved.pop(generation.request_id, None)) is not None:
            event.set()

    async def _take_over(self, generation: Generation, outbox: Outbox) -> bool:
        """Fence and read what an earlier owner left; False when nothing is to be generated."""
        claimed = generation.claimed
        fence = Started(
            generation.stream_id,
            generation.epoch,
            0,
            generation.owner,
            claimed.attempt,
            claimed.queue_time,
            generation.continuing.is_exact,
        )
        try:
            history = await take_over(self._log, fence)
        except LogGoneError:
            self._publisher.give_up(outbox)
            return False
        except FencedError:
            self._publisher.lose([(generation.stream_id, generation.epoch)])
            return False
        except LogBrokenError as error:
            log.warning("cannot continue stream_id=%s: %s", generation.stream_id, error)
            generation.recall_position(error.seq)
            generation.fail(UNREADABLE)
            return False
        if isinstance(history, Ended):
            self._publisher.adopt(outbox, history)
            return False
        outbox.kept = history.appends[-KEPT_ENTRIES:]
        outbox.unmerged_until = len(history.token_ids) + KEPT_ENTRIES
        generation.recall(history)
        if not generation.may_continue:
            generation.fail(_not_exact(generation.continuing.exactness))
        return generation.ended is None

    async def _submit(self, generation: Generation, submitting: Callable[[], None]) -> bool:
        request, engine, info = generation.request, self.engine, self.info
        if generation.is_leaving:  # while it waited for its turn; it is not to wait for others as well
            return False
        if engine is None or info is None:
            raise EngineDeadError("no engine")
        if request.guard is not None and request.guard.answer is not None:
            generation.replace(request.guard.answer)
            return False
        try:
            generation.guard = await self._guard(request)
        except PolicyMissingError as error:
            log.warning("unguarded stream_id=%s: %s", generation.stream_id, error)
            generation.fail(UNGUARDED)
            return False
        prompt_ids = await self._prompt_ids(request, info)
        adapter = await self._adapter(generation)
        try:
            generated_ids = generation.prepare(info.tokenizer, prompt_ids, max_model_len=info.max_model_len)
        except DivergedError:
            log.warning("text and tokens differ stream_id=%s", generation.stream_id)
            generation.fail(UNREADABLE)
        if generation.ended is not None or generation.is_leaving:
            return False
        submitting()
        await engine.submit(
            EngineRequest(
                generation.request_id,
                prompt_ids,
                request.sampling,
                request.cache_salt,
                generated_ids,
                credit=generation.take_credit(),
                ahead=generation.claimed.had_owner,
                tenant_id=request.tenant_id,
                stream_id=request.stream_id,
                adapter=adapter,
            )
        )
        generation.was_submitted = True
        if credit := generation.take_credit():
            engine.credit({generation.request_id: credit})
        return True

    async def _adapter(self, generation: Generation) -> EngineAdapter | None:
        """Return the LoRA adapter that a request names, loaded; None where there is none, or nothing to generate.

        Raises:
            RequestRefusedError: it cannot be used here.
        """
        request = generation.request
        if request.adapter is None or (request.guard is not None and request.guard.answer is not None):
            return None
        try:
            adapter = await self._adapters.get(request.adapter, is_kept=generation.keeps_adapter)
        except AdapterRefusedError as error:
            message = f"The adapter `{request.adapter.name}` cannot be used: {error}"
            raise RequestRefusedError("dependency_unavailable", message) from error
        generation.keeps_adapter = True
        return adapter

    async def _guard(self, request: GenerateRequest) -> OutputGuard | None:
        """Return the guard of an answer; None where no policy applies.

        Raises:
            PolicyMissingError: it is not known what applies, or a policy is not there.
        """
        terms = request.guard
        if terms is None:
            raise PolicyMissingError("the request does not say which guardrails apply")
        if not terms.policies:
            return None
        guard = await self._policies.get(terms.policies)
        subject = Subject(
            request.stream_id, request.tenant_id, request.deployment, terms.excerpts, salt=request.cache_salt
        )
        return OutputGuard(guard, subject, self._report)

    @asynccontextmanager
    async def _in_turn(self, generation: Generation) -> AsyncIterator[None]:
        """While it matters who ends the engine, have one stream at a time that has not given a token yet."""
        if not self.is_careful or time.monotonic() > self._careful_until:
            yield
            return
        # Before its turn: it may have to wait until others leave, who may have to have their turn first.
        await self._adapter(generation)
        async with self._turns:
            moved = self._moved[generation.request_id] = asyncio.Event()
            yield
            if generation.is_unmoved:
                await moved.wait()

    async def stable_prefix(self, info: EngineInfo, messages: Sequence[ChatTurn]) -> list[int]:
        """Return what prompts with these messages begin with, whatever is said then.

        Raises:
            RequestRefusedError: the model's template does not take them.
        """
        async with self._rendering:
            return await asyncio.to_thread(stable_prefix, info.renderer.render, messages)

    async def _prompt_ids(self, request: GenerateRequest, info: EngineInfo) -> list[int]:
        if request.prompt_ids:
            return codec.unpack_token_ids(request.prompt_ids)
        async with self._rendering:  # tokenizers must not be used from two threads at once
            if request.conversation:
                return await asyncio.to_thread(info.renderer.render, request.conversation)
            return await asyncio.to_thread(info.renderer.tokenize, request.raw_prompt)


def _not_exact(found: Exactness) -> StreamError:
    reason = found.reason if isinstance(found, NotExact) else ""
    return StreamError(
        "engine_error",
        f"The engine was lost, and this answer cannot be continued exactly: {reason}. What was sent stands.",
    )
