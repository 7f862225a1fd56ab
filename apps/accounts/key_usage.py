"""When API keys were last used: gateways note it in Redis, this writes it to the database, off the token path."""

from datetime import UTC, datetime

from apps.accounts.models import ApiKey
from apps.tenants.live_state import redis_client
from headrace_wire import redis_keys


def api_keys_mark_used() -> int:
    """Takes what the gateways noted since the last run; returns how many keys were marked.

    The newest time wins. What a crash takes with it is noted again by the key's next use.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    pipeline = redis_client().pipeline(transaction=True)
    pipeline.hgetall(redis_keys.keys_used_key())
    pipeline.delete(redis_keys.keys_used_key())
    noted, _ = pipeline.execute()
    used = {public_id.decode(): datetime.fromtimestamp(int(seconds), tz=UTC) for public_id, seconds in noted.items()}
    keys = list(ApiKey.all_tenants.filter(public_id__in=used))
    for key in keys:
        key.last_used_at = max(used[key.public_id], key.last_used_at or used[key.public_id])
    ApiKey.all_tenants.bulk_update(keys, ["last_used_at"], batch_size=500)
    return len(keys)
