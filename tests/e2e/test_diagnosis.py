"""Causes put into a running installation are named by the diagnosis, first of all, and no longer once they are gone.

Each deployment is under a steady load and well at first; then causes are put in and taken out in turn. Latencies are
what the gateway files, the fleet is sampled as Celery does it, the verdict is the page's. A phase has as many slots of
ten seconds as it takes until there are samples and requests enough; phases are compared with those of the same run.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis import Redis

from apps.ops.diagnosis.causes import Cause
from apps.ops.diagnosis.movements import FEWEST
from headrace_wire import redis_keys
from headrace_wire.latency.measures import Measure, Tally
from headrace_wire.latency.store import SLOT_SECONDS, slot_of, totals_read
from headrace_wire.latency.summary import Summary
from tests.support.environment import REPOSITORY_ROOT
from tests.support.injected_causes import (
    DEPLOYMENTS,
    INJECTIONS,
    LEASE_SECONDS,
    STALL_SECONDS,
    TOGETHER,
    Injection,
    guarded_key,
)
from tests.support.live_stack import LiveStack, running_stack
from tests.support.steady_load import SteadyLoad, steady_loads

PHASE_SECONDS = 300.0
"""Within which a phase has its samples and requests, or the test fails."""
SHARES = (0.5, 0.9, 0.95, 0.99)
ERROR = 0.02
"""What a percentile of the dashboard may be off, as promised."""
RANGE = """
import json
from datetime import UTC, datetime
from apps.ops.latency.scopes import LatencyScope, TimeRange

def of(phase):
    return TimeRange.of(*(datetime.fromtimestamp(at, UTC) for at in phase))

"""
READ = (
    RANGE
    + """
from dataclasses import asdict
from apps.ops.diagnosis.reading import diagnosis_of, observation_of

told = []
for name, now, before in ASKED:
    found = diagnosis_of(name, of(now), of(before))
    told.append({
        "findings": [{**asdict(one), "seconds": min(one.seconds, 1e9)} for one in found.findings],
        "moved": [one.says for one in found.moved],
        "fleet": [str(observation_of(name, of(phase)).fleet) for phase in (now, before)],
    })
print(json.dumps(told))
"""
)
TOTALS = (
    RANGE
    + """
from apps.ops.latency.selectors import latency_total

print(json.dumps([latency_total(LatencyScope(deployment=name), of(PHASE)).pack().hex() for name in NAMES]))
"""
)
SAMPLE = """
from apps.deployments.fleet_mirror import workers_sync
from apps.ops.latency.samples import fleet_sample_take

if fleet_sample_take():
    workers_sync()
"""
REPORT = REPOSITORY_ROOT / "var" / "bench" / "diagnosis.txt"

Phase = tuple[int, int]
"""Unix seconds: slots from the first one up to and without the second."""


@dataclass(frozen=True)
class Told:
    """What the diagnosis said of a deployment in a phase."""

    deployment: str
    causes: list[str]
    """The one that explains most first."""
    why: str

    def __str__(self) -> str:
        return f"{self.deployment}: {self.causes}\n{self.why}"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[LiveStack]:
    names: Sequence[str] = request.param
    deployments = {name: DEPLOYMENTS[name] for name in names}
    folder = tmp_path_factory.mktemp("diagnosis")
    tenant, lease = {"stall_timeout_seconds": STALL_SECONDS}, str(LEASE_SECONDS)
    with running_stack(folder, deployments, tenant=tenant, HEADRACE_LEASE_SECONDS=lease) as running:
        yield running


@asynccontextmanager
async def sampling(stack: LiveStack) -> AsyncIterator[None]:
    """Does what Celery's beat does, which on a busy machine comes too late for phases as short as these."""

    async def sample() -> None:
        while True:
            await asyncio.to_thread(stack.run_django, SAMPLE)
            await asyncio.sleep(0.5)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(sample())
        yield
        task.cancel()


