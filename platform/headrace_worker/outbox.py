"""One stream's way into its log: what waits, what is under way, what is acknowledged."""

from collections.abc import Iterable

from headrace_wire.messages import AnyLogEntry, Delta, Ended
from headrace_wire.token_log import Append

KEPT_ENTRIES = 1024
"""Acknowledged entries that are remembered, at least: many times what a Redis that restarts may have lost (~2 s)."""

MERGE_TOKENS = 256
"""Tokens that one merged entry may cover, so that an entry stays small however long Redis was away."""


class Outbox:
    """Entries move from `waiting` to `sent` to `kept`.

    What is kept is needed when a restarted Redis has lost its last second.
    """

    __slots__ = (
        "again",
        "dropped",
        "epoch",
        "incarnation",
        "kept",
        "log_ttl_seconds",
        "sent",
        "stream_id",
        "unmerged_until",
        "waiting",
    )

    def __init__(self, stream_id: str, *, epoch: int, incarnation: str, log_ttl_seconds: int) -> None:
        self.stream_id = stream_id
        self.epoch = epoch
        self.incarnation = incarnation
        self.log_ttl_seconds = log_ttl_seconds
        self.waiting: list[Append] = []
        """Never sent; neighbouring deltas are merged."""
        self.again: list[Append] = []
        """Sent before and not in the log. Never merged: the first try may still arrive, and must meet its own id."""
        self.sent: list[Append] = []
        """In the append that is under way."""
        self.kept: list[Append] = []
        """Acknowledged."""
        self.dropped = False
        self.unmerged_until = 0
        """Position up to which each entry is what the engine gave at once.

        An earlier owner may have logged these tokens, and readers have them, before a restarted Redis forgot them:
        entries that were cut otherwise could not be told from those.
        """

    @property
    def ended(self) -> Ended | None:
        """The terminal entry, once it is acknowledged."""
        last = self.kept[-1].entry if self.kept else None
        return last if isinstance(last, Ended) else None

    @property
    def logged(self) -> int:
        """How many tokens of the answer are in the log."""
        last = self.kept[-1].entry if self.kept else None
        return last.seq - isinstance(last, Ended) if last is not None else 0

    @property
    def has_work(self) -> bool:
        """Whether something is to be sent."""
        return bool(self.again or self.waiting)

    def add(self, append: Append) -> None:
        """Queue an entry behind the others; a delta becomes part of a waiting delta."""
        waiting = self.waiting
        if waiting and isinstance(append.entry, Delta) and waiting[-1].token_ids_at >= self.unmerged_until:
            last = waiting[-1]
            if isinstance(last.entry, Delta) and last.entry.tokens + append.entry.tokens <= MERGE_TOKENS:
                waiting[-1] = _merged(last, last.entry, append, append.entry)
                return
        waiting.append(append)

    def take(self) -> list[Append]:
        """Move all that is to be sent under way and return it."""
        return take_all([self])

    def acknowledge(self) -> None:
        """What was under way is in the log."""
        acknowledge_all([self])

    def compare(self, tail: AnyLogEntry) -> bool:
        """Sort what was sent by what the log really holds; what is missing is to be sent again.

        False when the log lacks more than is remembered: nothing can be written that would follow it.
        """
        held = (tail.epoch, tail.seq)
        entries = self.kept + self.sent + self.again
        if entries and tail.seq < entries[0].token_ids_at:
            return False
        self.kept = [append for append in entries if (append.entry.epoch, append.entry.seq) <= held]
        self.again = [append for append in entries if (append.entry.epoch, append.entry.seq) > held]
        self.sent = []
        return True

    def drop(self) -> None:
        """Forget everything; nothing is written any more."""
        self.dropped = True
        self.waiting, self.again, self.sent, self.kept = [], [], [], []


def take_all(outboxes: Iterable[Outbox]) -> list[Append]:
    """Move all that is to be sent of these under way and return it.

    For all at once, as the next: with each token, a call would cost more than what is done in it.
    """
    taken: list[Append] = []
    for outbox in outboxes:
        sent = outbox.waiting
        if outbox.again:
            sent, outbox.again = outbox.again + sent, []
        outbox.sent = sent
        outbox.waiting = []
        taken += sent
    return taken


def acknowledge_all(outboxes: Iterable[Outbox]) -> list[Outbox]:
    """What was under way of these is in their logs; return those whose end is."""
    ended: list[Outbox] = []
    for outbox in outboxes:
        kept = outbox.kept
        kept += outbox.sent
        outbox.sent = []
        if len(kept) >= 2 * KEPT_ENTRIES:
            del kept[:-KEPT_ENTRIES]
        if kept and type(kept[-1].entry) is Ended:
            ended.append(outbox)
    return ended


def _merged(first: Append, a: Delta, second: Append, b: Delta) -> Append:
    return Append(
        Delta(a.stream_id, b.epoch, b.seq, a.tokens + b.tokens, a.text + b.text),
        [*first.token_ids, *second.token_ids],
        first.token_ids_at,
    )
