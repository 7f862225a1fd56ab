"""Workers, their models, and what they have computed ahead."""

from headrace_wire.redis_keys.tags import CONTROL_TAG


def workers_key() -> str:
    """Live workers.

    Owner: workers. HASH incarnation -> msgpack `WorkerInfo`; an incarnation without a lease is dead and is swept.
    """
    return f"{CONTROL_TAG}:workers"


def worker_lives_key(deployment: str, host: str) -> str:
    """Worker processes of a deployment on one machine, to see which have died.

    Owner: workers. ZSET incarnation -> 0 while it lives, as far as is known, else when it was found dead (Unix ms);
    those that ended in order take themselves out. TTL 30 days from the last start.
    """
    return f"{CONTROL_TAG}:lives:{deployment}:{host}"


def gateways_key() -> str:
    """Live gateways.

    Owner: gateways. HASH incarnation -> msgpack `GatewayInfo`; an incarnation without a lease is dead and is swept.
    """
    return f"{CONTROL_TAG}:gateways"


def breaker_key(deployment_id: str) -> str:
    """Whether requests for a deployment are admitted; by its id, as another one may come to have its name.

    Owner: `breaker`, called by gateways. HASH `state`, `reason`, `since` (Unix ms), `opened` (how often), `absent`
    (since when no worker is there, Unix ms), `again` (how often it was tried in vain), `o:<slot>` and `f:<slot>`
    (streams that finished and failed; a sixth of the window each), of a half-open one `granted`, `granted_ms`,
    `finished`, `failed`, and of one that is open for want of workers `asked` (when a request was turned away last, Unix
    ms; the autoscaler reads it). Not there for a breaker that has never opened and counts nothing; TTL 7 days.
    """
    return f"{CONTROL_TAG}:breaker:{deployment_id}"


def fleet_channel() -> str:
    """Pub/sub channel that says that `workers_key` changed; carries the incarnation."""
    return f"{CONTROL_TAG}:fleet:changed"


def model_assets_key(fingerprint: str) -> str:
    """Tokenizer, chat template and probes of a model.

    Owner: workers. STRING, msgpack `ModelAssets`, TTL 7 days, refreshed by every registration.
    """
    return f"{CONTROL_TAG}:model:{fingerprint}"


def prefix_warmth_key(prefill_id: str) -> str:
    """Where a prompt cache is warm, named as its prefills are.

    Owner: workers. HASH incarnation -> msgpack `PrefillReport` of the last prefill there; TTL a day from the last one.
    """
    return f"{CONTROL_TAG}:warm:{prefill_id}"


def prompt_cache_use_key(cache_id: str) -> str:
    """What a prompt cache was good for.

    Owner: workers. HASH `requests`, `hits` (those that found most of it computed), `tokens` (found) and
    `microseconds` (that computing these would have taken); TTL 90 days from the last request.
    """
    return f"{CONTROL_TAG}:prompt-cache:{cache_id}"