async def phase_of(
    stack: LiveStack,
    loads: Sequence[SteadyLoad],
    *,
    slots: int = 1,
    timeouts: int = 0,
    during: Coroutine[Any, Any, None] | None = None,
) -> Phase:
    """Returns a phase in which all of these loads were as they are now, once there is enough of it.

    That is so many samples of the fleet, `FEWEST` requests of each load, and so many timeouts of all together.
    """
    await asyncio.gather(*(load.renewed() for load in loads))
    start = slot_of(time.time()) + SLOT_SECONDS
    deadline = time.monotonic() + PHASE_SECONDS
    with Redis.from_url(stack.redis_url) as redis:
        await asyncio.sleep(start - time.time())
        if during is not None:
            await during
        while True:
            end = slot_of(time.time())
            slots_seen = [
                slot for slot in range(start, end, SLOT_SECONDS) if redis.exists(redis_keys.fleet_sample_key(slot))
            ]
            there = [summed(redis, load.deployment, start, end) for load in loads]
            requests = [summary.tally(Tally.REQUESTS) for summary in there]
            timed_out = sum(summary.tally(Tally.TIMEOUTS) for summary in there)
            if len(slots_seen) >= slots and min(requests, default=FEWEST) >= FEWEST and timed_out >= timeouts:
                return start, end
            assert time.monotonic() < deadline, f"samples {slots_seen}, requests {requests}, timeouts {timed_out}"
            await asyncio.sleep(0.2)


def summed(redis: "Redis", deployment: str, start: int, end: int) -> Summary:
    """Returns what the gateway has filed."""
    summary = Summary()
    for _, packed in totals_read(redis, start=start, end=end, deployment=deployment):
        summary.merge_packed(packed)
    return summary


def told(stack: LiveStack, asked: Sequence[tuple[str, Phase, Phase]]) -> list[Told]:
    """Has the page's reading compare phases."""
    answers = json.loads(stack.run_django(f"ASKED = {list(asked)!r}\n{READ}").splitlines()[-1])
    return [
        Told(
            name,
            [finding["cause"] for finding in answer["findings"]],
            json.dumps(answer, indent=1, ensure_ascii=False),
        )
        for (name, *_), answer in zip(asked, answers, strict=True)
    ]


def loads_for(stack: LiveStack, injections: Sequence[Injection]) -> dict[str, SteadyLoad]:
    """Returns a load for each deployment that has something put in."""
    return {one.deployment: SteadyLoad(stack, one.deployment, one.tokens, one.usual) for one in injections}


def names_of(*causes: Cause) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.deployment for one in INJECTIONS if one.cause in causes))


SHORT = (Cause.CAPACITY, Cause.PREFIX_MISSES, Cause.SLOW_CLIENTS)


@pytest.mark.faults
@pytest.mark.parametrize("stack", [names_of(*SHORT)], indirect=True)
async def test_three_causes_at_once_are_told_apart_and_are_gone_when_they_are_gone(stack: LiveStack) -> None:
    injections = [one for one in INJECTIONS if one.cause in SHORT]
    loads = loads_for(stack, injections)
    async with sampling(stack), steady_loads(loads):
        before = await phase_of(stack, [*loads.values()])
        for one in injections:
            await one.put_in(stack, loads[one.deployment])
        now = await phase_of(stack, [*loads.values()])
        for one in injections:
            await one.take_out(stack, loads[one.deployment])
        after = await phase_of(stack, [*loads.values()])
    answers = await asyncio.to_thread(
        told, stack, [(one.deployment, phase, before) for one in injections for phase in (now, after)]
    )
    for one, found, gone in zip(injections, answers[::2], answers[1::2], strict=True):
        assert found.causes[:1] == [one.cause], str(found)
        assert one.cause not in gone.causes, str(gone)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("stack", "together"), [(names_of(*causes), name) for name, causes in TOGETHER.items()], indirect=["stack"],
    ids=TOGETHER,
)  # fmt: skip
async def test_each_cause_in_turn_is_named_first_and_is_gone_when_it_is_gone(stack: LiveStack, together: str) -> None:
    key = await asyncio.to_thread(guarded_key, stack)
    injections = [one.with_key(key) for one in INJECTIONS if one.cause in TOGETHER[together]]
    loads = loads_for(stack, injections)
    began, verdicts = slot_of(time.time()), Verdicts()
    async with sampling(stack), steady_loads(loads):
        before = await phase_of(stack, [*loads.values()], slots=2)
        last: Injection | None = None
        for one in [*injections, None]:
            phase = await phase_with(stack, loads, one, last)
            for asked in (one, last):
                if asked is not None:
                    (found,) = await asyncio.to_thread(told, stack, [(asked.deployment, phase, before)])
                    verdicts.add(asked.cause, found, is_in=asked is one)
            last = one
        await asyncio.gather(*(load.end() for load in loads.values()))
    assert not verdicts.wrong, "\n".join([*verdicts.table, *verdicts.wrong])
    whole = [load for load in loads.values() if not load.seen.cut]
    table = [*verdicts.table, "", *await asyncio.to_thread(numbers_compare, stack, whole, began)]
    print("\n".join(table))
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.with_stem(f"diagnosis-{together}").write_text("\n".join([*table, ""]), "utf-8")


