"""Brings the bodies of active policies to Redis before the snapshot that names them."""

from apps.guardrails.selectors import version_bodies
from apps.tenants.live_state import redis_client
from headrace_wire import redis_keys
from headrace_wire.snapshot import ConfigSnapshot

BODY_SECONDS = 30 * 24 * 3600
"""From the last time that its policy was published; a stream that began with it ends long before."""


def bodies_ensure(snapshot: ConfigSnapshot) -> None:
    """Has Redis keep every body that the snapshot names, and stores those that it lacks.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    digests = list(dict.fromkeys(attachment.digest for attachment in snapshot.guardrails))
    if not digests:
        return
    redis = redis_client()
    pipeline = redis.pipeline(transaction=False)
    for digest in digests:
        pipeline.expire(redis_keys.guard_policy_key(digest), BODY_SECONDS)
    missing = [digest for digest, is_there in zip(digests, pipeline.execute(), strict=True) if not is_there]
    for digest, body in version_bodies(digests=missing).items() if missing else ():
        redis.set(redis_keys.guard_policy_key(digest), body, ex=BODY_SECONDS)
