"""Hash tags: which keys of a cluster share a shard."""

CONTROL_TAG = "{hr}"
LOG_SHARDS = 1
"""Number of log shards. One until a cluster is used; `ids.shard_of` maps a stream to its shard."""


def log_tag(shard: int) -> str:
    """Return the tag of a log shard."""
    return f"{{hr{shard}}}"
