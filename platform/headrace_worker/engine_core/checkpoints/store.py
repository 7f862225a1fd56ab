"""The checkpoint directory, shared by workers: saves and finds blocks of streams, and keeps each tenant to its size.

A stream's checkpoint is a folder of segments, each a file of consecutive blocks that appears at once or not at all.
Nothing is locked: files are immutable and randomly named, segments of several writers may overlap, and a file that has
gone meanwhile is a checkpoint less. Over a tenant's limit, the checkpoint that was used longest ago goes as a whole.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from headrace_wire.checkpoint_folders import (
    SUFFIX,
    discard_stream,
    make_folder,
    new_file_names,
    stream_folder,
    stream_folders,
)
from headrace_worker.engine_core.checkpoints.file_format import (
    BlockViews,
    CorruptFileError,
    Header,
    read_blocks,
    read_header,
    write_file,
)

LOOK_SECONDS = 30.0
"""How long a tenant's size is known before it is looked up again: others write too, and delete."""


class Refusal(StrEnum):
    """Why something was not saved or not loaded."""

    CORRUPT = "corrupt"
    FINGERPRINT = "fingerprint"
    """Of another model, data type, block size or memory layout."""
    HASHES = "hashes"
    """Of another prompt, or under another salt."""
    LIMIT = "limit"
    INCOMPLETE = "incomplete"
    """What it goes on from is not there any more."""
    UNREADABLE = "unreadable"
    """The directory could not be read or written."""
    LATE = "late"
    """The stream had ended before it was saved."""


class StreamKey(Struct, frozen=True):
    """Whose checkpoint."""

    tenant_id: str
    stream_id: str


class Piece(Struct, frozen=True):
    """Consecutive blocks of one file."""

    path: str
    offset: int
    count: int


class Found(Struct, frozen=True):
    """What the directory has of a stream, as far as its hashes agree."""

    segments: tuple[tuple[str, int, int], ...] = ()
    """Path, first block and first block that is not in it."""
    refusals: tuple[Refusal, ...] = ()

    def pieces(self, start: int) -> list[Piece]:
        """Return where to read the stream's blocks from block `start` on, as far as they go without a gap."""
        pieces: list[Piece] = []
        while True:
            fitting = [segment for segment in self.segments if segment[1] <= start < segment[2]]
            if not fitting:
                return pieces
            path, first, end = max(fitting, key=lambda segment: segment[2])
            pieces.append(Piece(path, start - first, end - start))
            start = end

    @property
    def complete_until(self) -> int:
        """How many blocks from the first one on are there."""
        return sum(piece.count for piece in self.pieces(0))


class RefusedError(Exception):
    """Something was not saved or not loaded; nothing of it is left."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason.value)
        self.reason = reason


def require_wanted(is_wanted: Callable[[], bool]) -> None:
    """Refuse what nobody wants any more.

    Raises:
        RefusedError: its stream has ended.
    """
    if not is_wanted():
        raise RefusedError(Refusal.LATE)


class _Usage(Struct):
    """What a tenant has saved, as far as this process knows."""

    bytes: int
    until: float
    """Monotonic time at which others' files are counted anew."""


