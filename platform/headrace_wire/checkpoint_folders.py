"""Where KV checkpoints lie: `<root>/<tenant id>/<stream id>/<random name>`, everything for its owner's eyes only.

Workers write and read the files, their format is the worker's; whoever cleans up needs only the folders. A checkpoint
is never needed, it only saves time: every function here may lose a race against another process that cleans up.
"""

import re
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

SUFFIX = ".kv"

_TEMPORARY = ".writing-"
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")


class CheckpointFolder(Struct, frozen=True):
    """Everything that was saved of one stream."""

    tenant_id: str
    stream_id: str
    bytes: int
    used_at: float
    """Seconds since the epoch of the file system's clock: when it was last written to, or read."""


def stream_folder(root: Path, tenant_id: str, stream_id: str) -> Path:
    """Return the folder of a stream's checkpoint, which need not exist.

    Raises:
        ValueError: an id cannot be a folder's name.
    """
    if not (_SAFE_NAME.fullmatch(tenant_id) and _SAFE_NAME.fullmatch(stream_id)):
        raise ValueError("not an id")
    return root / tenant_id / stream_id


def new_file_names() -> tuple[str, str]:
    """Return the name of a new file, and the one that it has while it is written."""
    name = secrets.token_hex(16) + SUFFIX
    return name, _TEMPORARY + name


def make_folder(folder: Path) -> None:
    """Make a stream's folder and what is above it, where they are missing."""
    root = folder.parent.parent
    for path in (root, folder.parent, folder):
        path.mkdir(mode=0o700, parents=path == root, exist_ok=True)


def discard_stream(root: Path, tenant_id: str, stream_id: str) -> int:
    """Delete a stream's checkpoint, if there is one; return the bytes that it took."""
    try:
        folder = stream_folder(root, tenant_id, stream_id)
    except ValueError:
        return 0  # never was one
    taken = _size(folder)
    _remove(folder)
    return taken


def discard_tenant(root: Path, tenant_id: str) -> None:
    """Delete everything that was saved of a tenant."""
    _remove(stream_folder(root, tenant_id, "any").parent)


def tenant_ids(root: Path) -> list[str]:
    """Return which tenants have a folder; an empty one goes."""
    found = []
    for folder in _folders(root):
        with suppress(OSError):
            folder.rmdir()
            continue
        found.append(folder.name)
    return found


def stream_folders(root: Path, tenant_id: str) -> list[CheckpointFolder]:
    """Return a tenant's checkpoints, in no order."""
    found = []
    for folder in _folders(root / tenant_id):
        with suppress(OSError):
            found.append(CheckpointFolder(tenant_id, folder.name, _size(folder), folder.stat().st_mtime))
    return found


def _folders(path: Path) -> list[Path]:
    try:
        return [entry for entry in path.iterdir() if _SAFE_NAME.fullmatch(entry.name) and entry.is_dir()]
    except OSError:
        return []


def _size(folder: Path) -> int:
    size = 0
    with suppress(OSError):
        for entry in folder.iterdir():
            with suppress(OSError):
                size += entry.stat().st_size
    return size


def _remove(folder: Path) -> None:
    # A file that is being written may appear meanwhile: its folder then goes with the second look.
    for _ in range(2):
        shutil.rmtree(folder, ignore_errors=True)
