"""Redis from synchronous code: services, tasks, commands. The token path has its own asynchronous client."""

from collections.abc import Sequence
from functools import lru_cache

from django.conf import settings
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from headrace_wire.functions import Reply, library_source


@lru_cache(maxsize=8)
def _client(url: str) -> Redis:
    return Redis.from_url(
        url,
        socket_connect_timeout=2.0,
        socket_timeout=5.0,
        health_check_interval=30,
        retry=Retry(ConstantBackoff(0.1), 1),
    )


def redis_client() -> Redis:
    """Returns the process's client for `settings.REDIS_URL`; answers are bytes. Safe across threads and forks."""
    return _client(settings.REDIS_URL)


def call_function(name: str, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Reply:
    """Runs one function of the wire's Redis library, loading the library where the server does not know it.

    Raises:
        redis.exceptions.RedisError: The server is unreachable, or the function failed.
    """
    version, source = library_source()
    client = redis_client()
    command = ("FCALL", f"{name}_{version}", len(keys), *keys, *args)
    try:
        return client.execute_command(*command)  # type: ignore[no-untyped-call]
    except ResponseError as error:
        if "Function not found" not in str(error):
            raise
    client.function_load(source, replace=True)
    return client.execute_command(*command)  # type: ignore[no-untyped-call]
