"""Identifiers that cross processes. All are random, none carries meaning beyond its prefix."""

import re
import secrets
import zlib

GATEWAY_KIND, WORKER_KIND = "gateway", "worker"
"""How the incarnations of gateways and workers begin."""

_PROCESS = re.compile(rf"^({GATEWAY_KIND}|{WORKER_KIND})-[0-9a-f]+$")
_STREAM_ID = re.compile(r"^strm-[0-9a-f]{24}$")


def new_stream_id() -> str:
    """Return an id for one stream; 96 random bits, so a foreign id cannot be guessed."""
    return f"strm-{secrets.token_hex(12)}"


def is_stream_id(text: str) -> bool:
    """Say whether `text` has the form of a stream id; callers check before it becomes part of a key."""
    return _STREAM_ID.fullmatch(text) is not None


def new_incarnation(kind: str) -> str:
    """Return an id for one life of a process (`kind` is `worker` or `gateway`).

    It is never used again after its lease has ended.
    """
    return f"{kind}-{secrets.token_hex(6)}"


def is_process(text: str) -> bool:
    """Say whether `text` can be the incarnation of a gateway or a worker, alive or not."""
    return _PROCESS.fullmatch(text) is not None


def shard_of(stream_id: str, shards: int) -> int:
    """Return the log shard of a stream: 0 <= shard < `shards`, the same in every process."""
    return zlib.crc32(stream_id.encode()) % shards if shards > 1 else 0
