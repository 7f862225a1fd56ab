"""Token logs and their delivery."""

from headrace_wire.redis_keys.tags import log_tag


def log_prefix(shard: int = 0) -> str:
    """Common start of all logs of a shard."""
    return f"{log_tag(shard)}:log:"


def log_key(stream_id: str, shard: int = 0) -> str:
    """Token log.

    Owner: the stream's current owner. STREAM, ids `<epoch>-<seq>`, field `d` = msgpack `LogEntry`; TTL = tenant
    retention after the end.
    """
    return log_prefix(shard) + stream_id


def token_ids_prefix(shard: int = 0) -> str:
    """Common start of all token id arrays of a shard."""
    return f"{log_tag(shard)}:ids:"


def token_ids_key(stream_id: str, shard: int = 0) -> str:
    """Generated token ids.

    Owner: the stream's worker; gateways never read it. STRING, little-endian uint32 each, TTL as the log.
    """
    return token_ids_prefix(shard) + stream_id


def readers_prefix(shard: int = 0) -> str:
    """Common start of the readers of all streams of a shard."""
    return f"{log_tag(shard)}:read-by:"


def readers_key(stream_id: str, shard: int = 0) -> str:
    """Gateways that want a stream delivered.

    Owner: gateways. STRING, gateway incarnations with a space between them, TTL as the log.
    """
    return readers_prefix(shard) + stream_id


def delivery_prefix(shard: int = 0) -> str:
    """Common start of all delivery streams of a shard."""
    return f"{log_tag(shard)}:gw:"


def delivery_key(gateway: str, shard: int = 0) -> str:
    """Deltas for one gateway.

    Owner: that gateway. STREAM, ids `1-<n>` without gaps, field `d` = msgpack list of `LogEntry`, at most ~8,192, TTL
    = lease.
    """
    return delivery_prefix(shard) + gateway
