"""The only way into and out of bytes for wire messages (msgpack)."""

import sys
from array import array
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from headrace_wire.messages import AnyLogEntry, ControlMessage, GenerateRequest

_T = TypeVar("_T")

_encoder = msgspec.msgpack.Encoder()
_log_entry = msgspec.msgpack.Decoder(AnyLogEntry)
_log_entries = msgspec.msgpack.Decoder(list[AnyLogEntry])
_control = msgspec.msgpack.Decoder(ControlMessage)
_request = msgspec.msgpack.Decoder(GenerateRequest)

DecodeError = msgspec.DecodeError
"""Raised by every decoder here on bytes that are not the expected message."""

encode = _encoder.encode
decode_log_entry = _log_entry.decode
decode_log_entries = _log_entries.decode
decode_control = _control.decode
decode_request = _request.decode


def decode(raw: bytes, kind: type[_T]) -> _T:
    """Decode one message of the rarer kinds (registrations, snapshots).

    Raises:
        DecodeError: `raw` is not a `kind`.
    """
    return msgspec.msgpack.decode(raw, type=kind)


def pack_token_ids(token_ids: Sequence[int]) -> bytes:
    """Return token ids as little-endian uint32, 4 bytes each."""
    ids = array("I", token_ids)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def unpack_token_ids(raw: bytes) -> list[int]:
    """Invert `pack_token_ids`.

    Raises:
        ValueError: the length is not a multiple of four.
    """
    ids = array("I")
    ids.frombytes(raw)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()
