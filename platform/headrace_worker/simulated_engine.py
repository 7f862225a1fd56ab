"""The simulated engine: no model, honest about it, deterministic. For load and fault tests only.

Token `i` of an answer depends on the prompt's ids and on `i` alone, so that any worker continues any answer. Timing is
that of an engine: a prefill of `ttft_ms`, then one step every `tpot_ms` for all running requests together.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from tokenizers import Tokenizer

from headrace_wire.snapshot import DeploymentConfig
from headrace_worker import simulated_tokenizer as built_in
from headrace_worker.engine import (
    Deliver,
    EngineAdapter,
    EngineDeadError,
    EngineInfo,
    EngineRefusedError,
    EngineRequest,
    EngineStats,
    RequestRefusedError,
)
from headrace_worker.registration import model_assets
from headrace_worker.simulated_config import CoreConfig, SimulatedArgs
from headrace_worker.simulated_core import SimulatedCore
from headrace_worker.simulated_process import SimulatedProcess

log = logging.getLogger(__name__)

DEAD = "the simulated engine has ended"
DEFAULT_MAX_MODEL_LEN = 32_768


class _Backend(Protocol):
    """Where the stepping runs."""

    async def submit(self, request: EngineRequest) -> None: ...
    def credit(self, positions: Mapping[str, int]) -> None: ...
    def limit(self, max_running: int) -> None: ...
    async def abort(self, request_ids: Sequence[str]) -> None: ...
    async def stats(self) -> EngineStats: ...
    async def shutdown(self) -> None: ...


class SimulatedEngine:
    """Implements `Engine`."""

    def __init__(self, deployment: DeploymentConfig) -> None:
        self._deployment = deployment
        self._max_model_len = deployment.max_model_len or DEFAULT_MAX_MODEL_LEN
        self._backend: _Backend | None = None
        self._death = asyncio.Event()

    async def start(self, deliver: Deliver) -> EngineInfo:
        """Make the tokenizer, and start the stepping here or in a child."""
        try:
            args = msgspec.convert(self._deployment.engine_args, SimulatedArgs)
        except msgspec.ValidationError as error:
            raise EngineRefusedError(f"simulated engine: {error}") from error
        tokenizer = self._tokenizer()
        config = self._core_config(args, tokenizer)
        self._backend = (
            await SimulatedProcess.start(config, deliver=deliver, died=self._death.set)
            if args.process
            else _InProcess(SimulatedCore(config, deliver, self._death.set))
        )
        log.warning("simulated engine: answers are made up, no model is loaded")
        renderer = built_in.BuiltInRenderer(tokenizer)
        assets = model_assets(
            identity=["simulated", self._deployment.model],
            tokenizer_json=tokenizer.to_str().encode(),
            chat_template=built_in.CHAT_TEMPLATE,
            special_tokens=built_in.SPECIAL_TOKENS,
            renderer=renderer,
            max_model_len=self._max_model_len,
        )
        return EngineInfo(
            self._deployment.model,
            assets,
            tokenizer,
            renderer,
            self._max_model_len,
            self._deployment.max_num_seqs,
            cache_tokens=config.kv_tokens if config.block_tokens else 0,
            max_adapters=args.max_loras,
        )

    async def submit(self, request: EngineRequest) -> None:
        """Queue a request."""
        if self._backend is None or self._death.is_set():
            raise EngineDeadError(DEAD)
        length = len(request.prompt_ids) + len(request.generated_ids)
        if not length:
            raise RequestRefusedError("invalid_request_error", "The prompt is empty.")
        if length >= self._max_model_len:
            message = f"The prompt has {length} tokens; with one token of answer, at most {self._max_model_len} fit."
            raise RequestRefusedError("context_length_exceeded", message)
        await self._backend.submit(request)

    async def load_adapter(self, adapter: EngineAdapter) -> None:  # noqa: ARG002
        """Do nothing: an adapter's name is all that counts here."""
        if self._death.is_set():
            raise EngineDeadError(DEAD)

    async def unload_adapter(self, number: int) -> None:
        """Likewise."""

    def credit(self, positions: Mapping[str, int]) -> None:
        """Set how far requests may generate."""
        if self._backend is not None and not self._death.is_set():
            self._backend.credit(positions)

    def limit(self, max_running: int) -> None:
        """Set how many requests run at once."""
        if self._backend is not None and not self._death.is_set():
            self._backend.limit(max_running)

    async def checkpoint(self, request_ids: Sequence[str]) -> None:
        """Do nothing: what is computed here is not worth a file."""

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Stop requests."""
        if self._backend is not None and not self._death.is_set():
            await self._backend.abort(request_ids)

    async def wait_death(self) -> str:
        """Wait until the stepping has ended."""
        await self._death.wait()
        return DEAD

    async def stats(self) -> EngineStats:
        """Return the engine's counts."""
        if self._backend is None or self._death.is_set():
            raise EngineDeadError(DEAD)
        return await self._backend.stats()

    async def shutdown(self) -> None:
        """End the stepping."""
        if self._backend is not None:
            await self._backend.shutdown()
        self._death.set()

    def _tokenizer(self) -> Tokenizer:
        path = built_in.tokenizer_file(self._deployment.model)
        return built_in.built_in_tokenizer() if path is None else Tokenizer.from_file(str(path))

    def _core_config(self, args: SimulatedArgs, tokenizer: Tokenizer) -> CoreConfig:
        answer = tokenizer.encode(args.answer, add_special_tokens=False).ids if args.answer else []
        end_id = tokenizer.token_to_id(built_in.SPECIAL_TOKENS["eos_token"])
        return CoreConfig(
            ttft_seconds=args.ttft_ms / 1000,
            tpot_seconds=args.tpot_ms / 1000,
            answer_tokens=args.answer_tokens,
            answer_ids=answer,
            alphabet=built_in.answer_alphabet(tokenizer),
            end_id=end_id if end_id is not None else 0,
            max_num_seqs=self._deployment.max_num_seqs,
            max_model_len=self._max_model_len,
            kv_tokens=args.kv_tokens or self._deployment.max_num_seqs * self._max_model_len,
            stall_at=args.stall_at,
            poison_id=args.poison_id,
            poison_at=args.poison_at,
            block_tokens=args.block_tokens,
            prefill_seconds=args.prefill_us / 1e6,
            step_seconds_each=args.tpot_us_each / 1e6,
        )


class _InProcess:
    """The stepping on the worker's own event loop."""

    def __init__(self, core: SimulatedCore) -> None:
        self._core = core

    async def submit(self, request: EngineRequest) -> None:
        self._core.submit(request)

    def credit(self, positions: Mapping[str, int]) -> None:
        self._core.credit(positions)

    def limit(self, max_running: int) -> None:
        self._core.limit(max_running)

    async def abort(self, request_ids: Sequence[str]) -> None:
        self._core.abort(request_ids)

    async def stats(self) -> EngineStats:
        return self._core.stats()

    async def shutdown(self) -> None:
        self._core.close()
