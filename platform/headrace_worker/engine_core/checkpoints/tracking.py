"""The scheduler's half: which streams to save, from where to load, and which blocks must stay as they are meanwhile.

All of it runs in the engine's thread, except for looks into the directory, which have a thread of their own.
"""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from vllm.v1.request import RequestStatus

from headrace_worker.engine_core.checkpoints.counts import CheckpointCounts
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings
from headrace_worker.engine_core.checkpoints.store import CheckpointStore, Found, Piece, Refusal, StreamKey
from headrace_worker.engine_core.checkpoints.work import NO_WORK, Load, Outcome, Save, Work
from headrace_worker.engine_core.request_fields import CHECKPOINT

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
"""How often streams are looked through for what is due. A step between two looks has nothing to do for us."""

SEGMENT_BLOCKS = 128
"""Of one file, at most: so many of a stream's blocks stay out of the pool's hands while they are written."""

PINNED_SHARE = 8
"""One in so many blocks of the KV cache, at most, may be waiting to be written."""

PATIENCE_SECONDS = 2.0
"""How long a request waits for a look into the directory, before it is computed: a share may hang."""

_TROUBLE = (Refusal.CORRUPT, Refusal.UNREADABLE)
_ENDED = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


class _Stream:
    """What is known of one request."""

    def __init__(self, request: Any, key: StreamKey, now: float) -> None:  # noqa: ANN401  vLLM's request
        self.request = request
        self.key = key
        self.saved_blocks = 0
        self.saved_at = now
        self.saved_tokens = int(request.num_tokens)
        self.save: Save | None = None
        """Under way."""
        self.look: Future[Found] | None = None
        self.begun_at = now
        self.load_start = 0
        self.load: list[Piece] = []
        self.is_loading = False
        self.may_load = True
        self.waits: list[Future[None]] = []
        """Of those who want everything saved, now."""


