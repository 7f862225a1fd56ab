"""The configuration that gateways and workers read."""

from headrace_wire.redis_keys.tags import CONTROL_TAG


def snapshot_key() -> str:
    """Config snapshot.

    Owner: Django. HASH `version` (decimal) and `data` (msgpack `ConfigSnapshot`), no TTL; see `snapshot`.
    """
    return f"{CONTROL_TAG}:snapshot"


def snapshot_version_key() -> str:
    """Last version handed out. Owner: Django. STRING, integer, no TTL."""
    return f"{CONTROL_TAG}:snapshot:version"


def snapshot_channel() -> str:
    """Pub/sub channel that carries a new version.

    A lost message is made good by the one-second re-read.
    """
    return f"{CONTROL_TAG}:snapshot:changed"


def keys_used_key() -> str:
    """Times of last use of API keys. Owner: gateways; Celery takes it. HASH public id -> Unix seconds, no TTL."""
    return f"{CONTROL_TAG}:keys:used"
