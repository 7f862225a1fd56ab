"""What reaches a worker: claimed streams, and control messages for them."""

import asyncio
import logging
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from headrace_wire import codec, redis_keys
from headrace_wire.bell import Bell
from headrace_wire.functions import Reply
from headrace_wire.messages import ControlMessage
from headrace_wire.request_queue import RequestQueue, Unreadable
from headrace_worker.orders import Orders
from headrace_worker.prefilling import Prefilling
from headrace_worker.streams import Streams

log = logging.getLogger(__name__)

BLOCK_SECONDS = 2.0
"""Longest blocking read. The backstop for a bell that rang for a worker which died before it claimed."""

PAUSE_SECONDS = 0.5
"""Before the next try while Redis is away."""


class Intake:
    """Claims when there is room, and listens to the control channel, for one incarnation at a time."""

    def __init__(
        self,
        queue: RequestQueue,
        bell: Bell,
        control: "Redis",
        streams: Streams,
        orders: Orders,
        *,
        prefilling: Prefilling,
        deployment: str,
    ) -> None:
        """`control` has a connection of its own: it blocks."""
        self._queue = queue
        self._bell = bell
        self._control = control
        self._streams = streams
        self._prefilling = prefilling
        self._deployment = deployment
        self._orders = orders

    async def claim(self, incarnation: str) -> None:
        """Claim until cancelled: no bell is answered while there is no room. A knock may be, for a spare place.

        Raises:
            LeaseLostError: the incarnation may not claim any more.
        """
        streams = self._streams
        while True:
            streams.places.changed.clear()
            room, spare = max(0, streams.places.room), streams.places.spare
            if not room and not spare:
                await streams.places.changed.wait()
                continue
            try:
                unreadable: list[Unreadable] = []
                claimed = await self._queue.claim(
                    incarnation,
                    deployment=self._deployment,
                    want=room,
                    spare=spare,
                    serving=streams.places.tenants(),
                    unreadable=unreadable.append,
                )
                for stream in claimed:
                    streams.launch(stream, owner=incarnation)
                for one in unreadable:
                    streams.refusing.refuse(one, owner=incarnation)
                if claimed:
                    self._prefilling.give_way()
                if unreadable:  # they have taken no place: there may be others behind them
                    continue
                if len(claimed) < room:  # the queue is empty
                    await asyncio.sleep(0)  # the engine gets what came before we spend time on waiting for more
                    await self._bell.wait(self._deployment, incarnation, timeout_seconds=BLOCK_SECONDS)
                elif len(claimed) < room + spare:  # nobody for a spare place
                    await streams.places.changed.wait()
            except RedisError as error:
                log.warning("cannot claim: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)

    async def listen(self, incarnation: str) -> None:
        """Follow the control channel and the knocks until cancelled. What is missed comes with the next renewal."""
        control, knocks = redis_keys.control_key(incarnation), redis_keys.knocks_key(self._deployment)
        last: dict[Any, Any] = {control: "0", knocks: "0"}
        while True:
            try:
                rows: Reply = await self._control.xread(last, block=int(BLOCK_SECONDS * 1000), count=256)
            except RedisError as error:
                log.warning("cannot listen: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            found = _entries(rows)
            for key, entries in found.items():
                last[key] = entries[-1][0].decode()
            if knocks in found:
                self._streams.places.changed.set()
            messages = [_decoded(fields[b"d"]) for _, fields in found.get(control, ())]
            self._orders.obey([message for message in messages if message is not None])


def _decoded(raw: bytes) -> ControlMessage | None:
    if not raw:
        return None  # the entry that created the channel
    try:
        return codec.decode_control(raw)
    except codec.DecodeError:
        log.warning("unknown control message, %d bytes", len(raw))
        return None


def _entries(rows: Reply) -> dict[str, list[tuple[bytes, dict[bytes, bytes]]]]:
    """Return the entries of each key that has any, whichever shape this RESP version gives."""
    if isinstance(rows, dict):
        return {key.decode(): list(entries[0]) for key, entries in rows.items()}
    return {key.decode(): list(entries) for key, entries in rows or ()}
