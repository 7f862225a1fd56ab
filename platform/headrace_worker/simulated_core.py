"""The stepping of the simulated engine, alone: requests in, batches of outputs out, on the event loop's clock."""

import asyncio
import zlib
from bisect import insort, insort_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from headrace_wire import codec
from headrace_wire.messages import FinishReason
from headrace_worker.engine import EngineOutput, EngineRequest, EngineStats, HeldRequest
from headrace_worker.simulated_cache import SimulatedCache
from headrace_worker.simulated_config import CoreConfig

_MASK = (1 << 64) - 1


def token_at(seed: int, position: int, alphabet: Sequence[int]) -> int:
    """Return the token at a position of the answer to the prompt with this seed: the same in any process."""
    x = (seed ^ (position * 0x9E3779B97F4A7C15)) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    return alphabet[((x ^ (x >> 27)) & 0xFFFFFFFF) % len(alphabet)]


def prompt_seed(prompt_ids: Sequence[int]) -> int:
    """Return the seed of a prompt's answer."""
    packed = codec.pack_token_ids(prompt_ids)
    return zlib.crc32(packed) | zlib.adler32(packed) << 32


def _turn(queued: "_Request") -> int:
    return 2 if queued.request.behind else int(not (queued.request.ahead or queued.held_since or queued.was_preempted))


class _Request:
    __slots__ = (
        "cached_tokens",
        "credit",
        "fixed",
        "generated",
        "held_since",
        "is_poison",
        "keeps_kv",
        "length",
        "limit",
        "ready_at",
        "request",
        "seed",
        "stop_ids",
        "was_preempted",
    )

    def __init__(self, request: EngineRequest, config: CoreConfig) -> None:
        sampling = request.sampling
        self.request = request
        self.seed = prompt_seed(request.prompt_ids)
        if request.adapter is not None:
            self.seed ^= zlib.crc32(request.adapter.name.encode())
        self.generated = len(request.generated_ids)
        self.credit = request.credit
        self.limit = min(sampling.max_tokens, config.max_model_len - len(request.prompt_ids))
        self.stop_ids = frozenset(sampling.stop_token_ids)
        self.fixed = config.answer_ids
        length = len(config.answer_ids) or config.answer_tokens
        self.length = length if length and not sampling.ignore_eos else 0
        """Tokens before the end token; 0 for none."""
        self.ready_at = 0.0
        self.held_since = 0.0
        self.is_poison = config.poison_id in request.prompt_ids
        self.keeps_kv = False
        self.was_preempted = False
        self.cached_tokens = 0
        """Of its prompt; told with its next token."""

    @property
    def has_credit(self) -> bool:
        return not self.credit or self.generated < self.credit

    @property
    def kv_tokens(self) -> int:
        return len(self.request.prompt_ids) + self.generated