@dataclass
class Verdicts:
    """What was said of each cause, while it was in and afterwards."""

    table: list[str] = field(default_factory=lambda: ["put in, and what was named"])
    wrong: list[str] = field(default_factory=list)

    def add(self, cause: Cause, found: Told, *, is_in: bool) -> None:
        """Notes one, and says so at once."""
        self.table.append(f"{cause if is_in else '  and afterwards':<20} {', '.join(found.causes) or '-'}")
        print(self.table[-1], flush=True)
        is_right = found.causes[:1] == [cause] if is_in else cause not in found.causes
        if not is_right:
            self.wrong.append(f"{cause}, {'put in' if is_in else 'taken out'}: {found}")


async def phase_with(
    stack: LiveStack, loads: Mapping[str, SteadyLoad], one: Injection | None, last: Injection | None
) -> Phase:
    """Returns a phase with this cause, or none, put in, while the load that had the last one goes on without it."""
    others = [loads[last.deployment]] if last is not None else []
    if one is None:
        return await phase_of(stack, others, slots=2)
    load = loads[one.deployment]
    putting_in = one.put_in(stack, load)
    if not one.comes_during:
        await putting_in
    phase = await phase_of(
        stack,
        [*others, load] if one.lets_through else others,
        slots=one.slots,
        timeouts=one.timeouts,
        during=putting_in if one.comes_during else None,
    )
    await one.take_out(stack, load)
    return phase


def numbers_compare(stack: LiveStack, loads: Sequence[SteadyLoad], began: int) -> list[str]:
    """Holds what the dashboard has of whole streams beside what their clients saw; returns a table.

    A client's first token comes later than the gateway's, by what the way and the machine take. The same event is what
    the gateway told with each answer, and all that is counted.
    """
    book = Summary()
    for load, packed in zip(loads, filed(stack, loads, began), strict=True):
        book.merge_packed(packed)
        assert Summary.unpack(packed).tally(Tally.TOKENS) == load.seen.tokens, load.deployment
    clients = {
        name: [seconds for load in loads for seconds in getattr(load.seen, field)]
        for name, field in (("ttft", "ttfts"), ("ttft told", "told_ttfts"), ("gap", "gaps"), ("total", "totals"))
    }
    table = [f"{'':<10} {'p':>4} {'clients, ms':>12} {'dashboard, ms':>14} {'apart':>8}"]
    for name, values in clients.items():
        histogram = book.histograms[Measure(name.split()[0])]
        assert histogram.count == len(values), name
        for share in SHARES:
            exact, kept = quantile(values, share), histogram.quantile(share)
            table.append(
                f"{name:<10} {share * 100:>4g} {exact * 1000:>12.1f} {kept * 1000:>14.1f} {exact / kept - 1:>8.1%}"
            )
            if name == "ttft told":
                assert kept == pytest.approx(exact, rel=ERROR), table[-1]
    return table


def filed(stack: LiveStack, loads: Sequence[SteadyLoad], began: int) -> list[bytes]:
    """Returns what the dashboard reads of each deployment, once all of its streams are there."""
    deadline = time.monotonic() + PHASE_SECONDS
    with Redis.from_url(stack.redis_url) as redis:
        for load in loads:
            while summed(redis, load.deployment, began, 2**40).tally(Tally.REQUESTS) < load.seen.streams:
                assert time.monotonic() < deadline, f"streams of {load.deployment} are not filed"
                time.sleep(0.2)
    names, end = [load.deployment for load in loads], slot_of(time.time()) + SLOT_SECONDS
    asked = f"NAMES, PHASE = {names!r}, {(began, end)!r}\n{TOTALS}"
    return [bytes.fromhex(packed) for packed in json.loads(stack.run_django(asked).splitlines()[-1])]


def quantile(values: Sequence[float], share: float) -> float:
    """Returns a percentile by nearest rank."""
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1]
