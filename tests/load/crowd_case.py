"""More clients than a gateway may serve: who is served, how soon the others are refused, what one open stream costs.

Clients come one after another, each asks for a stream over a connection of its own, and all stay. More come meanwhile,
in rounds, to be refused. In the end some of those who are served leave: as many in line have their turn, and as many
new ones find a place in it.
"""

import asyncio
import math
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise

import psutil
from msgspec import Struct

from headrace_wire.snapshot import DeploymentConfig, EngineKind
from tests.load.crowd_clients import REFUSED, SERVED, CrowdClient, visitors
from tests.load.measurements import Spread, median_of
from tests.load.placement import Placement
from tests.load.report import Row
from tests.load.stack import BenchStack, running_stack

MODEL = "crowd"
GAP_PARTS = 4
TURN_SECONDS = 20.0
"""How long those in line may take to get their turn once places are free."""

Progress = Callable[[str], None]


class CrowdLoad(Struct, frozen=True):
    """What is asked of the gateway."""

    workers: int = 8
    """Whose steps come at different times: one engine would give all streams their tokens in the same moment."""
    soft_limit: int = 2048
    """Streams that generate at once."""
    limit: int = 2048
    """Those in line included."""
    clients: int = 2300
    tokens_per_second: float = 2.0
    """Of each stream."""
    ramp_per_second: float = 150.0
    seconds: float = 20.0
    """How long gaps are measured once all have been answered."""
    refusal_rounds: int = 4
    late_comers: int = 150
    """In each of these rounds."""
    leaving: int = 100
    """Of those who are served, in the end."""

    @property
    def deployment(self) -> DeploymentConfig:
        """The simulated engine."""
        return DeploymentConfig(
            id=MODEL,
            name=MODEL,
            model="simulated",
            engine=EngineKind.SIMULATED,
            engine_args={"ttft_ms": 5, "tpot_ms": 1000 / self.tokens_per_second},
            max_num_seqs=math.ceil(self.soft_limit / self.workers) + 1,
            queue_limit=2 * self.clients,
            default_max_tokens=4096,
        )

    @property
    def variables(self) -> dict[str, str]:
        """What the processes' environment says of it."""
        return {"HEADRACE_SOFT_STREAMS": str(self.soft_limit), "HEADRACE_MAX_STREAMS": str(self.limit)}


class CrowdRound(Struct, frozen=True):
    """What one crowd saw."""

    statuses: dict[int, int]
    generating: int
    """Of those who are served."""
    places: list[int]
    """That the others were told, sorted."""
    late_statuses: dict[int, int]
    swapped: dict[int, int]
    """Statuses of those who came after some had left."""
    errors: int
    """Clients that were neither served up to the end, nor given a place, nor refused with a time to come back."""
    retry_seconds: list[int]
    """That were told while nobody left, each once."""
    swapped_retry_seconds: list[int]
    """That were told after some had left."""
    refusal: Spread
    """From the request to the head of its answer."""
    late_refusals: list[Spread]
    first_answer: Spread
    """The same, of those that are served."""
    gap: Spread
    """Between two messages of a stream that bring tokens."""
    gap_parts: list[Spread]
    """The same, of the measured time's parts."""
    engine_gap_ms: float
    gateway_kib_per_stream: float

    @property
    def error_share(self) -> float:
        """Errors over clients."""
        return self.errors / sum(self.statuses.values())

    @property
    def usual_refusal_ms(self) -> float:
        """p99 of a refusal: the median of the rounds, which a moment in which the machine stood still does not move."""
        return median_of(one.p99 for one in [self.refusal, *self.late_refusals])

    @property
    def usual_gap_ratio(self) -> float:
        """p99 of the gaps over the engine's own time for a token: the median of the parts."""
        return median_of(one.p99 for one in self.gap_parts) / self.engine_gap_ms


def run_rounds(load: CrowdLoad, *, rounds: int, progress: Progress) -> list[CrowdRound]:
    """Runs `rounds` crowds, each on a stack of its own, so that memory is what one crowd takes."""
    done = []
    for number in range(1, rounds + 1):
        progress(f"crowd of {load.clients}, round {number} of {rounds}")
        with running_stack(load.deployment, Placement(None, None), load.variables, workers=load.workers) as stack:
            done.append(asyncio.run(run_crowd(load, stack)))
    return done


