"""Everything about one stream except its socket: what to send, what a frame means, whether to come back after a loss.

Both clients drive it. One connection serves one stream at a time, so a frame without a stream id is about that stream.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_client.acknowledgements import Acknowledgements
from headrace_client.backoff import Backoff
from headrace_client.errors import (
    ConnectionLostError,
    DependencyUnavailableError,
    DrainingError,
    HeadraceError,
    ServerOverloadedError,
    StartUnknownError,
    error_from_close,
    error_from_code,
)
from headrace_client.frames import Delta, End, Event, Failure, Replacement, Retract, Started, encode, parse
from headrace_client.reconstruction import Reconstruction

STALLED_CLOSE_CODE = 4408
"""Nothing was acknowledged in time: whoever consumes again may resume."""
_FINAL_CLOSE_CODES = frozenset({1002, 1003, 1007, 1008, 1009, 1010, *range(4400, 4500)}) - {STALLED_CLOSE_CODE}
_SUGGESTED_DELAY = re.compile(r"retry_after_ms=(\d{1,6})")
_PASSING = frozenset({DrainingError.code, DependencyUnavailableError.code})
"""Errors that say of a running stream that it cannot be read here and now; it goes on."""
_OVERLOADED_RETRIES = 4
"""A refused resume and a stream that ended so look alike: after so many answers it has ended."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a connection is of no use any more."""

    reason: str
    close_code: int | None = None
    retry_after_seconds: float = 0.0


