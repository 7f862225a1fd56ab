"""KV checkpoints as a KV connector of vLLM 0.32 (v1), for its scheduler and its model runner.

Loads are asynchronous: a request waits for its blocks beside the batch, and is computed from the beginning where they
cannot be read. Saves pin their blocks, so that a request may end, be spilled or preempted meanwhile. With requests that
are not streams of long contexts, every hook here returns at once.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)

from headrace_worker.engine_core.checkpoints.counts import CheckpointCounts
from headrace_worker.engine_core.checkpoints.fingerprint import fingerprint, is_supported
from headrace_worker.engine_core.checkpoints.memory import UnknownLayoutError, block_memory
from headrace_worker.engine_core.checkpoints.settings import CHECKPOINT_SETTINGS, CheckpointSettings
from headrace_worker.engine_core.checkpoints.store import CheckpointStore
from headrace_worker.engine_core.checkpoints.tracking import Tracking
from headrace_worker.engine_core.checkpoints.transfer import Transfer
from headrace_worker.engine_core.checkpoints.work import NO_WORK, Outcome, Outcomes, Work

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1 as _Base
else:
    _Base = KVConnectorBase_V1

log = logging.getLogger(__name__)


class CheckpointConnector(_Base, SupportsHMA):  # type: ignore[misc]  # vLLM ships no types
    """Two of these exist: one in the scheduler (`_tracking`), one with the model runner (`_transfer`).

    Where the engine is one that blocks alone do not describe (several KV cache groups, several devices), both are None.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:  # noqa: ANN401
        super().__init__(vllm_config, role, kv_cache_config)
        self._tracking: Tracking | None = None
        self._transfer: Transfer | None = None
        self._num_blocks = int(kv_cache_config.num_blocks)
        self._ended: list[Outcome] = []
        settings = CheckpointSettings.from_plain(
            self._kv_transfer_config.kv_connector_extra_config[CHECKPOINT_SETTINGS]
        )
        if not is_supported(vllm_config, kv_cache_config):
            log.warning("no checkpoints: only full attention on one device is supported")
            return
        store = CheckpointStore(
            settings.root,
            fingerprint=fingerprint(vllm_config, kv_cache_config),
            bytes_per_tenant=settings.mib_per_tenant << 20,
        )
        if role is KVConnectorRole.SCHEDULER:
            self._tracking = Tracking(store, settings, int(vllm_config.cache_config.block_size))
        else:
            self._transfer = Transfer(store)

    @property
    def requires_kv_delivery(self) -> bool:
        """A checkpoint that is not made is no loss."""
        return False

    def shutdown(self) -> None:
        """End the threads."""
        for part in (self._tracking, self._transfer):
            if part is not None:
                part.close()

    # ---- our own scheduler's

    def save_now(self, request_ids: Sequence[str]) -> "Future[None]":
        """Save everything of these requests; done when it is written, or cannot be."""
        if self._tracking is not None:
            return self._tracking.want(request_ids)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def look(self) -> None:
        """Begin to save what is due, also while no request runs."""
        if self._tracking is not None:
            self._tracking.look()

    @property
    def counts(self) -> CheckpointCounts:
        """What became of checkpoints so far."""
        return self._tracking.counts if self._tracking is not None else CheckpointCounts()

    # ---- the scheduler's half

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:  # noqa: ANN401  vLLM is untyped
        """Learn where blocks are."""
        super().bind_kv_cache_manager(kv_cache_manager)
        if self._tracking is not None:
            self._tracking.bind(kv_cache_manager)

    def on_new_request(self, request: Any) -> None:  # noqa: ANN401  vLLM is untyped
        """Follow a stream."""
        if self._tracking is not None:
            self._tracking.begin(request)

    def get_num_new_matched_tokens(
        self,
        request: Any,  # noqa: ANN401  vLLM is untyped
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """Say how much can be loaded; None while the directory is being looked into."""
        tokens = self._tracking.match(request, num_computed_tokens) if self._tracking is not None else 0
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:  # noqa: ANN401
        """Load into the blocks that a request got."""
        if self._tracking is not None:
            self._tracking.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Work:  # noqa: ANN401, ARG002  vLLM's signature
        """Hand out this step's work."""
        return self._tracking.take_work() if self._tracking is not None else NO_WORK

    def update_connector_output(self, connector_output: Any) -> None:  # noqa: ANN401  vLLM is untyped
        """Take note of what has ended."""
        told = connector_output.kv_connector_worker_meta
        if self._tracking is not None and told is not None:
            for outcome in told.outcomes:
                self._tracking.ended(outcome)

    def request_finished_all_groups(
        self,
        request: Any,  # noqa: ANN401  vLLM is untyped
        block_ids: tuple[list[int], ...],  # noqa: ARG002  vLLM's signature
    ) -> tuple[bool, dict[str, Any] | None]:
        """Forget a stream; its blocks may go."""
        if self._tracking is not None:
            self._tracking.end(request)
        return False, None

    def has_pending_push_work(self) -> bool:
        """Keep an engine that has nothing to compute stepping until everything is written."""
        return self._tracking is not None and self._tracking.is_busy

    # ---- the model runner's half

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Learn where the KV cache is."""
        if self._transfer is None:
            return
        try:
            self._transfer.use(block_memory(kv_caches, self._num_blocks))
        except UnknownLayoutError as error:
            log.warning("no checkpoints: the KV cache has an unknown layout: %s", error)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ANN401, ARG002  vLLM's signature
        """Begin this step's loads and saves."""
        work = self._get_connector_metadata()
        if self._transfer is not None and work is not NO_WORK:
            self._transfer.begin(work)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: requests whose blocks are being loaded are not in the batch."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Nothing: blocks are saved when they are whole."""

    def wait_for_save(self) -> None:
        """Nothing: the blocks are pinned until they are written."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:  # noqa: ARG002  vLLM's
        """Say which loads have ended, and which of them failed."""
        results = KVConnectorTransferResults()
        if self._transfer is None:
            return results
        self._ended = self._transfer.take()
        for outcome in self._ended:
            if outcome.request_id:
                results.finished_recving.add(outcome.request_id)
                if outcome.refusal:
                    results.failed_recving.add(outcome.request_id)
        return results

    def build_connector_worker_meta(self) -> Outcomes | None:
        """Say how saves and loads ended."""
        ended, self._ended = self._ended, []
        return Outcomes(ended) if ended else None
