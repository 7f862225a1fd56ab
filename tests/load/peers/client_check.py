"""The bench's own client beside `vllm bench serve`, both before the endpoint alone: do they see the same times?"""

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from tests.load.clients import SseClient
from tests.load.measurements import percentile
from tests.load.peers.arms import DIRECT, Arm, deployment, running_arms
from tests.load.peers.environments import Progress
from tests.load.peers.table import Line, Table
from tests.load.peers.token_path import connections, tpot_ms
from tests.load.placement import Placement
from tests.load.vllm_case import VllmLoad, measure
from tests.load.vllm_client import BenchFailedError
from tests.load.vllm_systems import Server
from tests.support.environment import SupportEnvironment
from tests.support.tiny_model import tiny_model_in

OURS, THEIRS = "our client", "vllm bench serve"


class ClientLoad(Struct, frozen=True):
    """What both ask."""

    concurrency: int = 8
    answers_each: int = 8
    tokens: int = 64
    ttft_ms: float = 200.0
    """Far above what clients differ by in the moment in which all of them ask."""
    tpot_ms: float = 20.0


class ClientFigures(Struct, frozen=True):
    """Medians, as one of them saw them."""

    name: str
    ttft_ms: float
    tpot_ms: float


def run_check(
    load: ClientLoad, placement: Placement, *, rounds: int, progress: Progress
) -> list[tuple[ClientFigures, ClientFigures]]:
    """Asks with each, in turn."""
    engine = deployment(streams=load.concurrency, ttft_ms=load.ttft_ms, tokens_per_second=1000 / load.tpot_ms)
    model = tiny_model_in(SupportEnvironment.read().cache_dir)  # for its tokenizer alone
    bench = VllmLoad(
        model,
        concurrencies=(load.concurrency,),
        modes=("greedy",),
        prompts_per_slot=load.answers_each,
        output_tokens=load.tokens,
    )
    done = []
    with running_arms([], engine, placement, progress=progress) as (arm,):
        for number in range(1, rounds + 1):
            progress(f"load client, round {number} of {rounds}")
            server = Server(arm.port, arm.key, {})
            seen, failure = measure(bench, THEIRS, server, seed=number, cells=bench.cells, progress=progress)
            if failure is not None:
                raise BenchFailedError(failure.log)
            (theirs,) = seen
            ours = asyncio.run(_ask(load, arm))
            done.append((ours, ClientFigures(THEIRS, theirs.ttft_p50_ms, theirs.tpot_p50_ms)))
    return done


def check_table(load: ClientLoad, seen: Sequence[tuple[ClientFigures, ClientFigures]]) -> Table:
    """Returns the table; the two may differ by 3 %."""
    ttft = [[pair[i].ttft_ms for pair in seen] for i in (0, 1)]
    tpot = [[pair[i].tpot_ms for pair in seen] for i in (0, 1)]
    lines = [
        Line("TTFT p50, ms; judged: difference, share", ttft, _apart(ttft), at_most=0.03),
        Line("TPOT p50, ms; judged: difference, share", tpot, _apart(tpot), at_most=0.03),
    ]
    title = f"Load client before the {DIRECT} arm, {load.concurrency} at a time; {len(seen)} rounds"
    return Table(title, [OURS, THEIRS], lines)


def _apart(columns: Sequence[Sequence[float]]) -> list[float]:
    return [abs(ours / theirs - 1) for ours, theirs in zip(*columns, strict=True)]


async def _ask(load: ClientLoad, arm: Arm) -> ClientFigures:
    async with connections(arm, load.concurrency) as clients:

        async def keep_asking(client: SseClient) -> list[tuple[float, float]]:
            answers = [await client.ask(load.tokens) for _ in range(load.answers_each)]
            return [(answer.ttft_seconds * 1000, tpot_ms(answer)) for answer in answers]

        seen = [pair for pairs in await asyncio.gather(*map(keep_asking, clients)) for pair in pairs]
    return ClientFigures(OURS, percentile([ttft for ttft, _ in seen], 0.5), percentile([tpot for _, tpot in seen], 0.5))
