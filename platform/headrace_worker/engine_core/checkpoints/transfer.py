"""The model runner's half: writes and reads files in threads of its own, so that no step waits for a disk."""

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from headrace_worker.engine_core.checkpoints.memory import BlockMemory
from headrace_worker.engine_core.checkpoints.store import CheckpointStore, Refusal, RefusedError, require_wanted
from headrace_worker.engine_core.checkpoints.work import Load, Outcome, Save, Work

log = logging.getLogger(__name__)


class Transfer:
    """`begin` and `take` are called by the engine's thread, once per step."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._memory: BlockMemory | None = None
        self._saving = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-save")
        self._loading = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-load")
        self._begun: set[int] = set()
        """Numbers of saves that have not ended."""
        self._unwanted: set[int] = set()
        self._outcomes: deque[Outcome] = deque()

    def use(self, memory: BlockMemory) -> None:
        """Save from, and load into, this KV cache. Before, everything is refused."""
        self._memory = memory

    def begin(self, work: Work) -> None:
        """Begin a step's work."""
        self._begun.update(save.number for save in work.saves)
        self._unwanted.update(self._begun.intersection(work.unwanted))
        if work.saves and self._memory is not None:
            self._memory.follow()
        for save in work.saves:
            self._saving.submit(self._run, partial(self._save, save))
        for load in work.loads:
            self._loading.submit(self._run, partial(self._load, load))

    def take(self) -> list[Outcome]:
        """Return what has ended since."""
        outcomes: list[Outcome] = []
        while self._outcomes:
            outcomes.append(self._outcomes.popleft())
        ended = [outcome.number for outcome in outcomes]
        self._begun.difference_update(ended)
        self._unwanted.difference_update(ended)
        return outcomes

    def close(self) -> None:
        """Begin nothing more; what is being written is given up with the process."""
        for pool in (self._saving, self._loading):
            pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: Callable[[], Outcome]) -> None:
        self._outcomes.append(work())

    def _save(self, save: Save) -> Outcome:
        began = time.perf_counter()

        def is_wanted() -> bool:
            return save.number not in self._unwanted

        try:
            require_wanted(is_wanted)
            memory = self._usable_memory()
            size = self._store.save(
                save.key,
                first=save.first,
                hashes=save.hashes,
                block_bytes=memory.block_bytes,
                blocks=memory.read(save.block_ids),
                is_wanted=is_wanted,
            )
        except RefusedError as refusal:
            return Outcome(save.number, refusal=refusal.reason)
        except Exception:  # a checkpoint saves time; whatever is wrong with it, the answer goes on
            log.exception("cannot save a checkpoint stream_id=%s", save.key.stream_id)
            return Outcome(save.number, refusal=Refusal.UNREADABLE)
        return Outcome(save.number, bytes=size, seconds=time.perf_counter() - began)

    def _load(self, load: Load) -> Outcome:
        began = time.perf_counter()
        try:
            memory = self._usable_memory()
            targets = memory.targets(load.block_ids)
            size = self._store.load(load.hashes, load.pieces, targets)
            memory.put(load.block_ids, targets)
        except RefusedError as refusal:
            return Outcome(request_id=load.request_id, refusal=refusal.reason)
        except Exception:
            log.exception("cannot load a checkpoint request_id=%s", load.request_id)
            return Outcome(request_id=load.request_id, refusal=Refusal.UNREADABLE)
        return Outcome(request_id=load.request_id, bytes=size, seconds=time.perf_counter() - began)

    def _usable_memory(self) -> BlockMemory:
        if self._memory is None:
            raise RefusedError(Refusal.FINGERPRINT)
        return self._memory
