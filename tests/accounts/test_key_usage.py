from datetime import UTC, datetime

from redis import Redis

from apps.accounts.key_usage import api_keys_mark_used
from apps.accounts.models import ApiKey
from headrace_wire import redis_keys
from headrace_wire.api_key import ApiKeyToken


def test_the_newest_use_of_a_key_is_kept(issued: tuple[ApiKey, ApiKeyToken], live_redis: Redis) -> None:
    key, _ = issued
    live_redis.hset(redis_keys.keys_used_key(), mapping={key.public_id: 2_000, "unknown": 5})
    assert api_keys_mark_used() == 1
    live_redis.hset(redis_keys.keys_used_key(), mapping={key.public_id: 1_000})
    api_keys_mark_used()
    key.refresh_from_db()
    assert key.last_used_at == datetime.fromtimestamp(2_000, tz=UTC)
    assert api_keys_mark_used() == 0
