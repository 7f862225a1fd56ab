"""What became of each stream, compared with the undisturbed run: its client's bytes, its token ids, its log."""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct
from redis.asyncio import Redis

from headrace_wire.functions import Functions
from headrace_wire.messages import AnyLogEntry, Delta, Ended, Started, StreamState
from headrace_wire.token_log import TokenLog
from tests.faults.golden import Golden
from tests.faults.readers import Reader


class Verdict(StrEnum):
    """The worst that is true of a stream, in this order."""

    HUNG = "hung"
    """No end within its time."""
    DOUBLED = "doubled"
    """A position came twice, or text repeats."""
    REORDERED = "reordered"
    """Bytes that are not the answer's, or a log that is not in order."""
    LOST = "lost"
    """It is said to be finished, and something is missing."""
    FAILED = "failed"
    """An explicit error; what had come until then is the answer's beginning."""
    EXACT = "exact"


class Owner(Struct, frozen=True):
    """A time of a stream under one owner."""

    epoch: int
    after: int
    """Position at which it took over."""
    incarnation: str


class Outcome(Struct, frozen=True):
    """One stream."""

    reader: Reader
    verdict: Verdict
    why: str
    owners: Sequence[Owner]

    @property
    def takeovers(self) -> Sequence[Owner]:
        """Owners that went on with what another one had begun."""
        return self.owners[1:]

    @property
    def is_faulted(self) -> bool:
        """Whether something was cut, lost or taken over on its way."""
        return len(self.owners) > 1 or len(self.reader.legs) > 1 or self.verdict is not Verdict.EXACT


class Judge:
    """Looks at the logs of a stack."""

    def __init__(self, redis: "Redis") -> None:
        self._log = TokenLog(redis, Functions(redis))

    async def judge(self, reader: Reader, golden: Golden) -> Outcome:
        """Returns what became of a stream. Its log must still be there."""
        entries, token_ids = [], []
        if reader.stream_id is not None:
            entries = await self._log.read(reader.stream_id) or []
            token_ids = await self._log.token_ids(reader.stream_id)
        owners = [Owner(e.epoch, e.seq, e.owner) for e in entries if isinstance(e, Started)]
        verdict, why = _verdict(reader, golden, entries, token_ids)
        return Outcome(reader, verdict, why, owners)


def _verdict(
    reader: Reader, golden: Golden, entries: Sequence[AnyLogEntry], token_ids: Sequence[int]
) -> tuple[Verdict, str]:
    if reader.is_hung:
        last = entries[-1] if entries else None
        return Verdict.HUNG, f"at {reader.seq}, {len(reader.text)} characters; its log ends with {last}"
    if reader.oddities:
        return Verdict.DOUBLED, "; ".join(reader.oddities)
    if not golden.text.startswith(reader.text):
        return Verdict.REORDERED, f"{reader.text!r} is not the beginning of {golden.text!r}"
    if reader.failure:
        return Verdict.FAILED, reader.failure
    if reader.text != golden.text or reader.completion_tokens not in (None, golden.tokens):
        return Verdict.LOST, f"{reader.text!r} ({reader.completion_tokens} tokens) of {golden.text!r}"
    problem = log_problem(entries)
    if not problem and list(token_ids) != golden.token_ids:
        problem = f"the token ids {token_ids} are not {golden.token_ids}"
    return (Verdict.REORDERED, problem) if problem else (Verdict.EXACT, "")


def log_problem(entries: Sequence[AnyLogEntry]) -> str:
    """Returns what is wrong with the log of a finished stream; empty for nothing.

    Positions without gap or repetition, epochs that never fall, a fence before each owner's tokens, one end. A fence
    may name an older position where the owner before it was not dead yet; another fence follows.
    """
    seq, epoch = 0, 0
    for entry in entries[:-1]:
        if isinstance(entry, Ended):
            return f"an end at {entry.seq} that is not the last entry"
        if entry.epoch < epoch or (entry.epoch > epoch and isinstance(entry, Delta)):
            return f"epoch {entry.epoch} at {entry.seq} after {epoch}, without a fence"
        if entry.seq - entry.tokens != seq if isinstance(entry, Delta) else entry.seq > seq:
            return f"position {entry.seq} after {seq}"
        seq, epoch = max(seq, entry.seq), entry.epoch
    last = entries[-1] if entries else None
    if not isinstance(last, Ended) or last.seq != seq + 1 or last.epoch < epoch:
        return f"it ends with {last} after {seq}"
    if last.state is not StreamState.FINISHED or last.usage.completion_tokens != seq:
        return f"its end says {last.state}, {last.usage.completion_tokens} tokens, after {seq}"
    return ""
