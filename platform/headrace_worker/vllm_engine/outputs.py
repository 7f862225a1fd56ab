"""What the engine gives, in the turn of the event loop in which EngineCore's message comes.

vLLM's own front end has a task that reads its socket through zmq's asyncio, a queue, a task that takes from it, and an
object per token for a third one: made for servers whose requests are tasks. That is six turns of the loop for each
engine step. Here a step is one: the socket becomes readable, and what it brought is delivered.

vLLM's own bookkeeping of requests and its metrics stay. None of these interfaces is public; the tests marked `engine`
hold this to version 0.32.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Any

import zmq

from headrace_wire.messages import FinishReason
from headrace_worker.engine import Deliver, EngineOutput

log = logging.getLogger(__name__)

_FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "error": FinishReason.ERROR,
    "repetition": FinishReason.STOP,
}


class OutputReader:
    """Stands in the place of `AsyncLLM`'s two tasks, from `start` to `close`, or to the engine's end."""

    def __init__(self, llm: Any, deliver: Deliver) -> None:  # noqa: ANN401  vLLM is untyped
        from vllm import envs  # noqa: PLC0415
        from vllm.v1.engine.core_client import _process_utility_output  # noqa: PLC0415
        from vllm.v1.metrics.stats import IterationStats  # noqa: PLC0415

        envs.enable_envs_cache()  # as EngineCore does: one of them is read for every token
        core = llm.engine_core
        self._core = core
        self._resources = core.resources
        self._processor = llm.output_processor
        self._metrics = llm.logger_manager
        self._new_stats: Any = IterationStats
        self._answer: Any = _process_utility_output
        self._deliver = deliver
        self._live: set[str] = set()
        self._batch: list[EngineOutput] = []
        self._fd = -1
        self._socket: Any = None
        self._note_finished = getattr(type(core), "process_engine_outputs", None)
        """Of clients of several engines: which of them has how much to do."""

    def start(self, llm: Any) -> "asyncio.Future[None]":  # noqa: ANN401  vLLM is untyped
        """Begin to read; the returned future is done when nothing comes any more."""
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._ended: asyncio.Task[None] = loop.create_task(_never(), name="engine outputs")
        self._ended.add_done_callback(self._leave)
        # vLLM starts no tasks of its own where these are set; it cancels ours when its engine dies.
        llm.output_handler = self._resources.output_queue_task = self._ended
        self._socket = zmq.Socket.shadow(self._resources.output_socket)
        # A descriptor of our own: vLLM closes the socket, and its number may be another file's a moment later.
        self._fd = os.dup(self._socket.getsockopt(zmq.FD))
        loop.add_reader(self._fd, self._read)
        loop.call_soon(self._read)  # it tells of news only
        return self._ended

    def close(self) -> None:
        """Read no more."""
        self._ended.cancel()

    def collect(self, request_id: str, collector: Any) -> None:  # noqa: ANN401  vLLM is untyped
        """Have the outputs of a request that was submitted delivered with the others."""

        def put(output: Any) -> None:  # noqa: ANN401  a RequestOutput or an exception
            if request_id in self._live and not isinstance(output, Exception):
                self._take(request_id, output)

        self._live.add(request_id)
        early = collector.output
        collector.put = put
        if early is not None:
            put(early)
            self._loop.call_soon(self._flush)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Deliver no more of these requests."""
        self._live.difference_update(request_ids)

    def _leave(self, _: object) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _read(self) -> None:
        """Take every message that is there: the descriptor only tells that there is something new."""
        if self._ended.done():
            return
        try:
            while True:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                self._resources.validate_alive(frames)
                self._take_message(self._core.decoder.decode(frames))
        except zmq.Again:
            pass
        except Exception as error:  # noqa: BLE001  whatever it is, the engine is of no use any more
            if not self._resources.engine_dead:
                log.warning("the engine's outputs cannot be read: %r", error)
            self._ended.cancel()
        self._flush()

    def _take_message(self, message: Any) -> None:  # noqa: ANN401  vLLM's EngineCoreOutputs
        if message.utility_output is not None:
            if message.utility_output.call_id in self._core.utility_results:
                self._answer(message.utility_output, self._core.utility_results)
            return
        if self._note_finished is not None:
            self._loop.create_task(self._note_finished(self._core, message))
        if not message.outputs and message.scheduler_stats is None:
            return
        stats = self._new_stats() if message.outputs and self._metrics is not None else None
        self._take_outputs(message, stats)
        self._processor.update_scheduler_stats(message.scheduler_stats)
        if self._metrics is not None:
            self._metrics.record(
                engine_idx=message.engine_index, scheduler_stats=message.scheduler_stats, iteration_stats=stats
            )

    def _take_outputs(self, message: Any, stats: Any) -> None:  # noqa: ANN401  vLLM's EngineCoreOutputs, IterationStats
        """Take a step's tokens: those in the middle of an answer at once, first and last ones by vLLM's own way."""
        processor, timestamp, weights = self._processor, message.timestamp, message.weight_version
        states, live, batch = processor.request_states, self._live, self._batch
        for output in message.outputs:
            state = states.get(output.request_id)
            if state is None:
                continue  # aborted
            request_id = state.external_req_id
            if output.finish_reason is not None or state.is_prefilling or weights or request_id not in live:
                processor.process_outputs([output], timestamp, stats, weight_version=weights)
                continue
            if stats is not None:
                stats.update_from_output(output, timestamp, False, state.stats, processor.lora_states, state.lora_name)
            state.detokenizer.update(output.new_token_ids, False)
            batch.append(EngineOutput(request_id, output.new_token_ids, None, None, 0))

    def _take(self, request_id: str, output: Any) -> None:  # noqa: ANN401  vLLM's RequestOutput
        completion = output.outputs[0]
        reason = completion.finish_reason
        finish = None if reason is None else _FINISH_REASONS.get(reason, FinishReason.ERROR)
        if finish is not None:
            self._live.discard(request_id)
        cached = output.num_cached_tokens or 0
        self._batch.append(EngineOutput(request_id, list(completion.token_ids), finish, completion.stop_reason, cached))

    def _flush(self) -> None:
        batch = self._batch
        if batch:
            self._batch = []
            self._deliver(batch)


async def _never() -> None:
    """Wait until it is cancelled."""
    await asyncio.get_running_loop().create_future()
