"""KV checkpoints on disk that nobody will go on from. Swept with the rest of what dead processes left.

A worker deletes the checkpoint of a stream that it brought to its end. Left over are those of streams that ended
without one (cancelled while suspended, expired), of workers that were killed, of tenants that are gone.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import structlog
from msgspec import Struct
from msgspec.structs import asdict

from apps.streams.metrics import CHECKPOINTS_FREED_BYTES, GARBAGE_FREED
from headrace_wire.checkpoint_folders import (
    CheckpointFolder,
    discard_stream,
    discard_tenant,
    stream_folders,
    tenant_ids,
)
from headrace_wire.request_queue import RequestQueue
from headrace_wire.token_log import STREAM_MAX_SECONDS

log = structlog.get_logger(__name__)


class CheckpointsFreed(Struct):
    """What a sweep of the checkpoint directory deleted."""

    checkpoint_tenants: int = 0
    """Folders of tenants that are gone, with all that was in them."""
    checkpoints: int = 0
    checkpoint_bytes: int = 0


async def checkpoint_garbage_collect(
    root: Path, queue: RequestQueue, *, tenants: Callable[[], Awaitable[Collection[str]]]
) -> CheckpointsFreed:
    """Deletes what nobody will go on from. `tenants` reads the ids of all that exist, once their folders were seen.

    Every step stands alone: a sweep that dies in the middle is continued by the next one.

    Raises:
        redis.exceptions.RedisError: Redis does not answer; what was deleted until then stays so.
    """
    freed = CheckpointsFreed()
    seen = await asyncio.to_thread(tenant_ids, root)
    known = await tenants() if seen else set()
    try:
        for tenant_id in seen:
            folders = await asyncio.to_thread(stream_folders, root, tenant_id)
            if tenant_id not in known:
                await asyncio.to_thread(discard_tenant, root, tenant_id)
                freed.checkpoint_tenants += 1
                freed.checkpoints += len(folders)
                freed.checkpoint_bytes += sum(folder.bytes for folder in folders)
                continue
            for folder in folders:
                if await _is_useless(folder, queue):
                    taken = await asyncio.to_thread(discard_stream, root, tenant_id, folder.stream_id)
                    freed.checkpoints += 1
                    freed.checkpoint_bytes += taken
    finally:
        GARBAGE_FREED.labels("checkpoints").inc(freed.checkpoints)
        CHECKPOINTS_FREED_BYTES.inc(freed.checkpoint_bytes)
    log.info("checkpoints_freed", **asdict(freed))
    return freed


async def _is_useless(folder: CheckpointFolder, queue: RequestQueue) -> bool:
    if time.time() - folder.used_at > STREAM_MAX_SECONDS:
        return True  # no stream lives so long
    record = await queue.record(folder.stream_id)
    return record is None or record.state.is_terminal or record.tenant_id != folder.tenant_id