def table_rows(load: CrowdLoad, measured: Sequence[CrowdRound]) -> list[Row]:
    """Returns the table's lines."""

    def row(label: str, figure: Callable[[CrowdRound], float], *, at_most: float | None = None) -> Row:
        return Row(label, [[figure(one) for one in measured]], at_most)

    return [
        row("held", lambda one: one.statuses.get(SERVED, 0)),
        row("  of them in line", lambda one: len(one.places)),
        row("refused", lambda one: one.statuses.get(REFUSED, 0)),
        row("errors, share", lambda one: one.error_share, at_most=0.001),
        row("refusal, p50 ms", lambda one: one.refusal.p50),
        row("refusal, p99 ms", lambda one: one.refusal.p99, at_most=50.0),
        row("refusal, p99 ms, median of its rounds", lambda one: one.usual_refusal_ms, at_most=50.0),
        row("first answer of those held, p99 ms", lambda one: one.first_answer.p99),
        row(
            f"gap p99 / {1000 / load.tokens_per_second:g} ms", lambda one: one.gap.p99 / one.engine_gap_ms, at_most=1.2
        ),
        row("gateway RSS per open stream, KiB", lambda one: one.gateway_kib_per_stream),
    ]


async def run_crowd(load: CrowdLoad, stack: BenchStack) -> CrowdRound:
    """Sends one crowd."""
    allow_descriptors(load.clients + load.refusal_rounds * load.late_comers + 1000)
    gateway = psutil.Process(stack.pids["gateway"])
    idle_bytes = gateway.memory_info().rss
    crowd = await visitors(stack, load.clients, per_second=load.ramp_per_second)
    begin = time.perf_counter()
    late = [
        await visitors(stack, load.late_comers, per_second=load.ramp_per_second) for _ in range(load.refusal_rounds)
    ]
    await asyncio.sleep(max(0.0, begin + load.seconds - time.perf_counter()))
    end, open_bytes = time.perf_counter(), gateway.memory_info().rss
    held = [client for client in crowd if client.status == SERVED]
    in_line = [client for client in held if not client.began.is_set()]
    new_ones = await _swap(load, stack, held, in_line)
    for client in chain(crowd, *late, new_ones):
        client.leave()
    bounds = [begin + part * (end - begin) / GAP_PARTS for part in range(GAP_PARTS + 1)]
    return CrowdRound(
        statuses=_statuses(crowd),
        generating=len(held) - len(in_line),
        places=sorted(client.place for client in in_line),
        late_statuses=_statuses(chain(*late)),
        swapped=_statuses(new_ones),
        errors=sum(client.is_wrong for client in chain(crowd, *late, new_ones)),
        retry_seconds=_retry_seconds(chain(crowd, *late)),
        swapped_retry_seconds=_retry_seconds(new_ones),
        refusal=_answers(client for client in crowd if client.status == REFUSED),
        late_refusals=[_answers(clients) for clients in late],
        first_answer=_answers(held),
        gap=_gaps(held, begin, end),
        gap_parts=[_gaps(held, *part) for part in pairwise(bounds)],
        engine_gap_ms=1000 / load.tokens_per_second,
        gateway_kib_per_stream=(open_bytes - idle_bytes) / max(1, len(held)) / 1024,
    )


async def _swap(
    load: CrowdLoad, stack: BenchStack, held: Sequence[CrowdClient], in_line: Sequence[CrowdClient]
) -> list[CrowdClient]:
    """Has some leave, waits until as many have got their turn, and returns half as many again who come then."""
    for client in [client for client in held if client.began.is_set()][: load.leaving]:
        client.leave()
    async with asyncio.timeout(TURN_SECONDS):
        for client in in_line[: load.leaving]:
            await client.began.wait()
    return await visitors(stack, load.leaving * 3 // 2, per_second=load.ramp_per_second)


def _statuses(clients: Iterable[CrowdClient]) -> dict[int, int]:
    return dict(Counter(client.status for client in clients))


def _retry_seconds(clients: Iterable[CrowdClient]) -> list[int]:
    return sorted({client.retry_seconds for client in clients if client.status == REFUSED})


def _answers(clients: Iterable[CrowdClient]) -> Spread:
    return Spread.of_seconds(client.seconds for client in clients)


def _gaps(clients: Iterable[CrowdClient], begin: float, end: float) -> Spread:
    return Spread.of_seconds(
        after - before
        for client in clients
        for before, after in pairwise(client.arrivals)
        if begin <= before and after <= end
    )


def allow_descriptors(wanted: int) -> None:
    """Raises this process's own limit of open files; the gateway does the same for itself.

    Raises:
        RuntimeError: The machine does not allow as many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise RuntimeError(f"A crowd needs {wanted} open files and the hard limit is {hard} (ulimit -Hn).")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
