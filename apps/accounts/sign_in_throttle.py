"""Slows down guessing of passwords: so many failures per email and address, then a pause."""

import hashlib

import structlog
from django.core.cache import cache
from redis.exceptions import RedisError

logger = structlog.get_logger(__name__)

FAILURES = 10
PAUSE_SECONDS = 600


def is_paused(*, email: str, address: str) -> bool:
    """Whether sign-in with that email from that address has to wait. A cache that is away pauses nobody."""
    try:
        return int(cache.get(_key(email, address), 0)) >= FAILURES
    except RedisError as error:
        logger.warning("sign_in_throttle_away", error=str(error))
        return False


def failure_count(*, email: str, address: str) -> None:
    """Counts a failure; the pause begins with the first and ends `PAUSE_SECONDS` after it."""
    try:
        cache.add(_key(email, address), 0, PAUSE_SECONDS)
        cache.incr(_key(email, address))
    except (RedisError, ValueError) as error:
        # ValueError: the counter expired between the two calls.
        logger.warning("sign_in_failure_not_counted", error=str(error))


def failures_forget(*, email: str, address: str) -> None:
    """Starts anew after a success."""
    try:
        cache.delete(_key(email, address))
    except RedisError as error:
        logger.warning("sign_in_throttle_away", error=str(error))


def _key(email: str, address: str) -> str:
    digest = hashlib.sha256(f"{email.strip().lower()}\n{address}".encode()).hexdigest()
    return f"sign-in:{digest}"
