"""Outgoing WebSocket frames and the close codes that a server may send (RFC 6455, 5.2 and 7.4; IANA registry)."""

import struct

TEXT = 1
BINARY = 2

SERVICE_RESTART = 1012
"""The server drains; the client reconnects, to another one."""
TRY_AGAIN_LATER = 1013
INTERNAL_ERROR = 1011

_RESERVED = frozenset({1004, 1005, 1006, 1015})
_MAX_REASON_BYTES = 123

_SMALL = {opcode: tuple(bytes((0x80 | opcode, length)) for length in range(126)) for opcode in (TEXT, BINARY)}
_MEDIUM = struct.Struct("!BBH")
_LARGE = struct.Struct("!BBQ")


def frame(opcode: int, payload: bytes) -> bytes:
    """Returns one unmasked, unfragmented data frame."""
    length = len(payload)
    if length < 126:
        return _SMALL[opcode][length] + payload
    if length < 65536:
        return _MEDIUM.pack(0x80 | opcode, 126, length) + payload
    return _LARGE.pack(0x80 | opcode, 127, length) + payload


def check_close_code(code: int) -> int:
    """Returns `code`.

    Raises:
        ValueError: A server may not send it in a close frame.
    """
    if not (1000 <= code <= 1014 or 3000 <= code <= 4999) or code in _RESERVED:
        raise ValueError(f"{code} is not a close code that can be sent.")
    return code


def close_reason(text: str) -> bytes:
    """Returns the reason as UTF-8, cut at a character where a control frame has no room for more."""
    encoded = text.encode()
    if len(encoded) <= _MAX_REASON_BYTES:
        return encoded
    return encoded[:_MAX_REASON_BYTES].decode(errors="ignore").encode()
