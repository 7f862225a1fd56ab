"""A KV cache as bytes: whatever is read of a block comes back as the same numbers, where it means the same."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace_worker.engine_core.checkpoints.file_format import BlockViews

pytestmark = pytest.mark.engine  # needs torch, not the engine

BLOCKS = 6


def layers() -> dict[str, Any]:
    """Three layers as vLLM lays them out: plain, with two dimensions of a block exchanged, and of half the size."""
    import torch  # noqa: PLC0415  heavy, and wanted here only

    plain = torch.randn(BLOCKS, 2, 32, 64)
    exchanged = torch.randn(BLOCKS, 32, 2, 64).transpose(1, 2)
    return {"a": plain, "b": exchanged, "c": torch.randn(BLOCKS, 2, 32, 64).to(torch.bfloat16)}


def memories() -> list[Callable[[dict[str, Any]], Any]]:
    from headrace_worker.engine_core.checkpoints.memory import DeviceMemory, HostMemory  # noqa: PLC0415

    return [lambda layers: HostMemory(layers, BLOCKS), lambda layers: DeviceMemory(layers, BLOCKS)]


def as_bytes(blocks: list[BlockViews]) -> list[bytes]:
    return [b"".join(views) for views in blocks]


def test_blocks_move_between_caches() -> None:
    for make in memories():
        for make_other in memories():
            source, target = layers(), layers()
            here, there = make(source), make_other(target)
            kept = {name: layer.clone() for name, layer in target.items()}
            here.follow()
            read = as_bytes(list(here.read([4, 1])))
            assert (
                [len(block) for block in read] == [here.block_bytes] * 2 == [4 * 2 * 32 * 64 * 2 + 2 * 2 * 32 * 64] * 2
            )
            targets = there.targets([0, 5])
            for block, views in zip(read, targets, strict=True):
                content = io.BytesIO(block)
                for view in views:
                    content.readinto(view)
            there.put([0, 5], targets)
            for name, layer in target.items():
                assert layer[0].equal(source[name][4])
                assert layer[5].equal(source[name][1])
                assert layer[1:5].equal(kept[name][1:5])


def test_unknown_layouts_are_refused() -> None:
    import torch  # noqa: PLC0415

    from headrace_worker.engine_core.checkpoints.memory import UnknownLayoutError, block_memory  # noqa: PLC0415

    unknown = [
        torch.zeros(2, BLOCKS, 32, 2, 64),  # keys before values
        torch.zeros(BLOCKS, 2, 32, 128)[..., :64],  # gaps
        torch.zeros(2, BLOCKS, 64).transpose(0, 1),
    ]
    for tensor in unknown:
        with pytest.raises(UnknownLayoutError):
            block_memory({"a": tensor}, BLOCKS)
    with pytest.raises(UnknownLayoutError):
        block_memory({}, BLOCKS)


def test_weights_are_told_apart_by_what_is_in_them(tmp_path: Path) -> None:
    from headrace_worker.engine_core.checkpoints.fingerprint import _weights  # noqa: PLC0415

    contents = {"model.safetensors": bytes(300_000), "config.json": b"{}"}
    changed = bytearray(contents["model.safetensors"])
    changed[-1] = 1
    variants = [
        contents,
        contents | {"model.safetensors": bytes(changed)},
        contents | {"config.json": b'{"rope_theta": 1}'},
        contents | {"more.safetensors": b"1"},
        {"model.safetensors": bytes(299_999), "config.json": b"{}"},
    ]
    told = []
    for number, variant in enumerate([*variants, contents | {"README.md": b"a copy elsewhere"}]):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, content in variant.items():
            (folder / name).write_bytes(content)
        told.append(_weights(str(folder), "None", ""))
    assert told[-1] == told[0]
    assert len(set(told)) == len(variants)
    assert len({_weights("owner/model", "main", commit) for commit in ("", "a", "b")}) == 3
