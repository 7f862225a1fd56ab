"""What streams took: slots of ten seconds, until the database has them."""

from headrace_wire.redis_keys.tags import CONTROL_TAG


def latency_series_prefix() -> str:
    r"""Common start of the slots by series; `<slot>:<deployment>` follows, the slot in Unix seconds.

    Owner: gateways. HASH `<part>\x1f<tenant>\x1f<key>\x1f<worker>` -> packed `Summary`; a part is what one gateway
    filed at once. Goes `latency.store.KEPT_SECONDS` after the slot began.
    """
    return f"{CONTROL_TAG}:latency:series:"


def latency_total_prefix() -> str:
    """Common start of the slots of whole deployments; `<slot>:<deployment>` follows.

    Owner: gateways. HASH part -> packed `Summary` of all series; goes as the slots by series do.
    """
    return f"{CONTROL_TAG}:latency:total:"


def latency_slots_key() -> str:
    """Which slots there are.

    Owner: gateways. ZSET `<slot>:<deployment>` scored by the slot; those that are gone are removed as new ones come.
    """
    return f"{CONTROL_TAG}:latency:slots"


def latency_minutes_key() -> str:
    """Minutes that have what the database lacks.

    Owner: gateways write, the roll-up deletes. HASH minute (Unix seconds) -> how many times something was filed in it;
    TTL as the slots.
    """
    return f"{CONTROL_TAG}:latency:minutes"


def fleet_sample_key(slot: int) -> str:
    """What the fleet looked like in a slot of ten seconds (Unix seconds).

    Owner: Celery, whichever beat comes first. STRING, msgpack as `apps.ops.latency.samples` says; goes as the slots of
    latencies do.
    """
    return f"{CONTROL_TAG}:fleet:sample:{slot}"
