"""`AsyncLLM` as an `Engine`."""

import asyncio
import contextlib
import gc
import logging
import multiprocessing
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.config import prepare_vllm_environment
from headrace_worker.control_link import ControlLink, Operation
from headrace_worker.engine import (
    AdapterRefusedError,
    Deliver,
    EngineAdapter,
    EngineDeadError,
    EngineInfo,
    EngineRequest,
    EngineStats,
    HeldRequest,
    RequestRefusedError,
)
from headrace_worker.engine_core.checkpoints.counts import CheckpointCounts
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings
from headrace_worker.engine_core.request_fields import BEHIND
from headrace_worker.preimported import fork_context, has_fork_server, report_file, start_fork_server
from headrace_worker.vllm_arguments import refused_parameter, sampling_arguments, structured_arguments
from headrace_worker.vllm_engine.adapters import lora_request
from headrace_worker.vllm_engine.configuration import plug_in, vllm_config
from headrace_worker.vllm_engine.description import describe
from headrace_worker.vllm_engine.outputs import OutputReader
from headrace_worker.vllm_engine.refusals import message_of, start_failure

log = logging.getLogger(__name__)

_T = TypeVar("_T")

ANSWER_SECONDS = 60.0
"""How long EngineCore may take to answer between two steps: one prefill step of a large model on a slow machine."""

ABORT_SECONDS = 1.0
"""How long an abort waits for EngineCore's word; a longer step ends in its own time."""

CHECKPOINT_SECONDS = 2.0
"""How long streams that leave wait until they are saved; what is not written by then is computed again."""

AHEAD = -1
"""vLLM's priority of what was served before; everything else has 0, and lower goes first."""


