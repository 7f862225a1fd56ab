"""Headrace's part of vLLM's EngineCore: one utility method that the worker calls between two engine steps.

Named as `scheduler_cls`, so that EngineCore imports it; vLLM 0.32's scheduler interface is not public, and the tests
marked `engine` are what holds this to it.
"""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore


class _Operations:
    """What `headrace` may be asked; mixed into a scheduler. Runs in the engine's own thread, between steps."""

    running: Any
    waiting: Any
    kv_cache_manager: Any

    def headrace_stats(self) -> list[float]:
        """Return [running, waiting, KV cache usage 0..1]. Its answer also says that earlier aborts were carried out."""
        return [len(self.running), len(self.waiting), float(self.kv_cache_manager.usage)]


class HeadraceScheduler(_Operations, Scheduler):  # type: ignore[misc]  # vLLM ships no types
    """For synchronous scheduling (CPU)."""


class HeadraceAsyncScheduler(_Operations, AsyncScheduler):  # type: ignore[misc]  # vLLM ships no types
    """For asynchronous scheduling (GPU)."""


def _headrace(self: Any, operation: str) -> Any:  # noqa: ANN401  EngineCore is untyped
    return getattr(self.scheduler, f"headrace_{operation}")()


EngineCore.headrace = _headrace
