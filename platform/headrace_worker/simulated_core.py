"""The stepping of the simulated engine, alone: requests in, batches of outputs out, on the event loop's clock."""

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from headrace_wire import codec
from headrace_wire.messages import FinishReason
from headrace_worker.engine import EngineOutput, EngineRequest, EngineStats

_MASK = (1 << 64) - 1


class SimulatedArgs(Struct, frozen=True, forbid_unknown_fields=True):
    """What `engine_args` of a simulated deployment may set."""

    ttft_ms: float = 20.0
    """From submission (or from a free slot) to the first token."""
    tpot_ms: float = 20.0
    """Between two steps; every running request gains one token per step."""
    answer_tokens: int = 0
    """Answers end by themselves after this many tokens; 0 lets them run to `max_tokens`."""
    answer: str = ""
    """Every answer is this text, whatever the prompt."""
    process: bool = False
    """Run in a child process, as a real engine does, so that its CPU is not the worker's."""


class CoreConfig(Struct, frozen=True, array_like=True):
    """Everything that the stepping depends on."""

    ttft_seconds: float
    tpot_seconds: float
    answer_tokens: int
    answer_ids: list[int]
    alphabet: list[int]
    end_id: int
    max_num_seqs: int
    max_model_len: int


def token_at(seed: int, position: int, alphabet: Sequence[int]) -> int:
    """Return the token at a position of the answer to the prompt with this seed: the same in any process."""
    x = (seed ^ (position * 0x9E3779B97F4A7C15)) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    return alphabet[((x ^ (x >> 27)) & 0xFFFFFFFF) % len(alphabet)]


def prompt_seed(prompt_ids: Sequence[int]) -> int:
    """Return the seed of a prompt's answer."""
    packed = codec.pack_token_ids(prompt_ids)
    return zlib.crc32(packed) | zlib.adler32(packed) << 32


class _Running:
    __slots__ = ("fixed", "generated", "length", "limit", "ready_at", "request", "seed", "stop_ids")

    def __init__(self, request: EngineRequest, config: CoreConfig) -> None:
        sampling = request.sampling
        self.request = request
        self.seed = prompt_seed(request.prompt_ids)
        self.generated = 0
        self.limit = min(sampling.max_tokens, config.max_model_len - len(request.prompt_ids))
        self.stop_ids = frozenset(sampling.stop_token_ids)
        self.fixed = config.answer_ids
        length = len(config.answer_ids) or config.answer_tokens
        self.length = length if length and not sampling.ignore_eos else 0
        """Tokens before the end token; 0 for none."""
        self.ready_at = 0.0


class SimulatedCore:
    """Steps all running requests at once; `emit` gets each step's outputs as one list."""

    def __init__(self, config: CoreConfig, emit: Callable[[list[EngineOutput]], None]) -> None:
        self._config = config
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Running] = deque()
        self._prefilling: deque[_Running] = deque()
        self._decoding: dict[str, _Running] = {}
        self._next_step = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, request: EngineRequest) -> None:
        """Queue a request."""
        self._waiting.append(_Running(request, self._config))
        self._admit(self._loop.time())
        self._schedule()

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests."""
        gone = frozenset(request_ids)
        self._waiting = deque(r for r in self._waiting if r.request.request_id not in gone)
        self._prefilling = deque(r for r in self._prefilling if r.request.request_id not in gone)
        for request_id in gone:
            self._decoding.pop(request_id, None)
        self._admit(self._loop.time())
        self._schedule()

    def stats(self) -> EngineStats:
        """Return how much is running and waiting."""
        running = len(self._prefilling) + len(self._decoding)
        return EngineStats(running, len(self._waiting), running / self._config.max_num_seqs)

    def close(self) -> None:
        """Stop stepping."""
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()
        self._prefilling.clear()
        self._decoding.clear()

    def _admit(self, now: float) -> None:
        while self._waiting and len(self._prefilling) + len(self._decoding) < self._config.max_num_seqs:
            running = self._waiting.popleft()
            running.ready_at = now + self._config.ttft_seconds
            self._prefilling.append(running)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [self._next_step] if self._decoding else []
        if self._prefilling:
            times.append(self._prefilling[0].ready_at)
        if times:
            self._timer = self._loop.call_at(min(times), self._step)

    def _step(self) -> None:
        now = self._loop.time() + 1e-4
        outputs: list[EngineOutput] = []
        if self._decoding and self._next_step <= now:
            outputs = [self._advance(running) for running in self._decoding.values()]
            self._next_step = max(self._next_step + self._config.tpot_seconds, now)
        while self._prefilling and self._prefilling[0].ready_at <= now:
            running = self._prefilling.popleft()
            if not self._decoding:
                self._next_step = now + self._config.tpot_seconds
            self._decoding[running.request.request_id] = running
            outputs.append(self._advance(running))
        for output in outputs:
            if output.finish_reason is not None:
                del self._decoding[output.request_id]
        self._admit(now)
        self._timer = None
        self._schedule()
        if outputs:
            self._emit(outputs)

    def _advance(self, running: _Running) -> EngineOutput:
        config, position = self._config, running.generated
        running.generated = position + 1
        finish: FinishReason | None = None
        stop_reason: int | None = None
        if running.length and position >= running.length:
            token, finish = config.end_id, FinishReason.STOP
        elif running.fixed:
            token = running.fixed[position % len(running.fixed)]
        else:
            token = token_at(running.seed, position, config.alphabet)
        if finish is None and token in running.stop_ids and position >= running.request.sampling.min_tokens:
            finish, stop_reason = FinishReason.STOP, token
        elif finish is None and position + 1 >= running.limit:
            finish = FinishReason.LENGTH
        return EngineOutput(running.request.request_id, [token], finish, stop_reason)