class SimulatedCore:
    """Steps all running requests at once; `emit` gets each step's outputs as one list, `die` ends the engine."""

    def __init__(self, config: CoreConfig, emit: Callable[[list[EngineOutput]], None], die: Callable[[], None]) -> None:
        self._config = config
        self._emit = emit
        self._die = die
        self._loop = asyncio.get_running_loop()
        self._limit = config.max_num_seqs
        self._cache: SimulatedCache | None = None
        if config.block_tokens:
            self._cache = SimulatedCache(config.block_tokens, config.kv_tokens // config.block_tokens)
        self._prefilled_at = 0.0
        """When the last prompt that was begun is computed."""
        self._requests: dict[str, _Request] = {}
        self._waiting: list[_Request] = []
        self._ready: deque[_Request] = deque()
        """Have credit again and their KV cache still, and wait for a slot."""
        self._prefilling: deque[_Request] = deque()
        self._decoding: dict[str, _Request] = {}
        self._held: dict[str, _Request] = {}
        self._next_step = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._num_preemptions = 0
        self._is_sick = False

    def sicken(self) -> None:
        """Give one request up with each step from now on, as an engine does that has gone wrong and lives."""
        self._is_sick = True

    def submit(self, request: EngineRequest) -> None:
        """Queue a request."""
        queued = self._requests[request.request_id] = _Request(request, self._config)
        if queued.has_credit:
            self._enqueue(queued)
        else:
            self._hold(queued)
        self._admit()

    def credit(self, positions: Mapping[str, int]) -> None:
        """Set how far requests may generate."""
        for request_id, position in positions.items():
            request = self._requests.get(request_id)
            if request is None:
                continue
            request.credit = position
            if request.has_credit and self._held.pop(request_id, None) is not None:
                if request.keeps_kv:
                    self._ready.append(request)
                else:
                    self._enqueue(request)
        self._admit()

    def limit(self, max_running: int) -> None:
        """Set how many requests run at once."""
        self._limit = max(1, min(max_running, self._config.max_num_seqs))
        for request in list(self._decoding.values())[self._limit :]:
            del self._decoding[request.request.request_id]
            self._ready.append(request)
        self._admit()

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests."""
        gone = {request for request_id in request_ids if (request := self._requests.pop(request_id, None)) is not None}
        for request in gone:
            self._keep_answer(request)
        self._waiting = [request for request in self._waiting if request not in gone]
        self._ready = deque(request for request in self._ready if request not in gone)
        self._prefilling = deque(request for request in self._prefilling if request not in gone)
        for request in gone:
            self._decoding.pop(request.request.request_id, None)
            self._held.pop(request.request.request_id, None)
        self._admit()

    def stats(self) -> EngineStats:
        """Return how much is running, waiting and held."""
        now, size = self._loop.time(), self._config.kv_tokens
        held = [
            HeldRequest(request_id, now - request.held_since, request.kv_tokens / size if request.keeps_kv else 0.0)
            for request_id, request in self._held.items()
        ]
        waiting = len(self._waiting) + len(self._ready)
        usage, preemptions = self._kv_used() / size, self._num_preemptions
        return EngineStats(self._num_running, waiting, usage, held, num_preemptions=preemptions)

    def close(self) -> None:
        """Stop stepping."""
        self.abort(list(self._requests))

    # ---- slots and KV cache

    @property
    def _num_running(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    @property
    def _step_seconds(self) -> float:
        return self._config.tpot_seconds + self._config.step_seconds_each * self._num_running

    def _enqueue(self, request: _Request) -> None:
        insort(self._waiting, request, key=_turn)

    def _hold(self, request: _Request) -> None:
        request.held_since = self._loop.time()
        self._held[request.request.request_id] = request

    def _admit(self) -> None:
        """Fill free slots, those first that were running before, and have the next step come in time."""
        now = self._loop.time()
        while self._ready and self._num_running < self._limit:
            request = self._ready.popleft()
            self._start_decoding(request, now)
        while self._waiting and self._num_running < self._limit and self._make_room(self._waiting[0].kv_tokens):
            request = self._waiting.pop(0)
            request.keeps_kv = True
            request.ready_at = self._prefill(request, now) + self._config.ttft_seconds
            self._prefilling.append(request)
        self._schedule()

    def _prefill(self, request: _Request, now: float) -> float:
        """Begin to compute a prompt; return when that is done."""
        salt, prompt_ids = request.request.cache_salt, request.request.prompt_ids
        if self._cache is not None:
            request.cached_tokens = self._cache.find(salt, prompt_ids)
            self._cache.store(salt, prompt_ids)
        uncached = len(prompt_ids) + request.generated - request.cached_tokens
        self._prefilled_at = max(self._prefilled_at, now) + uncached * self._config.prefill_seconds
        return self._prefilled_at

    def _keep_answer(self, request: _Request) -> None:
        """A request goes: what was computed for its answer can be found by the next turn of its conversation."""
        if self._cache is None or not request.keeps_kv:
            return
        answer = [self._token(request, position) for position in range(request.generated - 1)]
        self._cache.store(request.request.cache_salt, [*request.request.prompt_ids, *answer])

    def _make_room(self, tokens: int) -> bool:
        """Spill held requests until there is room; what does not fit even so waits, unless nothing runs."""
        while self._kv_used() + tokens > self._config.kv_tokens:
            if not self._spill_longest_held():
                return not self._num_running
        return True

    def _spill_longest_held(self) -> bool:
        longest_held = next((request for request in self._held.values() if request.keeps_kv), None)
        if longest_held is not None:
            longest_held.keeps_kv = False
        return longest_held is not None

    def _preempt(self) -> None:
        """Where running requests have grown out of the KV cache, the newest begin anew, before all that waits."""
        if len(self._requests) * self._config.max_model_len <= self._config.kv_tokens:
            return  # it cannot be full: most engines are so, and are asked at each step
        while self._kv_used() > self._config.kv_tokens and self._num_running > 1:
            if not self._spill_longest_held():
                self._preempt_newest()

    def _preempt_newest(self) -> None:
        running = [*self._decoding.values(), *self._prefilling]
        newest = next((request for request in reversed(running) if request.request.behind), running[-1])
        if self._decoding.pop(newest.request.request_id, None) is None:
            self._prefilling.remove(newest)
        newest.keeps_kv, newest.was_preempted = False, True
        insort_left(self._waiting, newest, key=_turn)
        self._num_preemptions += 1

    def _kv_used(self) -> int:
        return sum(request.kv_tokens for request in self._requests.values() if request.keeps_kv)

    # ---- steps

    def _start_decoding(self, request: _Request, now: float) -> None:
        if not self._decoding:
            self._next_step = now + self._step_seconds
        self._decoding[request.request.request_id] = request

    def _schedule(self) -> None:
        times = [self._next_step] if self._decoding else []
        if self._prefilling:
            times.append(self._prefilling[0].ready_at)
        at = min(times, default=None)
        if self._timer is not None:
            if self._timer.when() == at:
                return  # one that is due already must not be put off, however often we are called
            self._timer.cancel()
        self._timer = None if at is None else self._loop.call_at(at, self._step)

    def _step(self) -> None:
        self._timer = None
        now = self._loop.time() + 1e-4
        due: list[_Request] = []
        if self._decoding and self._next_step <= now:
            due = list(self._decoding.values())
            self._next_step = max(self._next_step + self._step_seconds, now)
        while self._prefilling and self._prefilling[0].ready_at <= now:
            request = self._prefilling.popleft()
            self._start_decoding(request, now)
            due.append(request)
        if any(request.is_poison and request.generated + 1 >= self._config.poison_at for request in due):
            self.close()
            self._die()
            return
        outputs = [self._advance(request) for request in due if request.generated + 1 != self._config.stall_at]
        if self._is_sick and outputs:
            outputs[0].finish_reason = FinishReason.ABORT
        for output in outputs:
            if output.finish_reason is not None:
                del self._decoding[output.request_id]
                self._keep_answer(self._requests.pop(output.request_id))
            elif not self._decoding[output.request_id].has_credit:
                self._hold(self._decoding.pop(output.request_id))
        self._preempt()
        self._admit()
        if outputs:
            self._emit(outputs)

    def _advance(self, request: _Request) -> EngineOutput:
        position = request.generated
        request.generated = position + 1
        finish: FinishReason | None = None
        stop_reason: int | None = None
        token = self._token(request, position)
        if request.length and position >= request.length:
            finish = FinishReason.STOP
        if finish is None and token in request.stop_ids and position >= request.request.sampling.min_tokens:
            finish, stop_reason = FinishReason.STOP, token
        elif finish is None and position + 1 >= request.limit:
            finish = FinishReason.LENGTH
        cached, request.cached_tokens = request.cached_tokens, 0
        return EngineOutput(request.request.request_id, [token], finish, stop_reason, cached)

    def _token(self, request: _Request, position: int) -> int:
        if request.length and position >= request.length:
            return self._config.end_id
        if request.fixed:
            return request.fixed[position % len(request.fixed)]
        return token_at(request.seed, position, self._config.alphabet)
