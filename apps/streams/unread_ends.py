"""Ends of streams that were asked for here and are read elsewhere, or by nobody: looked up in their logs.

Where a caller reads its own stream, its reader counts the end (`latency_reading`). The chat's page reads its stream
over a socket of its own, which may be another gateway's: there it is one who looks on, and counts nothing.
"""

from collections.abc import Callable

from headrace_wire.messages import Ended
from headrace_wire.snapshot import DeploymentConfig
from headrace_wire.token_log import TokenLog

MOST_AWAITED = 4096
"""Of more, the oldest are given up: a breaker needs not every end."""
LOOKED_AT_ONCE = 256


class UnreadEnds:
    """Tells each end once, whoever sees it first. Belongs to one event loop."""

    def __init__(
        self, token_log: TokenLog, *, is_read: Callable[[str], bool], ended: Callable[[str, Ended], None]
    ) -> None:
        """`is_read` says whether a stream has a reader here, who will tell; `ended` gets deployment and end."""
        self._log = token_log
        self._is_read = is_read
        self._ended = ended
        self._awaited: dict[str, str] = {}
        """Stream ids to deployments; the one that was looked at last is the last."""
        self._told: dict[str, None] = {}
        """Ends of which a reader may tell again."""

    def expect(self, stream_id: str, deployment: DeploymentConfig) -> None:
        """Await a stream's end, where somebody wants to know of it."""
        if deployment.breaker is not None:
            self._awaited[stream_id] = deployment.name
            _keep_latest(self._awaited)

    def ended(self, deployment: str, ended: Ended) -> None:
        """Note an end that a reader here has seen."""
        self._awaited.pop(ended.stream_id, None)
        if ended.stream_id in self._told:
            del self._told[ended.stream_id]
        else:
            self._ended(deployment, ended)

    async def look(self) -> None:
        """Look for the ends of those that nobody reads here, the longest waiting first.

        Raises:
            redis.exceptions.RedisError: no answer; they are looked for the next time.
        """
        unread = [stream_id for stream_id in self._awaited if not self._is_read(stream_id)][:LOOKED_AT_ONCE]
        tails = await self._log.tails(unread)
        for stream_id, tail in zip(unread, tails, strict=True):
            deployment = self._awaited.pop(stream_id, None)
            if deployment is None:
                continue  # a reader has told meanwhile
            if isinstance(tail, Ended):
                self._told[stream_id] = None
                _keep_latest(self._told)
                self._ended(deployment, tail)
            elif tail is not None:
                self._awaited[stream_id] = deployment


def _keep_latest(streams: dict[str, str] | dict[str, None]) -> None:
    while len(streams) > MOST_AWAITED:
        del streams[next(iter(streams))]
