"""Where a worker waits for work, over a connection of its own: the wait holds it.

redis-py makes 150 calls more for a command, some of them between a request and its claim.
"""

from headrace_wire import redis_keys
from headrace_wire.redis_link import RedisLink


class Bell:
    """Hears the worker's own bell, and its deployment's. One waits at a time."""

    def __init__(self, url: str) -> None:
        """Listen at the server at `url`; connects with the first wait."""
        self._url = url
        self._link: RedisLink | None = None

    async def wait(self, deployment: str, incarnation: str, *, timeout_seconds: float) -> bool:
        """Wait until one of the two rings; False on timeout.

        Raises:
            redis.exceptions.RedisError: Redis does not answer; the next call connects anew.
        """
        link = self._link
        if link is None or not link.is_open:
            link = self._link = await RedisLink.open(self._url, lost=_nobody)
        bells = (redis_keys.own_bell_key(incarnation), redis_keys.bell_key(deployment))
        try:
            (ring,) = await link.ask([("BLPOP", *bells, str(timeout_seconds))])
        except BaseException:
            self.close()  # who is not here any more must not take a ring from the next one
            raise
        return ring is not None

    def close(self) -> None:
        """Hang up; idempotent."""
        if self._link is not None:
            self._link.close()
            self._link = None


def _nobody() -> None:
    pass
