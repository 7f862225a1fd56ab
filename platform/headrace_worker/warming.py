"""Dummy inference: what a first request would wait for is done before it comes, and again after a time without any.

A plain request, one under a JSON schema (the first one has the grammar backend read the whole vocabulary) and a long
one (kernels and buffers of a real prefill), a token each. Nobody has asked for them: they go behind everything else.

Of an engine that has failed streams, an answer of our own says whether it is well; that one goes ahead.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence

from headrace_wire.messages import FinishReason, SamplingParams, StructuredOutput
from headrace_worker.engine import Engine, EngineDeadError, EngineInfo, EngineOutput, EngineRequest, RequestRefusedError

log = logging.getLogger(__name__)

LONG_TOKENS = 512
ANSWER_TOKENS, ANSWER_SECONDS = 32, 30.0
"""Of the answer that says whether an engine is well: as long as short answers of streams, to fail as they do."""
JSON_SCHEMA = '{"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"]}'


class Warming:
    """Asks an engine, and hears the answers. Belongs to one event loop."""

    def __init__(self) -> None:
        self._pending: dict[str, asyncio.Future[FinishReason]] = {}
        self._active_at = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """How long the engine has given nothing."""
        return time.monotonic() - self._active_at

    def feed(self, outputs: Sequence[EngineOutput]) -> None:
        """Look for our own answers in what the engine gives."""
        self._active_at = time.monotonic()
        for output in outputs if self._pending else ():
            pending = self._pending.get(output.request_id)
            if pending is not None and output.finish_reason is not None and not pending.done():
                pending.set_result(output.finish_reason)

    async def generate(self, engine: Engine, info: EngineInfo) -> None:
        """See a token.

        Raises:
            EngineDeadError: the engine is gone, or refuses even this.
        """
        try:
            await self._ask(engine, _ids(info), SamplingParams(max_tokens=1, temperature=0.0))
        except RequestRefusedError as error:
            raise EngineDeadError(f"The engine refuses a warm-up request: {error.message}") from error

    async def exercise(self, engine: Engine, info: EngineInfo) -> None:
        """Have it do what requests may need besides. What it refuses, it will not be asked for either.

        The long prompt is always the same, without a tenant's salt: it takes no more of the prefix cache each time.

        Raises:
            EngineDeadError: the engine is gone.
        """
        ids, length = _ids(info), min(LONG_TOKENS, info.max_model_len // 2)
        structured = SamplingParams(max_tokens=1, temperature=0.0, structured=StructuredOutput(json_schema=JSON_SCHEMA))
        plain = SamplingParams(max_tokens=1, temperature=0.0)
        await asyncio.gather(self._try(engine, ids, structured), self._try(engine, (ids * length)[:length], plain))

    async def is_answered(self, engine: Engine, info: EngineInfo) -> bool:
        """Say whether a plain answer of some length, ahead of everything else, ends as it should.

        Where it does not come in time, all places may be taken: then the engine is well that gives others tokens.

        Raises:
            EngineDeadError: the engine is gone.
        """
        ids = _ids(info)
        length = max(1, min(ANSWER_TOKENS, info.max_model_len - len(ids)))
        plain = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._ask(engine, ids, plain, ahead=True) is FinishReason.LENGTH
        except TimeoutError:
            return self.idle_seconds < ANSWER_SECONDS / 2
        except RequestRefusedError:
            return False

    async def _try(self, engine: Engine, prompt_ids: Sequence[int], sampling: SamplingParams) -> None:
        try:
            await self._ask(engine, prompt_ids, sampling)
        except RequestRefusedError as error:
            log.info("no warm-up of this kind: %s", error.message)

    async def _ask(
        self, engine: Engine, prompt_ids: Sequence[int], sampling: SamplingParams, *, ahead: bool = False
    ) -> FinishReason:
        request_id = f"warm-{secrets.token_hex(4)}"
        request = EngineRequest(request_id, prompt_ids, sampling, "", ahead=ahead, behind=not ahead)
        answered: asyncio.Future[FinishReason] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = answered
        try:
            await engine.submit(request)
            return await answered
        except asyncio.CancelledError:
            await engine.abort([request_id])
            raise
        finally:
            del self._pending[request_id]


def _ids(info: EngineInfo) -> list[int]:
    return info.tokenizer.encode("Hello", add_special_tokens=False).ids or [0]
