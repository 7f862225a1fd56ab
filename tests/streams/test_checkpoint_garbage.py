"""Which KV checkpoints a sweep deletes: those that nobody will go on from, and no others."""

import os
import time
from pathlib import Path

from apps.streams.checkpoint_garbage import CheckpointsFreed, checkpoint_garbage_collect
from apps.streams.gateway import Gateway
from apps.streams.metrics import CHECKPOINTS_FREED_BYTES
from apps.streams.services import stream_cancel
from headrace_wire.checkpoint_folders import make_folder, stream_folder
from headrace_wire.ids import new_stream_id
from headrace_wire.token_log import STREAM_MAX_SECONDS

from .conftest import admit

TENANT, GONE = "a" * 32, "b" * 32
BYTES = 1000


def saved(root: Path, tenant_id: str, stream_id: str, *, age_seconds: float = 0.0) -> Path:
    folder = stream_folder(root, tenant_id, stream_id)
    make_folder(folder)
    (folder / "0.kv").write_bytes(bytes(BYTES))
    used_at = time.time() - age_seconds
    os.utime(folder, (used_at, used_at))
    return folder


async def sweep(gateway: Gateway, root: Path) -> CheckpointsFreed:
    async def known() -> set[str]:
        return {TENANT}

    return await checkpoint_garbage_collect(root, gateway.queue, tenants=known)


async def admitted(gateway: Gateway) -> str:
    stream_id = new_stream_id()
    await admit(gateway, stream_id)
    return stream_id


async def test_only_living_streams_keep_theirs(gateway: Gateway, tmp_path: Path) -> None:
    before = CHECKPOINTS_FREED_BYTES._value.get()
    living, ended, old = [await admitted(gateway) for _ in range(3)]
    await stream_cancel(gateway=gateway, tenant_id=TENANT, stream_id=ended, reason="client")
    kept = saved(tmp_path, TENANT, living)
    useless = [
        saved(tmp_path, TENANT, ended),
        saved(tmp_path, TENANT, new_stream_id()),
        saved(tmp_path, TENANT, old, age_seconds=STREAM_MAX_SECONDS + 60),
        saved(tmp_path, GONE, living),
    ]
    assert await sweep(gateway, tmp_path) == CheckpointsFreed(1, 4, 4 * BYTES)
    assert kept.exists()
    assert not any(folder.exists() for folder in useless)
    assert CHECKPOINTS_FREED_BYTES._value.get() - before == 4 * BYTES
    assert await sweep(gateway, tmp_path) == CheckpointsFreed()


async def test_a_stream_of_another_tenant_is_no_reason_to_keep_it(gateway: Gateway, tmp_path: Path) -> None:
    async def known() -> set[str]:
        return {TENANT, GONE}

    folder = saved(tmp_path, GONE, await admitted(gateway))
    freed = await checkpoint_garbage_collect(tmp_path, gateway.queue, tenants=known)
    assert freed == CheckpointsFreed(0, 1, BYTES)
    assert not folder.exists()


async def test_a_directory_that_is_not_there(gateway: Gateway, tmp_path: Path) -> None:
    assert await sweep(gateway, tmp_path / "none") == CheckpointsFreed()
