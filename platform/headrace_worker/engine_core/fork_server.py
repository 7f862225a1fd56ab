"""What the fork server imports, so that each EngineCore begins with vLLM's imports done: ten seconds of a core.

multiprocessing's fork server is one process that does nothing but import and fork. Its life is bound to the worker's,
and those of the engines that it forks to its own (`child`).
"""

import gc
import logging
import os

from headrace_wire.parent_death import die_with_parent
from headrace_worker.config import become_engine_parent, engine_parent_pid

log = logging.getLogger(__name__)

die_with_parent(engine_parent_pid())
become_engine_parent(os.getpid())
try:
    import vllm.model_executor.models.llama
    import vllm.v1.engine.core
    import vllm.v1.worker.cpu_worker  # noqa: F401
except Exception:  # the engine imports it again, and says why it cannot
    log.exception("vLLM cannot be imported in advance")
gc.freeze()  # a collection in a child would copy every page of it
