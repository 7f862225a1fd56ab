"""A checkpoint file: KV blocks as they lie in memory, then what is to be known of them.

    block 0 | block 1 | ... | header (msgpack) | trailer: magic, header's length, header's CRC-32

The header comes last, because it has the blocks' checksums: they are written in one pass, from where they are. Blocks
begin at multiples of their size, so that some of them can be read without the rest. A file is never changed.
"""

import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

MAGIC = b"HRKV0001"
"""With the format's version."""

_TRAILER = struct.Struct("<8sII")
_MAX_HEADER_BYTES = 64 << 20
_MAX_VIEWS = 512
"""Of one call to the kernel; 1024 is the usual limit."""

BlockViews = Sequence[memoryview]
"""The bytes of one block: a piece for each layer."""


class Header(Struct, frozen=True):
    """What the blocks of a file are."""

    fingerprint: str
    """Of the model and of the memory layout: elsewhere these bytes mean something else."""
    first: int
    """Position of the first block in its stream."""
    block_bytes: int
    hashes: tuple[bytes, ...]
    """Of each block: chained, so that one stands for everything up to the block's end, the tenant's salt included."""
    checksums: tuple[int, ...] = ()
    """CRC-32 of each block."""


class CorruptFileError(Exception):
    """A file is not, or not any more, what was written."""


def write_file(descriptor: int, header: Header, blocks: Iterable[BlockViews]) -> int:
    """Write a file from its beginning; return its size. The header's checksums are found here.

    Raises:
        OSError: it cannot be written.
    """
    checksums = []
    for views in blocks:
        checksum = 0
        for view in views:
            checksum = zlib.crc32(view, checksum)
        checksums.append(checksum)
        _write_all(descriptor, views)
    encoded = msgspec.msgpack.encode(msgspec.structs.replace(header, checksums=tuple(checksums)))
    trailer = _TRAILER.pack(MAGIC, len(encoded), zlib.crc32(encoded))
    _write_all(descriptor, [memoryview(encoded), memoryview(trailer)])
    return len(checksums) * header.block_bytes + len(encoded) + len(trailer)


def read_header(path: Path) -> Header:
    """Read what a file says of itself.

    Raises:
        OSError: there is no such file, or it cannot be read.
        CorruptFileError: it was cut short or changed.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        raw = os.pread(file.fileno(), _TRAILER.size, max(0, size - _TRAILER.size))
        if len(raw) < _TRAILER.size:
            raise CorruptFileError("too short")
        magic, length, checksum = _TRAILER.unpack(raw)
        at = size - _TRAILER.size - length
        if magic != MAGIC or length > _MAX_HEADER_BYTES or at < 0:
            raise CorruptFileError("no trailer")
        encoded = os.pread(file.fileno(), length, at)
    if zlib.crc32(encoded) != checksum:
        raise CorruptFileError("header")
    try:
        header = msgspec.msgpack.decode(encoded, type=Header)
    except msgspec.DecodeError as error:
        raise CorruptFileError("header") from error
    count = len(header.hashes)
    if not count or count != len(header.checksums) or at != count * header.block_bytes or header.first < 0:
        raise CorruptFileError("size")
    return header


def read_blocks(path: Path, header: Header, offset: int, into: Sequence[BlockViews]) -> None:
    """Read consecutive blocks, the first one at `offset` in the file, into writable memory.

    Raises:
        OSError: the file cannot be read.
        CorruptFileError: a block is not what was written; what was read until then stands in memory.
    """
    with path.open("rb") as file:
        for index, views in enumerate(into, offset):
            position, checksum = index * header.block_bytes, 0
            for start in range(0, len(views), _MAX_VIEWS):
                piece = views[start : start + _MAX_VIEWS]
                wanted = sum(map(len, piece))
                if os.preadv(file.fileno(), piece, position) != wanted:
                    raise CorruptFileError("too short")
                position += wanted
            for view in views:
                checksum = zlib.crc32(view, checksum)
            if checksum != header.checksums[index]:
                raise CorruptFileError("block")


def _write_all(descriptor: int, views: BlockViews) -> None:
    for start in range(0, len(views), _MAX_VIEWS):
        left = [view for view in views[start : start + _MAX_VIEWS] if len(view)]
        while left:
            written = os.writev(descriptor, left)
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]
