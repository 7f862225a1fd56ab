"""Deletes the checkpoints of streams that have ended, in a thread of its own: a file server may hang."""

import logging
from concurrent.futures import ThreadPoolExecutor

from headrace_wire.checkpoint_folders import discard_stream
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings
from headrace_worker.generation import Generation

log = logging.getLogger(__name__)

MAX_WAITING = 1000
"""Streams; what is over it is left to the sweep."""


class CheckpointDisposal:
    """Belongs to one event loop, and never keeps it waiting."""

    def __init__(self, settings: CheckpointSettings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._begun = 0
        self._done = 0

    def ended(self, generation: Generation) -> None:
        """Nobody goes on with this stream: delete what was saved of it, if that may be anything."""
        settings = self._settings
        may_have_one = generation.context_tokens >= settings.min_tokens or generation.is_continued
        if may_have_one and self._begun - self._done < MAX_WAITING:
            self._begun += 1
            self._thread.submit(self._discard, generation.request.tenant_id, generation.stream_id)

    def close(self) -> None:
        """Begin nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _discard(self, tenant_id: str, stream_id: str) -> None:
        try:
            discard_stream(self._settings.root, tenant_id, stream_id)
        except Exception:  # whatever it is, no stream is the worse for it
            log.exception("cannot delete a checkpoint stream_id=%s", stream_id)
        self._done += 1
