"""What fault tests leave: tables for people, everything in `var/bench/faults.json`."""

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from tests.faults.leaks import Leaks
from tests.faults.stack import GATEWAY_LEASE_SECONDS, WORKER_LEASE_SECONDS
from tests.faults.stalls import Stalls, stalls_of
from tests.faults.storm import StormOutcome, StormPlan
from tests.faults.strikes import Fault
from tests.faults.verdicts import Outcome, Verdict
from tests.load.report import machine
from tests.support.environment import REPOSITORY_ROOT

REPORT = REPOSITORY_ROOT / "var" / "bench" / "faults.json"
SHOWN = 5
"""Streams that went wrong, of each verdict."""
STALL_P95_AT_MOST = {Fault.KILL_WORKER: 3.0, Fault.FREEZE_WORKER: 8.0}
"""Seconds, with a spare worker (issue C)."""


class Tally(Struct, frozen=True):
    """Streams, counted."""

    streams: int
    faulted: int
    """Met by a fault: cut, taken over, or read over more than one connection."""
    connections: int
    takeovers: int
    verdicts: Mapping[Verdict, int]
    failures: Mapping[str, int]
    """Explicit errors by code."""
    longest_silence: float
    """Of all streams, the longest wait for the next text, in seconds."""
    odd: Sequence[str]
    """Some that are neither exact nor explicit failures, with the reason."""

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> "Tally":
        """Counts."""
        verdicts = Counter(outcome.verdict for outcome in outcomes)
        odd = [o for o in outcomes if o.verdict not in (Verdict.EXACT, Verdict.FAILED)]
        return cls(
            len(outcomes),
            sum(outcome.is_faulted for outcome in outcomes),
            sum(len(outcome.reader.legs) for outcome in outcomes),
            sum(len(outcome.takeovers) for outcome in outcomes),
            {verdict: verdicts[verdict] for verdict in Verdict},
            dict(Counter(outcome.reader.failure for outcome in outcomes if outcome.reader.failure)),
            max((outcome.reader.longest_silence for outcome in outcomes), default=0.0),
            [_described(outcome) for verdict in Verdict for outcome in odd if outcome.verdict is verdict][:SHOWN],
        )

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {verdict.value}" for verdict, count in self.verdicts.items())
        text = f"{self.streams} streams, {self.faulted} faulted; {self.connections} connections, "
        text += f"{self.takeovers} takeovers, longest silence {self.longest_silence:.2f} s\n{counts}"
        return "\n".join([text, *(f"  {code}: {count}" for code, count in self.failures.items()), *self.odd])


class StormReport(Struct, frozen=True):
    """A storm in figures."""

    plan: StormPlan
    tally: Tally
    stalls: Sequence[Stalls]
    leaks: Leaks

    @classmethod
    def of(cls, storm: StormOutcome) -> "StormReport":
        """Counts and measures."""
        return cls(storm.plan, Tally.of(storm.outcomes), stalls_of(storm.outcomes, storm.strikes), storm.leaks)

    def __str__(self) -> str:
        lines = ["", f"Storm, seed {self.plan.seed}: {self.tally}", f"{len(self.leaks)} leaked in Redis", ""]
        head = ("fault", "strikes", "streams met", "stall p50", "p95", "max", "struck again", "p95 at most")
        rows = [head, *(_cells(row) for row in self.stalls)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        for name, *cells in rows:
            padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            lines.append("  ".join([name.ljust(widths[0]), *padded]).rstrip())
        return "\n".join(lines)


def record(section: str, content: Any) -> Path:
    """Puts a section into the report's file, beside those of other tests."""
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    sections = msgspec.json.decode(REPORT.read_bytes()) if REPORT.exists() else {}
    leases = {"worker_lease_seconds": WORKER_LEASE_SECONDS, "gateway_lease_seconds": GATEWAY_LEASE_SECONDS}
    sections[section] = {"measured_at": dt.datetime.now(dt.UTC), "machine": machine(), **leases, "result": content}
    REPORT.write_bytes(msgspec.json.format(msgspec.json.encode(sections)) + b"\n")
    return REPORT


def _cells(row: Stalls) -> tuple[str, ...]:
    limit = STALL_P95_AT_MOST.get(row.fault)
    target = "" if limit is None else f"{limit:g} s" + (" missed" if row.p95 > limit else "")
    seconds = [f"{value:.2f} s" for value in (row.p50, row.p95, row.highest)]
    return (row.fault.value, str(row.strikes), str(row.streams), *seconds, str(row.struck_again), target)


def _described(outcome: Outcome) -> str:
    legs = [
        f"{leg.hop.transport}@{leg.hop.gateway} {leg.opened_after}-{leg.closed_after} {leg.why}"
        for leg in outcome.reader.legs
    ]
    return f"{outcome.verdict} {outcome.reader.stream_id}: {outcome.why}; {legs}; {list(outcome.owners)}"
