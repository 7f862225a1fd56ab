"""Puts the text of one stream together from the frames of any number of connections, each position exactly once."""

from headrace_client.errors import SequenceError
from headrace_client.frames import Delta, End


class Reconstruction:
    """The text so far and its position.

    On one connection positions must rise, and none may be left out. A connection may begin by repeating what came over
    an earlier one; that is dropped. A frame of which only a part is new cannot be cut, since tokens are not characters:
    it is refused.
    """

    def __init__(self, after: int = 0) -> None:
        """Begin after position `after`, which the caller has already."""
        self.seq = after
        """Position of the last token that is in the text, or `after`."""
        self._parts: list[str] = []
        self._connection_seq: int | None = None
        self._is_replaced = False

    @property
    def text(self) -> str:
        """The text that came so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def connected(self) -> None:
        """What follows comes over another connection, which was asked to go on after `seq`."""
        self._connection_seq = None

    def take(self, delta: Delta) -> bool:
        """Add a delta; return False for one that is here already.

        Raises:
            SequenceError: it does not follow what came before; the text is unchanged.
        """
        before, self._connection_seq = self._connection_seq, delta.seq
        if before is not None and delta.seq <= before:
            raise SequenceError(f"Position {delta.seq} came after {before}.", stream_id=delta.stream_id)
        if delta.seq <= self.seq:
            return False
        after = delta.after if delta.after is not None else before
        if after is not None and after < self.seq:
            message = f"Positions {after + 1} to {delta.seq} came at once, and {self.seq} is here already."
            raise SequenceError(message, stream_id=delta.stream_id)
        if delta.after is not None and delta.after > self.seq:
            message = f"Positions {self.seq + 1} to {delta.after} are missing."
            raise SequenceError(message, stream_id=delta.stream_id)
        self.seq = delta.seq
        self._parts.append(delta.text)
        return True

    def retract(self, keep: int) -> None:
        """Take back everything but the first `keep` characters."""
        self._parts = [self.text[:keep]]

    def replace(self, text: str) -> bool:
        """Add what stands in the place of the rest; return False where that is here already."""
        if self._is_replaced:
            return False
        self._is_replaced = True
        self._parts.append(text)
        return True

    def finish(self, end: End) -> None:
        """Check that nothing is missing before the end.

        Raises:
            SequenceError: the stream ends before what came of it.
        """
        if end.seq < self.seq:
            raise SequenceError(f"The stream ends at {end.seq}, before {self.seq}.", stream_id=end.stream_id)