class CheckpointStore:
    """Every method blocks. `save` belongs to one thread, the others to any."""

    def __init__(self, root: Path, *, fingerprint: str, bytes_per_tenant: int) -> None:
        self._root = root
        self._fingerprint = fingerprint
        self._bytes_per_tenant = bytes_per_tenant
        self._usage: dict[str, _Usage] = {}

    # ---- saving

    def save(
        self,
        key: StreamKey,
        *,
        first: int,
        hashes: Sequence[bytes],
        block_bytes: int,
        blocks: Iterable[BlockViews],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> int:
        """Save a stream's blocks from block `first` on; return the bytes written. `is_wanted` is asked at the end.

        Raises:
            RefusedError: it was not saved.
        """
        header = Header(self._fingerprint, first, block_bytes, tuple(hashes))
        try:
            folder = stream_folder(self._root, key.tenant_id, key.stream_id)
            if first and not folder.is_dir():
                raise RefusedError(Refusal.INCOMPLETE)
            self._make_room(key, len(hashes) * block_bytes)
            if not first:
                make_folder(folder)
            size = self._write(folder, header, blocks, is_wanted)
        except FileNotFoundError as error:  # the folder was removed: another process made room, or the stream has ended
            raise RefusedError(Refusal.INCOMPLETE) from error
        except (OSError, ValueError) as error:
            raise RefusedError(Refusal.UNREADABLE) from error
        self._usage[key.tenant_id].bytes += size
        return size

    def _write(self, folder: Path, header: Header, blocks: Iterable[BlockViews], is_wanted: Callable[[], bool]) -> int:
        name, temporary_name = new_file_names()
        temporary = folder / temporary_name
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                size = write_file(descriptor, header, blocks)
            finally:
                os.close(descriptor)
            require_wanted(is_wanted)
            temporary.rename(folder / name)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
                folder.rmdir()
            raise
        return size

    def _make_room(self, key: StreamKey, needed: int) -> None:
        known, now = self._usage.get(key.tenant_id), time.monotonic()
        if known is not None and known.until > now and known.bytes + needed <= self._bytes_per_tenant:
            return
        folders = stream_folders(self._root, key.tenant_id)
        total = needed + sum(folder.bytes for folder in folders)
        for folder in sorted(folders, key=lambda folder: folder.used_at):
            if total > self._bytes_per_tenant and folder.stream_id != key.stream_id:
                total -= discard_stream(self._root, folder.tenant_id, folder.stream_id)
        self._usage[key.tenant_id] = _Usage(total - needed, now + LOOK_SECONDS)
        if total > self._bytes_per_tenant:
            raise RefusedError(Refusal.LIMIT)

    # ---- loading

    def find(self, key: StreamKey, hashes: Sequence[bytes]) -> Found:
        """Return what is there of the stream whose blocks have these hashes. Damaged files are deleted."""
        try:
            folder = stream_folder(self._root, key.tenant_id, key.stream_id)
            paths = [path for path in folder.iterdir() if path.suffix == SUFFIX and not path.name.startswith(".")]
        except FileNotFoundError:
            return Found()
        except (OSError, ValueError):
            return Found(refusals=(Refusal.UNREADABLE,))
        segments, refusals = [], []
        for path in paths:
            try:
                header = self._fitting_header(path, hashes)
            except RefusedError as refusal:
                refusals.append(refusal.reason)
                continue
            if agreement := _agreement(header, hashes):
                segments.append((str(path), header.first, header.first + agreement))
        return Found(tuple(segments), tuple(refusals))

    def load(self, hashes: Sequence[bytes], pieces: Sequence[Piece], blocks: Sequence[BlockViews]) -> int:
        """Read blocks, which have these hashes, into writable memory, verified; return the bytes read.

        Raises:
            RefusedError: they cannot all be read; the memory's content is undefined.
        """
        at = 0
        for piece in pieces:
            path = Path(piece.path)
            try:
                header = self._fitting_header(path, ())
                if header.hashes[piece.offset :][: piece.count] != tuple(hashes[at : at + piece.count]):
                    raise RefusedError(Refusal.HASHES)
                read_blocks(path, header, piece.offset, blocks[at : at + piece.count])
            except CorruptFileError as error:
                path.unlink(missing_ok=True)
                raise RefusedError(Refusal.CORRUPT) from error
            except OSError as error:
                raise RefusedError(Refusal.UNREADABLE) from error
            at += piece.count
            with contextlib.suppress(OSError):
                os.utime(path.parent)
        return sum(len(view) for views in blocks for view in views)

    def _fitting_header(self, path: Path, hashes: Sequence[bytes]) -> Header:
        """Read a file's header; with `hashes`, its first block must be one of the stream's."""
        try:
            header = read_header(path)
        except CorruptFileError as error:
            path.unlink(missing_ok=True)
            raise RefusedError(Refusal.CORRUPT) from error
        except OSError as error:
            raise RefusedError(Refusal.UNREADABLE) from error
        if header.fingerprint != self._fingerprint:
            raise RefusedError(Refusal.FINGERPRINT)
        if hashes and header.first < len(hashes) and not _agreement(header, hashes):
            raise RefusedError(Refusal.HASHES)
        return header


def _agreement(header: Header, hashes: Sequence[bytes]) -> int:
    """Return how many of a file's first blocks are the stream's."""
    count = 0
    for ours, theirs in zip(hashes[header.first :], header.hashes, strict=False):
        if ours != theirs:
            break
        count += 1
    return count
