"""What rules that judge token by token cost 32 streams: two tenants of one stack, one with a policy and one without."""

import asyncio
import time
from collections.abc import Sequence

from msgspec import Struct

from headrace_wire.guard_policy import Action, GuardPolicy, LiteralRule, PersonalDataRule
from tests.load.guard_case import NUMBERS, GuardCase, word_list
from tests.load.measurements import Processes
from tests.load.peers.arms import HEADRACE, Arm, deployment
from tests.load.peers.environments import Progress
from tests.load.peers.table import Line, Table, ratio
from tests.load.peers.token_path import connections
from tests.load.placement import Placement, kept_awake
from tests.load.stack import BenchStack, running_stack
from tests.support.snapshots import KEY_A, KEY_B, TENANT_B

FREE, GUARDED = "without a policy", "with a policy"
WORDS = 1_000


class GuardedLoad(Struct, frozen=True):
    """What is asked. The engine is faster than the path: how much passes is what the path can do."""

    streams: int = 32
    tokens_per_second: float = 1000.0
    tokens: int = 3000
    """Of each stream."""


class GuardedFigures(Struct, frozen=True):
    """One pass for one tenant."""

    name: str
    tokens_per_second: float
    us_per_token: dict[str, float]
    load_core_busy: float


def run_rounds(
    load: GuardedLoad, placement: Placement, *, rounds: int, progress: Progress
) -> list[list[GuardedFigures]]:
    """Passes for both tenants in turn, which one first alternates."""
    engine = deployment(streams=load.streams, ttft_ms=10, tokens_per_second=load.tokens_per_second)
    done = []
    with (
        kept_awake(placement.system, placement.load),
        running_stack(engine, placement, policies={TENANT_B: _policy()}) as stack,
    ):
        asyncio.run(_pass(load, stack, GUARDED))  # its rules' states are made
        for number in range(1, rounds + 1):
            progress(f"guard, round {number} of {rounds}")
            seen = [
                asyncio.run(_pass(load, stack, name)) for name in ((FREE, GUARDED) if number % 2 else (GUARDED, FREE))
            ]
            done.append(sorted(seen, key=lambda one: one.name == GUARDED))
    return done


def guarded_table(load: GuardedLoad, rounds: Sequence[Sequence[GuardedFigures]]) -> Table:
    """Returns the table of case 10."""
    columns = [[one[i] for one in rounds] for i in (0, 1)]
    speed = [[one.tokens_per_second for one in column] for column in columns]
    costs = [[sum(one.us_per_token.values()) for one in column] for column in columns]
    workers = [[one.us_per_token["worker"] for one in column] for column in columns]
    lines = [
        Line("tokens per second", speed, [ratio(b, a) for a, b in zip(*speed, strict=True)], at_least=0.95),
        Line("tokens per CPU second of the system", *_inverse(costs), at_least=0.95),
        Line("  worker CPU, us per token", workers, [b - a for a, b in zip(*workers, strict=True)]),
        Line("load core busy, share", [[one.load_core_busy for one in column] for column in columns]),
    ]
    title = (
        f"Guard: {WORDS:,} words and numbers over {load.streams} streams, as fast as they go; "
        f"median [quartiles] of {len(rounds)} rounds"
    )
    return Table(title, [FREE, GUARDED], lines)


def _inverse(costs: Sequence[Sequence[float]]) -> tuple[list[list[float]], list[float]]:
    columns = [[1e6 / cost for cost in column] for column in costs]
    return columns, [ratio(b, a) for a, b in zip(*columns, strict=True)]


def _policy() -> GuardPolicy:
    words = word_list(GuardCase("bench", words=WORDS), ["reservoir"])
    rules = (
        LiteralRule(key="words", words=words, action=Action.BLOCK),
        PersonalDataRule(key="numbers", kinds=dict.fromkeys(NUMBERS, Action.MASK)),
    )
    return GuardPolicy(key="b" * 32, name="bench", version=1, rules=rules)


async def _pass(load: GuardedLoad, stack: BenchStack, name: str) -> GuardedFigures:
    key = (KEY_B if name == GUARDED else KEY_A).reveal()
    arm = Arm(HEADRACE, stack.port, key, stack.pids, stack.engine_pids)
    system = Processes(stack.pids)
    load_core = Processes({str(pid): pid for pid in stack.engine_pids})
    async with connections(arm, load.streams) as clients:
        await asyncio.gather(*[client.ask(2) for client in clients])
        system.take()
        load_core.take()
        begin, own = time.perf_counter(), time.process_time()
        answers = await asyncio.gather(*[client.ask(load.tokens) for client in clients])
        seconds, own = time.perf_counter() - begin, time.process_time() - own
        used, busy = system.take(), sum(load_core.take().values()) + own
    tokens = sum(sum(answer.tokens) for answer in answers)
    costs = {process: cpu / tokens * 1e6 for process, cpu in used.items()}
    return GuardedFigures(name, tokens / seconds, costs, busy / seconds)