class Tracking:
    """Belongs to the engine's thread."""

    def __init__(self, store: CheckpointStore, settings: CheckpointSettings, block_size: int) -> None:
        self._store = store
        self._settings = settings
        self._block_size = block_size
        self._kv_cache: Any = None
        self._streams: dict[str, _Stream] = {}
        self._saves: dict[int, tuple[str, Sequence[Any]]] = {}
        """Number of a save under way to its request and the blocks that are pinned for it."""
        self._wanted: dict[str, _Stream] = {}
        """Those that are to be saved now."""
        self._work = Work()
        self._pinned = 0
        self._number = 0
        self._look_at = 0.0
        self._looking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-look")
        self.counts = CheckpointCounts()

    def bind(self, kv_cache_manager: Any) -> None:  # noqa: ANN401  vLLM is untyped
        """Use the scheduler's KV cache manager."""
        self._kv_cache = kv_cache_manager

    # ---- a request's life

    def begin(self, request: Any) -> None:  # noqa: ANN401  vLLM's request
        """Follow a request, if it is a stream's; have the directory looked into where it goes on with an answer."""
        extra = (request.sampling_params.extra_args or {}) if request.sampling_params is not None else {}
        if CHECKPOINT not in extra:
            return
        tenant_id, stream_id, had_owner = extra[CHECKPOINT]
        stream = _Stream(request, StreamKey(tenant_id, stream_id), time.monotonic())
        self._streams[request.request_id] = stream
        if had_owner:
            # The last token has to be computed in any case: the next one is drawn from it.
            hashes = list(request.block_hashes[: (request.num_tokens - 1) // self._block_size])
            stream.look = self._looking.submit(_find, self._store, stream.key, hashes)

    def end(self, request: Any) -> None:  # noqa: ANN401  vLLM's request
        """Forget a request. What is being written of it counts only where it was asked for, and not at its end."""
        stream = self._streams.pop(request.request_id, None)
        if stream is None:
            return
        is_leaving = request.request_id in self._wanted
        if stream.save is not None and (request.status in _ENDED or not is_leaving):
            self._work.unwanted.append(stream.save.number)
        self._settle(stream)

    # ---- loading

    def match(self, request: Any, num_computed_tokens: int) -> int | None:  # noqa: ANN401  vLLM's request
        """Return how many tokens beyond the computed ones can be loaded; None while this is not known yet."""
        stream = self._streams.get(request.request_id)
        if stream is None or stream.look is None or not stream.may_load:
            return 0
        if not stream.look.done():
            if time.monotonic() - stream.begun_at < PATIENCE_SECONDS:
                return None
            stream.may_load = False
            self._refuse(stream, Refusal.UNREADABLE)
            return 0
        found = self._found(stream)
        stream.load_start = num_computed_tokens // self._block_size
        stream.load = found.pieces(stream.load_start)
        return sum(piece.count for piece in stream.load) * self._block_size

    def allocated(self, request: Any, blocks: Any, num_tokens: int) -> None:  # noqa: ANN401  vLLM is untyped
        """Load into blocks that a request got for tokens that `match` promised."""
        stream = self._streams.get(request.request_id)
        if stream is None or not num_tokens:
            return
        start, end = stream.load_start, stream.load_start + num_tokens // self._block_size
        (block_ids,) = blocks.get_block_ids()
        hashes = tuple(request.block_hashes[start:end])
        stream.is_loading = True
        self._work.loads.append(Load(request.request_id, hashes, tuple(stream.load), tuple(block_ids[start:end])))

    def _found(self, stream: _Stream) -> Found:
        assert stream.look is not None  # noqa: S101
        found = stream.look.result()
        if found.refusals:
            for refusal in found.refusals:
                self._refuse(stream, refusal)
            found = Found(found.segments)
            stream.look = Future()
            stream.look.set_result(found)
        stream.saved_blocks = max(stream.saved_blocks, found.complete_until)
        return found

    # ---- saving

    def want(self, request_ids: Sequence[str]) -> "Future[None]":
        """Save everything of these requests; the future is done when it is written, or cannot be."""
        waits = []
        for request_id in request_ids:
            stream = self._streams.get(request_id)
            if stream is None:
                continue
            self._wanted[request_id] = stream
            wait: Future[None] = Future()
            stream.waits.append(wait)
            waits.append(wait)
            if stream.save is None:
                self._save(stream)
        return _all_done(waits)

    def look(self) -> None:
        """Begin to save what is due."""
        now = time.monotonic()
        self._look_at = now + LOOK_SECONDS
        for stream in self._streams.values():
            if stream.save is None and self._is_due(stream, now):
                self._save(stream)

    def take_work(self) -> Work:
        """Return what to begin in this step."""
        if self._streams and time.monotonic() >= self._look_at:
            self.look()
        work = self._work
        if not (work.saves or work.loads or work.unwanted):
            return NO_WORK
        self._work = Work()
        return work

    @property
    def is_busy(self) -> bool:
        """Whether the engine must go on stepping although there may be nothing to compute."""
        return bool(self._saves or self._work.saves)

    def ended(self, outcome: Outcome) -> None:
        """Take note of what was saved or loaded."""
        if outcome.number:
            self._saved(outcome)
        else:
            self._loaded(outcome)

    def close(self) -> None:
        """Stop."""
        self._looking.shutdown(wait=False, cancel_futures=True)

    def _is_due(self, stream: _Stream, now: float) -> bool:
        request, settings = stream.request, self._settings
        if request.num_tokens < settings.min_tokens:
            return False
        return (
            request.num_tokens - stream.saved_tokens >= settings.every_tokens
            or now - stream.saved_at >= settings.every_seconds
        )

    def _save(self, stream: _Stream) -> None:
        """Begin to save the next blocks of a stream; where there are none, whoever waits for it is told."""
        request = stream.request
        block_ids = [] if stream.is_loading else self._kv_cache.get_block_ids(request.request_id)[0]
        computed = (int(request.num_computed_tokens) - int(request.num_in_flight_tokens)) // self._block_size
        first, pool = stream.saved_blocks, self._kv_cache.block_pool
        end = min(computed, len(block_ids), len(request.block_hashes))
        if end <= first or request.num_tokens < self._settings.min_tokens:
            self._settle(stream)
            return
        room = int(pool.num_gpu_blocks) // PINNED_SHARE - self._pinned
        if room <= 0:
            if not self._pinned:
                self._settle(stream)
            return  # one that is wanted now is next when something was written
        end = min(end, first + SEGMENT_BLOCKS, first + room)
        self._number += 1
        pinned = [pool.blocks[block_id] for block_id in block_ids[first:end]]
        pool.touch(pinned)
        self._pinned += len(pinned)
        hashes = tuple(request.block_hashes[first:end])
        stream.save = Save(self._number, stream.key, first, hashes, tuple(block_ids[first:end]))
        stream.saved_at, stream.saved_tokens = time.monotonic(), int(request.num_tokens)
        self._saves[self._number] = (request.request_id, pinned)
        self._work.saves.append(stream.save)

    def _saved(self, outcome: Outcome) -> None:
        request_id, pinned = self._saves.pop(outcome.number)
        self._kv_cache.block_pool.free_blocks(reversed(pinned))
        self._pinned -= len(pinned)
        stream = self._streams.get(request_id)
        if outcome.refusal:
            self._refuse(stream, outcome.refusal)
        else:
            self.counts.count_saved(outcome.bytes, outcome.seconds)
        if stream is not None and stream.save is not None and stream.save.number == outcome.number:
            self._note_saved(stream, stream.save, outcome.refusal)
        for wanted in [stream for stream in self._wanted.values() if stream.save is None]:
            self._save(wanted)

    def _note_saved(self, stream: _Stream, save: Save, refusal: str) -> None:
        stream.save = None
        if not refusal:
            stream.saved_blocks = max(stream.saved_blocks, save.first + len(save.block_ids))
            return
        if refusal == Refusal.INCOMPLETE and save.first:
            stream.saved_blocks = 0  # it was removed: from the beginning, now where it is wanted, else when it is due
        else:
            self._settle(stream)

    def _refuse(self, stream: _Stream | None, reason: str) -> None:
        self.counts.refuse(reason)
        if reason in _TROUBLE:
            log.warning("checkpoint refused stream_id=%s: %s", stream.key.stream_id if stream else "ended", reason)

    def _settle(self, stream: _Stream) -> None:
        """Tell those who wait for a stream that nothing more is saved of it for now."""
        self._wanted.pop(stream.request.request_id, None)
        for wait in stream.waits:
            wait.set_result(None)
        stream.waits = []

    def _loaded(self, outcome: Outcome) -> None:
        stream = self._streams.get(outcome.request_id)
        if stream is not None:
            stream.is_loading = False
        if not outcome.refusal:
            self.counts.count_loaded(outcome.bytes, outcome.seconds)
            return
        self._refuse(stream, outcome.refusal)
        if stream is not None:
            stream.may_load = False
            stream.saved_blocks = 0


def _find(store: CheckpointStore, key: StreamKey, hashes: Sequence[bytes]) -> Found:
    try:
        return store.find(key, hashes)
    except Exception:
        log.exception("cannot look for a checkpoint stream_id=%s", key.stream_id)
        return Found(refusals=(Refusal.UNREADABLE,))


def _all_done(waits: "Sequence[Future[None]]") -> "Future[None]":
    """Return a future that is done when all are; all of it happens in the engine's thread."""
    done: Future[None] = Future()
    left = len(waits)

    def one_done(_: "Future[None]") -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set_result(None)

    for wait in waits:
        wait.add_done_callback(one_done)
    if not waits:
        done.set_result(None)
    return done
