"""vLLM behind the `Engine` protocol; with its `engine_core` plug-ins, the only module that imports it."""

import asyncio
import contextlib
import gc
import json
import logging
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Tokenizer

from headrace_wire.continuation import EngineTraits
from headrace_wire.messages import ChatTurn, FinishReason
from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.config import prepare_vllm_environment
from headrace_worker.control_link import ControlLink, Operation
from headrace_worker.engine import (
    Deliver,
    EngineDeadError,
    EngineInfo,
    EngineOutput,
    EngineRefusedError,
    EngineRequest,
    EngineStats,
    HeldRequest,
    RequestRefusedError,
)
from headrace_worker.engine_core.checkpoints.counts import CheckpointCounts
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings
from headrace_worker.engine_core.request_fields import BEHIND
from headrace_worker.preimported import fork_context, has_fork_server, report_file, start_fork_server
from headrace_worker.registration import model_assets
from headrace_worker.vllm_arguments import (
    engine_arguments,
    refused_parameter,
    sampling_arguments,
    structured_arguments,
)

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

SAMPLER = "headrace_worker.engine_core.sampler:PositionalSampler"

_FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "error": FinishReason.ERROR,
    "repetition": FinishReason.STOP,
}


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
        self._live: set[str] = set()
        self._deliver: Deliver | None = None
        self._ready: list[EngineOutput] = []
        self._death: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._is_stopping = False
        self._has_own_sampler = False

    # ---- life

    async def start(self, deliver: Deliver) -> EngineInfo:
        """Import vLLM, start EngineCore and load the model."""
        self._deliver = deliver
        report = report_file()
        report.unlink(missing_ok=True)
        prepare_vllm_environment(error_file=report)
        if has_fork_server():
            start_fork_server()
        await self._in_thread(lambda: self._build(report))
        self._info = await self._in_thread(self._describe)
        self._llm._run_output_handler()  # noqa: SLF001  started by the first request otherwise: too late to see it die
        self._llm.output_handler.add_done_callback(lambda _: self._died("the engine process has ended"))
        return self._info

    async def shutdown(self) -> None:
        """End EngineCore, also one that is still starting."""
        self._is_stopping = True
        self._died("the engine was shut down")
        self._control.close()
        if self._llm is None:
            for child in multiprocessing.active_children():
                child.kill()  # the start that waits for it fails, and the thread becomes free
        elif self._llm.output_handler is not None:
            self._llm.output_handler.cancel()  # it would log the end that we are about to make as a failure
        await asyncio.get_running_loop().run_in_executor(self._thread, self._shut_down)
        self._thread.shutdown(wait=False)

    def _shut_down(self) -> None:
        if self._llm is not None:
            with contextlib.suppress(Exception):
                self._llm.shutdown()
            self._llm = self._info = None
            gc.collect()  # its destructor fails noisily when it runs at the interpreter's end
        for child in multiprocessing.active_children():
            child.kill()
            child.join()

    def _build(self, report: Path) -> None:
        config = self._config()
        from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415

        scheduler = "HeadraceAsyncScheduler" if config.scheduler_config.async_scheduling else "HeadraceScheduler"
        config.scheduler_config.scheduler_cls = f"headrace_worker.engine_core.scheduler.{scheduler}"
        # vLLM's second model runner draws by seed and position itself, and speculative decoding takes no processors.
        self._has_own_sampler = not config.use_v2_model_runner and config.speculative_config is None
        if self._has_own_sampler:
            config.model_config.logits_processors = [SAMPLER]
        if self._is_stopping:
            raise EngineDeadError("the engine was shut down")
        if has_fork_server():
            from vllm.v1.engine import utils  # noqa: PLC0415

            utils.get_mp_context = fork_context
        try:
            self._llm = AsyncLLM.from_vllm_config(config)  # not returned: futures would keep it beyond its shutdown
        except Exception as error:
            raise _start_failure(report, error) from error

    def _config(self) -> Any:  # noqa: ANN401  vLLM is untyped
        from vllm.config import KVTransferConfig  # noqa: PLC0415
        from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415
        from vllm.platforms import current_platform  # noqa: PLC0415

        arguments = engine_arguments(self._deployment, on_cpu=current_platform.is_cpu(), checkpoints=self._checkpoints)
        try:
            if "kv_transfer_config" in arguments:
                arguments["kv_transfer_config"] = KVTransferConfig(**arguments["kv_transfer_config"])
            return AsyncEngineArgs(**arguments).create_engine_config()
        except (ValueError, TypeError, NotImplementedError) as error:
            raise EngineRefusedError(_message(error)) from error
        except Exception as error:  # a download that failed, a full disk: may pass
            raise EngineDeadError(_message(error)) from error

    def _describe(self) -> EngineInfo:
        model = self._llm.model_config
        hf_tokenizer = self._llm.get_tokenizer()
        backend = getattr(hf_tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise EngineRefusedError(f"{self._deployment.model} has no fast tokenizer (tokenizer.json).")
        tokenizer_json: str = backend.to_str()
        renderer = _VllmRenderer(self._llm)
        template = hf_tokenizer.get_chat_template() if hf_tokenizer.chat_template else ""
        special = {name: text for name, text in hf_tokenizer.special_tokens_map.items() if isinstance(text, str)}
        import vllm  # noqa: PLC0415

        assets = model_assets(
            identity=[
                "vllm",
                vllm.__version__,
                model.model,
                str(model.revision),
                str(model.dtype),
                model.quantization or "",
            ],
            tokenizer_json=tokenizer_json.encode(),
            chat_template=template,
            special_tokens=special,
            renderer=renderer,
            max_model_len=model.max_model_len,
        )
        # Our own copy decodes: the renderer's may be locked by a thread that renders.
        return EngineInfo(
            self._deployment.model,
            assets,
            Tokenizer.from_str(tokenizer_json),
            renderer,
            model.max_model_len,
            self._llm.vllm_config.scheduler_config.max_num_seqs,
            self._traits(),
            self._cache_tokens(),
        )

    def _cache_tokens(self) -> int:
        cache = self._llm.vllm_config.cache_config
        return int((cache.num_gpu_blocks or 0) * cache.block_size) if cache.enable_prefix_caching else 0

    def _traits(self) -> EngineTraits:
        import torch  # noqa: PLC0415
        from vllm import envs  # noqa: PLC0415

        config = self._llm.vllm_config
        is_float32 = config.model_config.dtype == torch.float32 and not config.model_config.quantization
        return EngineTraits(
            is_batch_invariant=is_float32 or bool(envs.VLLM_BATCH_INVARIANT),
            draws_by_position=self._has_own_sampler or config.use_v2_model_runner,
        )

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
            collector = await self._llm.add_request(request_id, prompt, params, priority=priority)
        except (VLLMClientError, ValueError, TypeError) as error:
            too_long = self._info is not None and len(prompt_ids) >= self._info.max_model_len
            code = "context_length_exceeded" if too_long else "invalid_request_error"
            message = _message(error)
            param = "messages" if too_long else refused_parameter(error, message, request.sampling)
            raise RequestRefusedError(code, message, param) from error
        except VllmDeadError as error:
            self._died("the engine process has ended")
            raise EngineDeadError(str(error)) from error
        self._collect(request_id, collector)

    def _collect(self, request_id: str, collector: Any) -> None:  # noqa: ANN401  vLLM is untyped
        """Have a request's outputs put straight into our batch, instead of waking one task per request and step."""

        def put(output: Any) -> None:  # noqa: ANN401  a RequestOutput or an exception
            if request_id in self._live:
                self._take(request_id, output)

        self._live.add(request_id)
        early = collector.output
        collector.put = put
        if early is not None:
            put(early)

    def _take(self, request_id: str, output: Any) -> None:  # noqa: ANN401  a RequestOutput or an exception
        if isinstance(output, Exception):
            self._died(f"the engine process has ended: {output}")
            return
        completion = output.outputs[0]
        reason = completion.finish_reason
        finish = None if reason is None else _FINISH_REASONS.get(reason, FinishReason.ERROR)
        if finish is not None:
            self._live.discard(request_id)
        if not self._ready:
            asyncio.get_running_loop().call_soon(self._flush)  # after the last request of this step
        self._ready.append(
            EngineOutput(
                request_id, list(completion.token_ids), finish, completion.stop_reason, output.num_cached_tokens or 0
            )
        )

    def _flush(self) -> None:
        ready, self._ready = self._ready, []
        if self._deliver is not None and ready:
            self._deliver(ready)

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
        self._live.difference_update(request_ids)
        if self._death.done():
            return
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
        running, waiting, usage, held, checkpoints = answer
        counts = CheckpointCounts(**checkpoints)
        return EngineStats(running, waiting, usage, [HeldRequest(*request) for request in held], counts)

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


class _VllmRenderer:
    """Renders with vLLM's own renderer; called from one thread at a time."""

    def __init__(self, llm: Any) -> None:  # noqa: ANN401  vLLM is untyped
        self._renderer = llm.renderer

    def render(self, conversation: Sequence[ChatTurn]) -> list[int]:
        """Return the ids of a conversation with the generation prompt at its end."""
        from vllm.renderers.params import ChatParams  # noqa: PLC0415

        messages = [{"role": turn.role, "content": turn.content} for turn in conversation]
        params = ChatParams(chat_template_kwargs={"add_generation_prompt": True, "continue_final_message": False})
        return self._ids(lambda: self._renderer.render_chat([messages], params)[1])

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a plain prompt."""
        return self._ids(lambda: self._renderer.render_cmpl([{"prompt": text}]))

    def _ids(self, render: Callable[[], Any]) -> list[int]:
        try:
            (rendered,) = render()
        except Exception as error:  # template errors come as they are: jinja2's, transformers', vLLM's
            message = _message(error)
            code = "context_length_exceeded" if "maximum context length" in message else "invalid_request_error"
            raise RequestRefusedError(code, message, "messages") from error
        return list(rendered["prompt_token_ids"])


def _message(error: Exception) -> str:
    """Return what vLLM says; pydantic's framing goes."""
    details = getattr(error, "errors", None)
    if callable(details):
        with contextlib.suppress(Exception):
            return "; ".join(_detail(detail) for detail in details())
    return str(error) or type(error).__name__


def _detail(detail: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in detail["loc"])
    what = str(detail["msg"]).removeprefix("Value error, ")
    return f"{where}: {what}" if where else what


def _start_failure(report: Path, error: Exception) -> Exception:
    """Return what to raise for an EngineCore that did not start, with the reason that it reported."""
    try:
        told = json.loads(report.read_text("utf-8"))
    except (OSError, ValueError):
        return EngineDeadError(_message(error))
    if told["kind"] in {"ValueError", "NotImplementedError", "ValidationError", "KeyError"}:
        return EngineRefusedError(told["message"])
    return EngineDeadError(f"{told['kind']}: {told['message']}")
