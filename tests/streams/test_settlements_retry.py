"""`manage.py settlements_retry` says what it did; what it does is tested with the wire."""

from io import StringIO
from typing import Any

from django.core.management import call_command
from redis import Redis

from headrace_wire import redis_keys


def test_it_names_what_still_cannot_be_settled(live_redis: Redis) -> None:
    entry: dict[Any, Any] = {"stream": "strm-1", "epoch": "1", "state": "finished", "keep_ms": "1", "finish": "stop"}
    entry |= {"prompt": "1", "cached": "0", "completion": "5", "problem": "none", "owner": "worker-1"}
    live_redis.xadd(redis_keys.settlements_set_aside_key(), entry)
    out = StringIO()
    call_command("settlements_retry", stdout=out)
    assert out.getvalue() == "0 settled.\nstrm-1 still cannot be settled.\n"
    assert live_redis.xlen(redis_keys.settlements_set_aside_key()) == 1
