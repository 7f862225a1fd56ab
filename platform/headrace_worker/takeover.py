"""Taking over a stream that somebody served before: fence the log first, then read what it holds (DESIGN 3, Takeover).

The log is the checkpoint. Nothing of it is read before the fence entry is acknowledged: an owner that is not dead yet
could still write.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from headrace_wire.messages import AnyLogEntry, Delta, Ended, Started
from headrace_wire.token_log import Append, AppendResult, TokenLog


class LogGoneError(Exception):
    """The log has expired or was deleted."""


class FencedError(Exception):
    """The stream has a newer owner."""


class LogBrokenError(Exception):
    """The log and the token ids do not belong together; nothing can be continued from them."""

    def __init__(self, seq: int, ids: int) -> None:
        super().__init__(f"{seq} tokens are logged, {ids} ids are there")
        self.seq = seq


class History(Struct, frozen=True):
    """What the log holds up to our own fence entry."""

    appends: list[Append]
    """All of it, with its token ids, so that what a restarted Redis has lost of it can be written again."""
    token_ids: list[int]
    text: str
    told_seq: int
    """Position of the last entry with text."""
    queue_time: float
    """Of the first owner."""
    owners_since: list[int]
    """Epochs of all owners: when they took it, in Redis milliseconds."""


async def take_over(log: TokenLog, fence: Started) -> History | Ended:
    """Fence the log with `fence` (its `seq` is found here) and read it; an `Ended` needs only to be settled.

    Raises:
        LogGoneError: there is no log.
        FencedError: somebody else owns the stream.
        LogBrokenError: token ids are missing.
        redis.exceptions.RedisError: Redis does not answer.
    """
    tail = await log.tail(fence.stream_id)
    while True:
        if tail is None:
            raise LogGoneError(fence.stream_id)
        if isinstance(tail, Ended):
            return tail
        if tail.epoch > fence.epoch:
            raise FencedError(fence.stream_id)
        await _append_fence(log, fence, tail)
        entries = await log.read(fence.stream_id) or []
        ended = next((entry for entry in entries if isinstance(entry, Ended)), None)
        if ended is not None:
            return ended
        if not entries or entries[-1].epoch != fence.epoch:
            tail = entries[-1] if entries else None
            continue
        # An owner that was not dead yet may have written between our look at the tail and the fence.
        reached = max(entry.seq for entry in entries)
        if entries[-1].seq == reached:
            return _history(entries, await log.token_ids(fence.stream_id))
        tail = max(entries, key=lambda entry: entry.seq)


async def _append_fence(log: TokenLog, fence: Started, tail: AnyLogEntry) -> None:
    entry = msgspec.structs.replace(fence, seq=tail.seq)
    (result,) = await log.append([Append(entry)])
    if result is AppendResult.GONE:
        raise LogGoneError(fence.stream_id)


def _history(entries: Sequence[AnyLogEntry], token_ids: list[int]) -> History:
    reached = entries[-1].seq
    if len(token_ids) < reached:
        raise LogBrokenError(reached, len(token_ids))
    appends: list[Append] = []
    for entry in entries:
        at = entry.seq - entry.tokens if isinstance(entry, Delta) else entry.seq
        appends.append(Append(entry, token_ids[at : entry.seq], at))
    starts = [entry for entry in entries if isinstance(entry, Started)]
    return History(
        appends,
        token_ids[:reached],
        "".join(entry.text for entry in entries if isinstance(entry, Delta)),
        max((entry.seq for entry in entries if isinstance(entry, Delta) and entry.text), default=0),
        starts[0].queue_time,
        [entry.epoch for entry in starts],
    )
