"""The header of a safetensors file: names and shapes, without the numbers."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

_HEADER_BYTES = 64 << 20


class HeaderError(Exception):
    """The file is no safetensors file, or not a whole one."""


@dataclass(frozen=True, slots=True)
class TensorShape:
    """One tensor."""

    dtype: str
    shape: tuple[int, ...]


def read_header(file: Path) -> dict[str, TensorShape]:
    """Return the tensors of a file by name.

    Raises:
        HeaderError: it is not what its name says.
        OSError: it cannot be read.
    """
    size = file.stat().st_size
    with file.open("rb") as source:
        prefix = source.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 0 < length <= min(_HEADER_BYTES, size - 8):
            raise HeaderError(f"{file.name} is no whole safetensors file.")
        try:
            header = json.loads(source.read(length))
            header.pop("__metadata__", None)
            tensors = {name: TensorShape(row["dtype"], tuple(map(int, row["shape"]))) for name, row in header.items()}
            end = max((int(row["data_offsets"][1]) for row in header.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise HeaderError(f"{file.name} is no safetensors file.") from error
    if end != size - 8 - length:
        raise HeaderError(f"{file.name} is not whole: it has {size} bytes, and should have {8 + length + end}.")
    return tensors
