"""How far one stream may generate: what its reader takes, what is held back from it, what its engine was told."""

import math


class StreamCredit:
    """Positions of tokens; 0 stands for no limit (DESIGN 3.4: generated - held back - acknowledged <= window)."""

    __slots__ = ("engine", "next_stop", "reader", "told")

    def __init__(self, reader: int) -> None:
        self.reader = 0
        """Up to which the reader lets it generate."""
        self.told = 0
        """Of the last token whose text, and all before it, is in the log: what follows is held back."""
        self.engine = 0
        """Up to which the engine was told to go."""
        self.next_stop = math.inf
        """Position before which neither can have come as far as it may: tokens in the middle look at nothing else."""
        self.allow(reader)

    def allow(self, reader: int) -> None:
        """Note that the reader can take as much as up to here."""
        self.reader = reader
        self.next_stop = min(self.reader or math.inf, self.engine or math.inf)

    @property
    def is_used_up(self) -> bool:
        """Whether the reader has to take more before anything is generated."""
        return 0 < self.reader <= self.told

    def is_reached(self, position: int) -> bool:
        """Whether the reader, or an engine that has come to this position, has come as far as it may."""
        return 0 < self.reader <= self.told or 0 < self.engine <= position

    def stops_at(self, position: int) -> bool:
        """Whether an engine that has come to this position goes no further, by what it was told."""
        return 0 < self.engine <= position

    def take(self, seq: int, *, limit: int) -> int:
        """Return what an engine that has come to `seq` is to be told, where that is more than it was; else 0.

        It is what the reader can take, and as much more as is held back from it; a guard sets a `limit` of its own. The
        first call says 0 for no limit.
        """
        credit = self.reader + seq - self.told if self.reader else 0
        credit = min(credit, limit) if credit and limit else credit or limit
        if credit <= self.engine:
            return 0
        self.engine = credit
        self.next_stop = min(self.reader or math.inf, credit)
        return credit
