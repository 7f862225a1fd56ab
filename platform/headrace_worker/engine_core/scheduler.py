"""Headrace's schedulers for vLLM 0.32: each request runs on credit, and one that is out of credit steps aside.

A request that has generated up to its credit is *held*: it leaves the running set, so that its slot is free, and keeps
its KV cache. More credit puts it back ahead of all that waits. Where the KV cache is needed, the one that was held
longest is *spilled*: its blocks go back to the pool, where they stay as prefix cache until somebody takes them. An
engine whose requests are all held has nothing to do and sleeps.

Named as `scheduler_cls`, so that EngineCore imports this module. vLLM's scheduler interface is not public; the tests
marked `engine` hold this to version 0.32. Positions count tokens of the whole answer, also of one that is continued.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request, RequestStatus

from headrace_worker.engine_core import zero_adapter
from headrace_worker.engine_core.checkpoints.connector import CheckpointConnector
from headrace_worker.engine_core.checkpoints.counts import CheckpointCounts
from headrace_worker.engine_core.request_fields import BEHIND, CREDIT, GENERATED

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler as _Base
else:
    _Base = object

_NOT_STARTED = (RequestStatus.WAITING, RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR, RequestStatus.PREEMPTED)


class _OnCredit(_Base):  # type: ignore[misc]  # vLLM ships no types
    """Adds credit to a scheduler. All of it runs in the engine's own thread; the operations between two steps."""

    running: list[Request]

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  as the scheduler's own
        super().__init__(*args, **kwargs)
        if self.lora_config is not None and current_platform.is_cpu():
            zero_adapter.install()
        self._credit: dict[str, int] = {}
        """Request id to the position up to which it may generate; without a limit where it is missing."""
        self._held: dict[str, Request] = {}
        """Out of credit, in no queue of the scheduler's; the longest-held first."""
        self._held_since: dict[str, float] = {}
        self._ready: deque[Request] = deque()
        """Have credit again and their KV cache still, and wait for a slot."""
        self._guessed: set[str] = set()
        """Held on the guess that all draft tokens in flight are accepted."""
        self._internal_ids: dict[str, str] = {}
        """vLLM appends a random part to the id that a request was submitted with."""
        self._overtaken: Request | None = None
        """The first of those for whose adapter this step's batch has no room: no later one of any adapter starts."""
        self._num_preemptions = 0
        """Of running requests; held ones that are spilled do not count."""
        self._allocate_slots: Callable[..., Any] = self.kv_cache_manager.allocate_slots
        self.kv_cache_manager.allocate_slots = self._allocate_or_spill

    # ---- operations

    def headrace_credit(self, positions: Mapping[str, int]) -> None:
        """Set how far requests (ids as submitted) may generate; unknown ones have ended."""
        for submitted_id, position in positions.items():
            request = self.requests.get(self._internal_ids.get(submitted_id, ""))
            if request is not None:
                self._credit[request.request_id] = position
                self._apply_credit(request)

    def headrace_limit(self, max_running: int) -> None:
        """Set how many requests run at once, within `max_num_seqs`; the newest ones over it wait for a slot again."""
        self.max_num_active_reqs = max(1, min(max_running, self.max_num_running_reqs))
        while len(self.running) > self.max_num_active_reqs:
            self._ready.appendleft(self.running.pop())

    def headrace_stats(self) -> list[Any]:
        """Return [running, waiting, KV cache usage 0..1, held, checkpoints, preemptions].

        Held is [id, seconds, share of the KV cache] each; one without KV cache is a spilled one. The answer also says
        that earlier aborts were carried out. Asking is what has held streams saved that are due: no step does it.
        """
        checkpoints = self._checkpoints
        if checkpoints is not None:
            checkpoints.look()
        counts = checkpoints.counts if checkpoints is not None else CheckpointCounts()
        now = time.monotonic()
        held = [[self._submitted_id(rid), now - self._held_since[rid], self._kv_share(rid)] for rid in self._held]
        waiting = len(self.waiting) + len(self.kv_holding_waiting) + len(self._ready)
        usage, checkpointed = float(self.kv_cache_manager.usage), msgspec.structs.asdict(counts)
        return [len(self.running), waiting, usage, held, checkpointed, self._num_preemptions]

    def headrace_checkpoint(self, submitted_ids: Sequence[str]) -> "Future[None]":
        """Save what there is of requests; done when it is written, or cannot be."""
        if self._checkpoints is not None:
            return self._checkpoints.save_now([self._internal_ids.get(name, "") for name in submitted_ids])
        done: Future[None] = Future()
        done.set_result(None)
        return done

    # ---- the scheduler's own interface

    def add_request(self, request: Request) -> None:
        """Queue a request, or hold it at once where it comes without credit."""
        super().add_request(request)
        self._internal_ids[self._submitted_id(request.request_id)] = request.request_id
        credit = _extra(request, CREDIT)
        if credit:
            self._credit[request.request_id] = credit
            self._apply_credit(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:  # noqa: ANN401  vLLM's signature
        """Hold what is out of credit, give free slots to what has credit again, then schedule as ever."""
        self._overtaken = None
        if self._credit:
            self._hold_exhausted()
        for _ in range(len(self._ready)):
            if len(self.running) + self.num_waiting_for_streaming_input >= self.max_num_active_reqs:
                break
            request = self._ready.popleft()
            # The model runner needs its last token to go on, and a place for its adapter.
            if not self._fits_adapters(request) or request.num_in_flight_tokens:
                self._ready.append(request)
            else:
                self.running.append(request)
        if self.use_v2_model_runner:
            self._spare_runner_slots()
        return super().schedule(throttle_prefills)

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  as the scheduler's own
        """Take a step's tokens; where fewer drafts were accepted than was guessed, there is credit left."""
        outputs = super().update_from_output(*args, **kwargs)
        for request_id in [rid for rid in self._guessed if not self._held[rid].num_output_placeholders]:
            self._guessed.discard(request_id)
            self._apply_credit(self._held[request_id])
        return outputs

    def get_num_unfinished_requests(self) -> int:
        """Count what can be worked on: held requests cannot, and the engine sleeps when only they are left."""
        count: int = super().get_num_unfinished_requests()
        return count if self.pause_state == PauseState.PAUSED_ALL else count + len(self._ready)

    def has_finished_requests(self) -> bool:
        """Say whether finished requests are still to be cleaned up; held ones only look as if."""
        if self.finished_req_ids:
            return True
        if self.connector is None:
            return False
        running, waiting = self.get_request_counts()
        return len(self.requests) > int(running) + int(waiting) + len(self._held) + len(self._ready)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  as the scheduler's own
        request_id = request.request_id
        self._credit.pop(request_id, None)
        self._forget_held(request_id)
        if request in self._ready:
            self._ready.remove(request)
        submitted_id = self._submitted_id(request_id)
        if self._internal_ids.get(submitted_id) == request_id:
            del self._internal_ids[submitted_id]
        return super()._free_request(request, *args, **kwargs)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  as the scheduler's own
        """Count it; `vllm:num_preemptions_total` counts spilled requests too."""
        self._num_preemptions += request.request_id not in self._held
        super()._preempt_request(request, *args, **kwargs)

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        """Advance the grammar of a continued answer over the tokens that it has already, and see to adapters' turns."""
        was_compiling = request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        is_ready: bool = super()._handle_blocked_waiting_request(request)
        generated = _extra(request, GENERATED)
        if is_ready and was_compiling and generated:
            earlier = list(request.prompt_token_ids[-generated:])
            if not request.structured_output_request.grammar.accept_tokens(request.request_id, earlier):
                self.grammar_compile_error_reqs.add(request.request_id)
                return False
        return is_ready and not self._is_behind(request) and self._fits_adapters(request)

    # ---- holding

    def _position(self, request: Request) -> int:
        """Return the answer's length, tokens that are being computed included."""
        return _extra(request, GENERATED) + int(request.num_output_tokens) + int(request.num_output_placeholders)

    def _has_credit(self, request: Request) -> bool:
        credit = self._credit.get(request.request_id)
        return credit is None or self._position(request) < credit

    def _hold_exhausted(self) -> None:
        running: list[Request] = []
        for request in self.running:
            if self._has_credit(request):
                running.append(request)
                self._trim_drafts(request)
            else:
                self._hold(request)
        if len(running) < len(self.running):
            self.running = running

    def _fits_adapters(self, request: Request) -> bool:
        """Say whether the batch can have a request's adapter, too; note who it was that it cannot have."""
        if self.lora_config is None or request.lora_request is None:
            return True
        running = {one.lora_request.lora_int_id for one in self.running if one.lora_request is not None}
        fits = request.lora_request.lora_int_id in running or len(running) < int(self.lora_config.max_loras)
        if not fits and (self._overtaken is None or request < self._overtaken):
            self._overtaken = request
        return fits

    def _is_behind(self, request: Request) -> bool:
        """Say whether a request that has not started is to let one go first that waits for its adapter's turn.

        Else the batch never runs out of the adapters that it has, as long as there are requests of these.
        """
        return request.lora_request is not None and self._overtaken is not None and self._overtaken < request

    def _trim_drafts(self, request: Request) -> None:
        credit = self._credit.get(request.request_id)
        if credit is not None and request.spec_token_ids:
            request.spec_token_ids = request.spec_token_ids[: credit - self._position(request) - 1]

    def _hold(self, request: Request) -> None:
        self._held[request.request_id] = request
        self._held_since[request.request_id] = time.monotonic()
        if self.num_spec_tokens and request.num_output_placeholders:
            self._guessed.add(request.request_id)

    def _forget_held(self, request_id: str) -> None:
        if self._held.pop(request_id, None) is not None:
            del self._held_since[request_id]
            self._guessed.discard(request_id)

    def _apply_credit(self, request: Request) -> None:
        """Bring a request that does not run in line with its credit; a running one is seen to by `schedule`."""
        is_held = request.request_id in self._held
        if is_held and self._has_credit(request):
            self._forget_held(request.request_id)
            if request.status == RequestStatus.RUNNING:
                self._ready.append(request)
            else:
                self._enqueue_waiting_request(request)
        elif not is_held and not self._has_credit(request):
            if request in self._ready:
                self._ready.remove(request)
                self._hold(request)
            elif request.status in _NOT_STARTED:
                self._leave_waiting(request)
                self._hold(request)

    def _leave_waiting(self, request: Request) -> None:
        self.waiting.remove_requests([request])
        self.kv_holding_waiting.remove_requests([request])
        self.deferred_waiting.discard(request)

    # ---- spilling

    def _allocate_or_spill(self, request: Request, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  as its original
        """Allocate KV blocks; where there are not enough, held requests give theirs first.

        This is both for running requests, before vLLM preempts one of them, and for waiting ones, before they wait on.
        """
        blocks = self._allocate_slots(request, *args, **kwargs)
        while blocks is None and request.priority < BEHIND and self._spill_longest_held():
            blocks = self._allocate_slots(request, *args, **kwargs)
        return blocks

    def _spill_longest_held(self) -> bool:
        return any(self._spill(request) for request in self._held.values())

    def _spill(self, request: Request) -> bool:
        """Give a held request's blocks back to the pool; it becomes a preempted one outside the queues."""
        if (
            request.status != RequestStatus.RUNNING
            or request.num_in_flight_tokens
            or not self._request_blocks_can_be_freed(request)
        ):
            return False
        self._preempt_request(request, time.monotonic(), drop_stale_output=self.requires_kv_delivery)
        self.waiting.remove_requests([request])
        # It may run again in the next step, without a step between: the runner must not think that it knows its tokens.
        self.prev_step_scheduled_req_ids.discard(request.request_id)
        return True

    def _spare_runner_slots(self) -> None:
        """Keep what the second model runner holds within its slots: there, every request with KV cache has one."""
        wanted = len(self.running) + len(self._ready) + bool(self.waiting)
        while wanted + self._held_with_kv() > self.max_num_running_reqs:
            if not self._spill_longest_held():
                break

    def _held_with_kv(self) -> int:
        return sum(request.status == RequestStatus.RUNNING for request in self._held.values())

    def _kv_share(self, request_id: str) -> float:
        blocks: Sequence[Sequence[int]] = self.kv_cache_manager.get_block_ids(request_id)
        return sum(map(len, blocks)) / int(self.kv_cache_manager.block_pool.num_gpu_blocks)

    @property
    def _checkpoints(self) -> CheckpointConnector | None:
        """Our KV connector, alone or among several."""
        among = getattr(self.connector, "sub_connectors", [self.connector])
        return next((connector for connector in among if isinstance(connector, CheckpointConnector)), None)

    @staticmethod
    def _submitted_id(request_id: str) -> str:
        return request_id.rpartition("-")[0]


def _extra(request: Request, name: str) -> int:
    """Return one of our own fields of a request, 0 where it is not set."""
    parameters = request.sampling_params
    extra = parameters.extra_args if parameters is not None else None
    return int(extra.get(name, 0)) if extra else 0


class HeadraceScheduler(_OnCredit, Scheduler):  # type: ignore[misc]  # vLLM ships no types
    """For synchronous scheduling (CPU)."""


class HeadraceAsyncScheduler(_OnCredit, AsyncScheduler):  # type: ignore[misc]  # vLLM ships no types
    """For asynchronous scheduling (GPU)."""


def _control(self: Any, operations: list[list[Any]]) -> list[Any]:  # noqa: ANN401  EngineCore is untyped
    """Carry out operations of our scheduler, each [name, arguments...]; returns their results."""
    return [getattr(self.scheduler, f"headrace_{name}")(*arguments) for name, *arguments in operations]


def _checkpoint(self: Any, submitted_ids: list[str]) -> "Future[None]":  # noqa: ANN401  EngineCore is untyped
    """Answer when checkpoints of requests are written, or cannot be."""
    future: Future[None] = self.scheduler.headrace_checkpoint(submitted_ids)
    return future


EngineCore.headrace_control = _control
EngineCore.headrace_checkpoint = _checkpoint