class VllmEngine:
    """Implements `Engine` with `AsyncLLM`.

    Everything that blocks (imports, the start, the shutdown) runs in one thread of its own, which lives as long as the
    engine: the parent-death signal of an EngineCore that no fork server starts follows the thread that does.
    """

    def __init__(self, deployment: DeploymentConfig, *, checkpoints: CheckpointSettings | None = None) -> None:
        self._deployment = deployment
        self._checkpoints = checkpoints
        self._control = ControlLink(self._carry)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vllm")
        self._llm: Any = None
        self._info: EngineInfo | None = None
        self._outputs: OutputReader | None = None
        self._death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._is_stopping = False
        self._has_own_sampler = False

    # ---- life

    async def start(self, deliver: Deliver) -> EngineInfo:
        """Import vLLM, start EngineCore and load the model."""
        report = report_file()
        report.unlink(missing_ok=True)
        prepare_vllm_environment(error_file=report)
        if has_fork_server():
            start_fork_server()
        await self._in_thread(lambda: self._build(report))
        self._info = await self._in_thread(
            lambda: describe(self._llm, model_name=self._deployment.model, draws_by_position=self._has_own_sampler)
        )
        self._outputs = OutputReader(self._llm, deliver)
        self._outputs.start(self._llm).add_done_callback(lambda _: self._died("the engine process has ended"))
        return self._info

    async def shutdown(self) -> None:
        """End EngineCore, also one that is still starting."""
        self._is_stopping = True
        self._died("the engine was shut down")
        self._control.close()
        if self._llm is None:
            for child in multiprocessing.active_children():
                child.kill()  # the start that waits for it fails, and the thread becomes free
        elif self._outputs is not None:
            self._outputs.close()  # it would log the end that we are about to make as a failure
        await asyncio.get_running_loop().run_in_executor(self._thread, self._shut_down)
        self._thread.shutdown(wait=False)

    def _shut_down(self) -> None:
        if self._llm is not None:
            with contextlib.suppress(Exception):
                self._llm.shutdown()
            self._llm = self._info = self._outputs = None
            gc.collect()  # its destructor fails noisily when it runs at the interpreter's end
        for child in multiprocessing.active_children():
            child.kill()
            child.join()

    def _build(self, report: Path) -> None:
        config = self._config()
        self._has_own_sampler = plug_in(config)
        from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415

        if self._is_stopping:
            raise EngineDeadError("the engine was shut down")
        if has_fork_server():
            from vllm.v1.engine import utils  # noqa: PLC0415

            utils.get_mp_context = fork_context
        try:
            self._llm = AsyncLLM.from_vllm_config(config)  # not returned: futures would keep it beyond its shutdown
        except Exception as error:
            raise start_failure(report, error) from error

    def _config(self) -> Any:  # noqa: ANN401  vLLM is untyped
        return vllm_config(self._deployment, self._checkpoints)

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _died(self, reason: str) -> None:
        if not self._death.done():
            self._death.set_result(reason)

    def _check_alive(self) -> None:
        if self._death.done():
            raise EngineDeadError(self._death.result())

    # ---- requests

    async def submit(self, request: EngineRequest) -> None:
        """Validate and queue a request."""
        self._check_alive()
        outputs = self._outputs
        if outputs is None:
            raise EngineDeadError("the engine has not started")
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.exceptions import VLLMClientError  # noqa: PLC0415
        from vllm.inputs import tokens_input  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams  # noqa: PLC0415
        from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError  # noqa: PLC0415

        request_id, prompt_ids = request.request_id, [*request.prompt_ids, *request.generated_ids]
        try:
            arguments = sampling_arguments(request, own_sampler=self._has_own_sampler)
            if request.sampling.structured is not None:
                structured = structured_arguments(request.sampling.structured)
                arguments["structured_outputs"] = StructuredOutputsParams(**structured)
            params = SamplingParams(**arguments, output_kind=RequestOutputKind.DELTA)
            prompt = tokens_input(prompt_ids, cache_salt=request.cache_salt or None)
            priority = AHEAD if request.ahead else BEHIND if request.behind else 0
            lora = None if request.adapter is None else lora_request(request.adapter)
            collector = await self._add(request_id, prompt, params, lora_request=lora, priority=priority)
        except (VLLMClientError, ValueError, TypeError) as error:
            too_long = self._info is not None and len(prompt_ids) >= self._info.max_model_len
            code = "context_length_exceeded" if too_long else "invalid_request_error"
            message = message_of(error)
            param = "messages" if too_long else refused_parameter(error, message, request.sampling)
            raise RequestRefusedError(code, message, param) from error
        except VllmDeadError as error:
            self._died("the engine process has ended")
            raise EngineDeadError(str(error)) from error
        outputs.collect(request_id, collector)

    async def _add(self, request_id: str, prompt: Any, params: Any, **options: Any) -> Any:  # noqa: ANN401  vLLM's
        """Call `add_request`; a grammar is read in vLLM's thread for inputs, one at a time.

        vLLM itself would read it on this event loop: seconds for some, in which no lease is renewed. xgrammar lets go
        of the GIL; EngineCore, which compiles the grammar afterwards, does so in a thread of its own accord.
        """
        llm = self._llm
        if params.structured_outputs is not None:
            tasks = await llm.get_supported_tasks()
            process = llm.input_processor.process_inputs_async
            prompt = await process(request_id, prompt, params, supported_tasks=tasks, **options)
            self._check_alive()
        return await llm.add_request(request_id, prompt, params, **options)

    async def load_adapter(self, adapter: EngineAdapter) -> None:
        """Have EngineCore load a LoRA adapter."""
        self._check_alive()
        from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError  # noqa: PLC0415

        try:
            is_loaded = await self._while_it_lives(self._llm.add_lora(lora_request(adapter)))
        except EngineDeadError:
            raise
        except VllmDeadError as error:  # it knows a moment before we do; the adapter is not at fault
            self._died("the engine process has ended")
            raise EngineDeadError(str(error)) from error
        except Exception as error:
            raise AdapterRefusedError(message_of(error).replace(adapter.folder, "its folder")) from error
        if not is_loaded:
            raise AdapterRefusedError("vLLM did not load it.")

    async def unload_adapter(self, number: int) -> None:
        """Have EngineCore forget it."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._while_it_lives(self._llm.remove_lora(number))

    async def _while_it_lives(self, call: Coroutine[Any, Any, _T]) -> _T:
        """Return what EngineCore answers; one that has died never answers.

        Raises:
            EngineDeadError: it has died.
        """
        answer = asyncio.ensure_future(call)
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may ask any more
        either: set[asyncio.Future[Any]] = {answer, self._death}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            self._check_alive()
            return answer.result()
        finally:
            answer.cancel()

    def credit(self, positions: Mapping[str, int]) -> None:
        """Set how far requests may generate."""
        self._control.credit(positions)

    def limit(self, max_running: int) -> None:
        """Set how many requests run at once."""
        self._control.limit(max_running)

    async def checkpoint(self, request_ids: Sequence[str]) -> None:
        """Have requests saved, for `CHECKPOINT_SECONDS` at most."""
        if self._checkpoints is None or self._death.done() or not request_ids:
            return
        core = self._llm.engine_core
        call = asyncio.ensure_future(core.call_utility_async("headrace_checkpoint", list(request_ids)))
        await asyncio.wait({call, self._death}, timeout=CHECKPOINT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not call.done():
            call.cancel()
        elif (error := call.exception()) is not None:
            log.warning("no checkpoint: %s", error)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Abort requests, and wait until EngineCore has done so."""
        if self._death.done() or self._outputs is None:
            return
        self._outputs.forget(request_ids)
        await self._llm.abort(list(request_ids))
        with contextlib.suppress(EngineDeadError):
            await self._ask("stats", seconds=ABORT_SECONDS)

    async def wait_death(self) -> str:
        """Wait until EngineCore has ended."""
        return await asyncio.shield(self._death)

    async def stats(self) -> EngineStats:
        """Ask EngineCore for its counts."""
        answer = await self._ask("stats", seconds=ANSWER_SECONDS)
        if answer is None:
            raise EngineDeadError(f"the engine did not answer within {ANSWER_SECONDS:.0f} s")
        running, waiting, usage, held, checkpoints, preemptions = answer
        counts = CheckpointCounts(**checkpoints)
        return EngineStats(running, waiting, usage, [HeldRequest(*request) for request in held], counts, preemptions)

    async def _ask(self, operation: str, *, seconds: float) -> Any:  # noqa: ANN401  as the operation says
        """Call an operation of our scheduler; None when it did not answer in time."""
        self._check_alive()
        call = asyncio.ensure_future(self._control.ask(operation))
        try:
            await asyncio.wait({call, self._death}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            answer = call.result() if call.done() else None
        except Exception as error:
            raise EngineDeadError(f"the engine failed: {error}") from error
        finally:
            call.cancel()
        self._check_alive()
        return answer

    async def _carry(self, operations: Sequence[Operation]) -> list[Any]:
        answer: list[Any] = await self._llm.engine_core.call_utility_async("headrace_control", list(operations))
        return answer
