"""Streams that nobody reads because their gateway died: another gateway has their tenants' policies act in its place.

Whoever read them has as long to come back, to any gateway, as after any other departure, and at least long enough for a
gateway that was only frozen to notice, take a new name and attach its readers again.
"""

from collections.abc import Callable

import msgspec
import structlog

from apps.streams.config_view import ConfigView
from apps.streams.delivery import Delivery
from apps.streams.detachment import Departure, Detachment, departure_of
from headrace_wire.left_behind import LeftBehind, UnreadStream
from headrace_wire.snapshot import DetachedPolicy
from headrace_wire.token_log import TokenLog

log = structlog.get_logger(__name__)

ADOPTED_SECONDS = 15.0
"""After these without a word from us, another gateway looks after what we had adopted."""

LEASES_TO_RETURN = 3
"""How long a gateway that was taken for dead may have been frozen beyond its lease, in leases."""


class Adoption:
    """Looks after the streams that dead gateways read; asks with every tick."""

    def __init__(
        self,
        left_behind: LeftBehind,
        token_log: TokenLog,
        delivery: Delivery,
        detachment: Detachment,
        *,
        config: Callable[[], ConfigView],
        lease_seconds: float,
    ) -> None:
        self._left_behind = left_behind
        self._log = token_log
        self._delivery = delivery
        self._detachment = detachment
        self._config = config
        self._least_grace_seconds = LEASES_TO_RETURN * lease_seconds
        self._adopted: dict[str, set[str]] = {}
        """Dead gateways, and those of their streams whose grace was begun here."""

    async def look(self) -> None:
        """Adopt dead gateways, and begin the grace of what they read.

        Raises:
            redis.exceptions.RedisError: Redis does not answer; call again.
        """
        for gateway in await self._left_behind.adopt(list(self._adopted), seconds=ADOPTED_SECONDS):
            self._adopted[gateway] = set()
        for gateway, stream_ids in list(self._adopted.items()):
            if any(self._detachment.is_waiting(stream_id) for stream_id in stream_ids):
                continue
            unread = await self._left_behind.read_by(gateway)
            for stream in unread:
                await self._begin(stream, gateway)
            if not unread:
                del self._adopted[gateway]
                await self._left_behind.forget(gateway)

    def give_up(self) -> None:
        """Leave it to others: this gateway ends."""
        for stream_ids in self._adopted.values():
            for stream_id in stream_ids:
                if not self._delivery.is_read(stream_id):
                    self._detachment.returned(stream_id)
        self._adopted.clear()

    async def _begin(self, stream: UnreadStream, gateway: str) -> None:
        stream_id = stream.request.stream_id
        if self._delivery.is_read(stream_id):
            await self._log.detach(stream_id, gateway)  # its reader is ours now
        elif not self._detachment.is_waiting(stream_id):
            log.info("stream_left_behind", stream_id=stream_id, gateway=gateway)
            self._adopted[gateway].add(stream_id)
            self._detachment.departed(self._departure(stream), gateway=gateway)

    def _departure(self, stream: UnreadStream) -> Departure:
        request = stream.request
        tenant = self._config().tenants.get(request.tenant_id)
        position = max(0, stream.credit - request.window)
        if tenant is None:
            return Departure(request.stream_id, request.tenant_id, DetachedPolicy.ABORT, 0.0, position)
        departure = departure_of(tenant, request.stream_id, position=position, can_return=request.can_return)
        grace_seconds = max(departure.grace_seconds, self._least_grace_seconds)
        return msgspec.structs.replace(departure, grace_seconds=grace_seconds)
