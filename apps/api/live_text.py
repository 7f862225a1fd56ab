"""Tokens of a running answer, written in the callback that brings them: no task wakes up, nothing is awaited.

Only what every token needs is here. An answer's beginning and end, news, silence, a client that does not read: all that
is for its pump, which waits meanwhile.
"""

from collections.abc import Callable, Mapping
from typing import Any

from apps.api.answer import Answer
from apps.streams.follower import Follower
from apps.streams.transport import Transport, transport_of
from headrace_wire.messages import AnyLogEntry, Delta


class LiveText:
    """A `LiveSink` in front of one connection, for one stream."""

    __slots__ = ("_answer", "_frame", "_gate", "_send_now", "_seq", "_taken", "_transport", "_written", "is_full")

    def __init__(
        self,
        transport: Transport,
        answer: Answer,
        *,
        frame: Callable[[Delta], bytes | None],
        written: Callable[[int], None] | None,
        taken: Callable[[int], None],
    ) -> None:
        """`frame` makes of an entry what is sent, or None where the pump has to do it.

        `written` is told the position of what was handed to the transport, `taken` once that has taken it.
        """
        # What a token needs is looked up once for all of them.
        self._transport = transport
        self._gate = transport.gate
        self._send_now = transport.send_now
        self._answer = answer
        self._frame = frame
        self._written = written
        self._taken = taken
        self.is_full = False
        """See `LiveSink`: text is written that the transport has not taken yet."""
        self._seq = 0
        """Its position, while `is_full`."""

    def take(self, entry: Delta, now: float) -> bool:
        """See `LiveSink`."""
        if not entry.text:
            return False
        data = self._frame(entry)
        if data is None or not self._send_now(data):
            return False
        self._answer.take_live(entry.tokens, now)
        if self._written is not None:
            self._written(entry.seq)
        if self._gate.paused:
            self._seq, self.is_full = entry.seq, True
            self._answer.stalled()
        else:
            self._taken(entry.seq)
        return True

    async def settle(self) -> None:
        """Wait until the client has taken what was written, if it has not.

        Raises:
            ConnectionError: it left.
        """
        if self.is_full:
            await self._transport.wait_writable()
            self.is_full = False
            self._taken(self._seq)


def live_text(
    scope: Mapping[str, Any],
    answer: Answer,
    *,
    frame: Callable[[Delta], bytes | None],
    taken: Callable[[int], None],
    written: Callable[[int], None] | None = None,
) -> LiveText | None:
    """Return the sink for an answer, or None under a server that cannot send from synchronous code."""
    transport = transport_of(scope)
    return None if transport is None else LiveText(transport, answer, frame=frame, written=written, taken=taken)


async def next_entries(follower: Follower, answer: Answer, live: LiveText | None) -> list[AnyLogEntry]:
    """Return what `live` leaves to the pump, as `Follower.next`; all of it until the first text was sent."""
    if live is None or answer.ttft_seconds is None:
        return await follower.next()
    while True:
        entries = await follower.next(live)
        if not live.is_full:
            return entries
        await live.settle()
        if entries:
            return entries