class ConnectionUnusableError(Exception):
    """The server said over a connection that it cannot serve the stream there; another one may."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.reason)
        self.loss = loss


class StreamSession:
    """One stream, over as many connections as it takes."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        generate: Mapping[str, Any] | None = None,
        stream_id: str | None = None,
        after: int = 0,
        notices: bool = False,
        auto_ack: bool = True,
        connect_seconds: float,
        reconnect_seconds: float,
    ) -> None:
        """Start a stream with the fields of `generate`, or follow `stream_id` from after position `after`."""
        self.stream_id = stream_id
        self.end: End | None = None
        self.is_over = False
        """Whether nothing more comes: it ended, or an error was raised."""
        self.content = Reconstruction(after)
        self._generate = generate
        self._clock = clock
        self._notices = notices or None
        self._auto_ack = auto_ack
        window = (generate or {}).get("window")
        self._acks = Acknowledgements(window=window, after=after)
        self._backoff = Backoff(connect_seconds, reconnect_seconds)
        self._asked = False
        self._resumed = False
        self._overloaded = 0
        self._attempt = 0
        self._given_seq = after
        self._cancel_wanted = self._cancel_sent = False

    # ---- connections

    def opened(self) -> str:
        """A connection is there: return the frame to send over it first.

        Raises:
            StartUnknownError: the request was sent before, and nothing came back.
        """
        self.content.connected()
        self._cancel_sent = False
        if self.stream_id is None:
            self._check_unasked("the answer was not awaited")
            self._asked = True
            return encode("generate", notices=self._notices, **(self._generate or {}))
        self._resumed = True
        self._acks.connected(self.content.seq)
        return encode("resume", stream_id=self.stream_id, after=self.content.seq, notices=self._notices)

    def lost(self, loss: Loss) -> float:
        """The connection is lost, or none could be made: return the seconds to wait before the next attempt.

        Raises:
            HeadraceError: there is no point in another one.
        """
        if loss.close_code in _FINAL_CLOSE_CODES:
            raise self._over(error_from_close(loss.close_code or 0, loss.reason, stream_id=self.stream_id))
        self._check_unasked(loss.reason)
        suggested = _SUGGESTED_DELAY.search(loss.reason)
        at_least = max(loss.retry_after_seconds, int(suggested[1]) / 1000 if suggested else 0.0)
        delay = self._backoff.failed(self._clock(), at_least=at_least)
        if delay is None:
            message = f"No connection for {self._backoff.patience_seconds:g} s: {loss.reason}"
            raise self._over(ConnectionLostError(message, stream_id=self.stream_id, seq=self.content.seq))
        return delay

    # ---- what comes

    def received(self, text: str | bytes) -> Event | None:
        """Return what a message tells the caller, or None for nothing.

        Raises:
            HeadraceError: the stream failed or was refused.
            ConnectionUnusableError: it goes on over another connection; treat this one as lost.
        """
        try:
            return self._received(text)
        except HeadraceError as error:
            raise self._over(error) from error.__cause__

    def _received(self, text: str | bytes) -> Event | None:
        frame = parse(text)
        if frame is None or (frame.stream_id != self.stream_id and None not in (frame.stream_id, self.stream_id)):
            return None  # of a later version, or of another stream that used this connection before
        if isinstance(frame, Failure):
            self._failed(frame)
            return None
        self.stream_id = frame.stream_id or self.stream_id
        self._resumed, self._overloaded = False, 0
        if isinstance(frame, End):
            self.content.finish(frame)
            self.end, self.is_over = frame, True
            return None
        if not self._is_news(frame):
            return None
        self._backoff.succeeded()
        return frame

    def _is_news(self, event: Event) -> bool:
        if isinstance(event, Delta):
            return self.content.take(event)
        if isinstance(event, Retract):
            self.content.retract(event.keep)
        if isinstance(event, Replacement):
            return self.content.replace(event.text)
        if isinstance(event, Started):
            known, self._attempt = self._attempt, max(self._attempt, event.attempt)
            return event.attempt > known
        return True

    def _failed(self, failure: Failure) -> None:
        is_passing = failure.code in _PASSING and (self.stream_id is not None or failure.code == DrainingError.code)
        if failure.code == ServerOverloadedError.code and self._resumed and self._overloaded < _OVERLOADED_RETRIES:
            self._overloaded += 1
            is_passing = True
        if is_passing:
            self._asked = self._asked and self.stream_id is not None
            raise ConnectionUnusableError(Loss(f"{failure.code}: {failure.message}"))
        raise error_from_code(failure.code, failure.message, param=failure.param, stream_id=self.stream_id)

    def _check_unasked(self, reason: str) -> None:
        """A request is never sent again: that could start a second generation."""
        if self._asked and self.stream_id is None:
            message = f"The request was sent and the server's answer is unknown ({reason}); the stream may run, or not."
            raise self._over(StartUnknownError(message))

    def _over(self, error: HeadraceError) -> HeadraceError:
        self.is_over = True
        return error

    # ---- what the caller does

    def given(self, event: Event) -> None:
        """The caller was given an event."""
        if isinstance(event, Delta):
            self._given_seq = event.seq

    def consumed(self) -> None:
        """The caller asks for more: it has consumed what it was given."""
        if self._auto_ack:
            self.acknowledge(self._given_seq)

    def acknowledge(self, seq: int) -> None:
        """Note that everything up to `seq`, at most what was given, was consumed."""
        self._acks.consumed(min(seq, self._given_seq), self._clock())

    @property
    def is_ack_pending(self) -> bool:
        """Whether an acknowledgement waits for company."""
        return self._acks.is_pending

    def cancel(self) -> list[str]:
        """Ask for the end of the stream, over each connection until it has ended; return what to send at once."""
        self._cancel_wanted = True
        return self._cancel_frames()

    def due_frames(self) -> list[str]:
        """Return what is to be sent before the next message is awaited."""
        frames = [] if self._cancel_sent else self._cancel_frames()
        self._cancel_sent = self._cancel_sent or bool(frames)
        return frames + self.ack_frames()

    def ack_frames(self, *, is_quiet: bool = False) -> list[str]:
        """Return the acknowledgement that is due, if any; `is_quiet` when nothing has come for a moment."""
        if self.stream_id is None or self.is_over:
            return []
        seq = self._acks.due(self._clock(), is_quiet=is_quiet)
        return [] if seq is None else [encode("ack", stream_id=self.stream_id, seq=seq)]

    @property
    def leaves_clean_connection(self) -> bool:
        """Whether nothing about this stream can come any more over the connection that it used."""
        return self.end is not None and not self._cancel_wanted

    def _cancel_frames(self) -> list[str]:
        if not self._cancel_wanted or self.stream_id is None or self.is_over:
            return []
        return [encode("cancel", stream_id=self.stream_id)]
