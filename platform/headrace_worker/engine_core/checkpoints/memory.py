"""The KV cache as bytes: one block of all layers at a time, to be written to a file or read from one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from headrace_worker.engine_core.checkpoints.file_format import BlockViews


class UnknownLayoutError(Exception):
    """A layer's KV cache does not lie in memory block by block."""


class BlockMemory(Protocol):
    """The KV cache of all layers."""

    block_bytes: int
    """Of one block, all layers together."""

    def follow(self) -> None:
        """Have what is read from now on wait for what the calling thread has the model compute."""
        ...

    def read(self, block_ids: Sequence[int]) -> Iterator[BlockViews]:
        """Yield the content of blocks that nobody changes meanwhile."""
        ...

    def targets(self, block_ids: Sequence[int]) -> list[BlockViews]:
        """Return memory to read these blocks' content into, which counts when it is `put`."""
        ...

    def put(self, block_ids: Sequence[int], targets: Sequence[BlockViews]) -> None:
        """Bring what was read into the KV cache. Nobody else uses these blocks meanwhile."""
        ...


class HostMemory:
    """A KV cache in main memory: files are written from it and read into it, without a copy between."""

    def __init__(self, layers: Mapping[str, Any], num_blocks: int) -> None:
        """`layers` are vLLM's KV cache tensors.

        Raises:
            UnknownLayoutError: they have an unexpected layout.
        """
        self._layers = [memoryview(_flat(tensor, num_blocks).numpy()) for tensor in layers.values()]
        self._sizes = [len(layer) // num_blocks for layer in self._layers]
        self.block_bytes = sum(self._sizes)

    def follow(self) -> None:
        """Do nothing: what was computed is there."""

    def read(self, block_ids: Sequence[int]) -> Iterator[BlockViews]:
        """Yield views into the cache."""
        return iter(self.targets(block_ids))

    def targets(self, block_ids: Sequence[int]) -> list[BlockViews]:
        """Return views into the cache."""
        layers = list(zip(self._layers, self._sizes, strict=True))
        return [[layer[block * size : (block + 1) * size] for layer, size in layers] for block in block_ids]

    def put(self, block_ids: Sequence[int], targets: Sequence[BlockViews]) -> None:
        """Do nothing: what was read stands in the cache."""


class DeviceMemory:
    """A KV cache on an accelerator: through a block of main memory, on a stream of its own beside the model's."""

    def __init__(self, layers: Mapping[str, Any], num_blocks: int) -> None:
        """As `HostMemory`."""
        self._layers = [_flat(tensor, num_blocks).view(num_blocks, -1) for tensor in layers.values()]
        self.block_bytes = sum(int(layer.shape[1]) for layer in self._layers)
        self._device = self._layers[0].device
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None

    def follow(self) -> None:
        """Put our stream behind the model's."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def read(self, block_ids: Sequence[int]) -> Iterator[BlockViews]:
        """Yield copies."""
        for block in block_ids:
            with torch.cuda.stream(self._stream):
                copies = [layer[block].cpu() for layer in self._layers]  # waits for its own stream only
            yield [memoryview(copy.numpy()) for copy in copies]

    def targets(self, block_ids: Sequence[int]) -> list[BlockViews]:
        """Return fresh memory."""
        sizes = [int(layer.shape[1]) for layer in self._layers]
        return [[memoryview(bytearray(size)) for size in sizes] for _ in block_ids]

    def put(self, block_ids: Sequence[int], targets: Sequence[BlockViews]) -> None:
        """Copy to the device, and wait until it is there."""
        with torch.cuda.stream(self._stream):
            for block, views in zip(block_ids, targets, strict=True):
                for layer, view in zip(self._layers, views, strict=True):
                    layer[block].copy_(torch.frombuffer(view, dtype=torch.uint8))
        if self._stream is not None:
            self._stream.synchronize()


def block_memory(layers: Mapping[str, Any], num_blocks: int) -> BlockMemory:
    """Return the KV cache that these tensors are.

    Raises:
        UnknownLayoutError: they have an unexpected layout.
    """
    tensors = list(layers.values())
    if not tensors:
        raise UnknownLayoutError("no layers")
    on_host = all(tensor.device.type == "cpu" for tensor in tensors)
    return HostMemory(layers, num_blocks) if on_host else DeviceMemory(layers, num_blocks)


def _flat(tensor: Any, num_blocks: int) -> Any:  # noqa: ANN401  torch is untyped
    """Return a layer's bytes, one block after the other, whatever the order of the dimensions within a block."""
    size = tensor.numel() // num_blocks
    is_dense = tensor.numel() == num_blocks * size and tensor.shape[0] == num_blocks and tensor.stride(0) == size
    if not is_dense or max(tensor.stride()) != size:
        raise UnknownLayoutError(f"shape {tuple(tensor.shape)}, strides {tensor.stride()}, {num_blocks} blocks")
    return torch.as_strided(tensor, (num_blocks * size,), (1,), tensor.storage_offset()).view(torch.uint8)
