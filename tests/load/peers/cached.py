"""Answers that were kept: the same request again and again, from our response cache and from LiteLLM's Redis cache.

Whole answers, one after another on one connection, in one piece and streamed; and as many as one gateway gives over
many connections. The engine computes the answer once, and a pass in which one that was asked for alone was computed
anew fails.
"""

import asyncio
import math
import time
from collections.abc import Sequence

from msgspec import Struct

from headrace_wire.response_cache_terms import ResponseCacheTerms
from tests.load.clients import AnswerFailedError, SseClient
from tests.load.measurements import Processes, Spread, percentile
from tests.load.peers.arms import HEADRACE, LITELLM_CACHE, Arm, deployment, running_arms
from tests.load.peers.environments import Progress
from tests.load.peers.table import Line, Table, ratio
from tests.load.peers.token_path import connections
from tests.load.placement import Placement, kept_awake
from tests.support.snapshots import TENANT_A

POLICY = ResponseCacheTerms(tenant_id=TENANT_A)


class CachedLoad(Struct, frozen=True):
    """What is asked."""

    tokens: int = 64
    """Of the answer."""
    answers: int = 250
    """Of each form, one after another."""
    connections: int = 64
    seconds: float = 4.0
    """That all connections ask for one answer after another."""
    ttft_ms: float = 2000.0
    """The engine's own: an answer that it had a part in is seen at once."""


class CachedFigures(Struct, frozen=True):
    """One pass over one arm; milliseconds."""

    arm: str
    plain: Spread
    streamed: Spread
    per_second: float
    many_p99_ms: float
    gateway_us: float
    """CPU of the process that faces the clients, for each of many answers."""


def run_rounds(
    load: CachedLoad, names: Sequence[str], placement: Placement, *, rounds: int, progress: Progress
) -> list[dict[str, CachedFigures]]:
    """Passes over the arms in turn, which one first alternates."""
    engine = deployment(streams=load.connections, ttft_ms=load.ttft_ms, tokens_per_second=1000.0)
    done = []
    with (
        kept_awake(placement.system, placement.load),
        running_arms(names, engine, placement, progress=progress, response_caches=[POLICY]) as (_, *arms),
    ):
        for number in range(1, rounds + 1):
            seen = {}
            for arm in arms if number % 2 else arms[::-1]:
                progress(f"cache, round {number} of {rounds}: {arm.name}")
                seen[arm.name] = asyncio.run(_measured(load, arm))
            done.append(seen)
    return done


def cached_table(load: CachedLoad, rounds: Sequence[dict[str, CachedFigures]]) -> Table:
    """Returns the table; ratios are Headrace's to LiteLLM's, round by round."""
    names = [name for name in (HEADRACE, LITELLM_CACHE) if name in rounds[0]]
    own = [one[HEADRACE] for one in rounds]
    peer = [one[LITELLM_CACHE] for one in rounds if LITELLM_CACHE in one]
    columns = [[one[name] for one in rounds] for name in names]
    lines = [
        Line(
            "whole answer, p50 ms",
            [[one.plain.p50 for one in column] for column in columns],
            _ratios([one.plain for one in own], [one.plain for one in peer]),
            at_most=0.5,
        ),
        Line("  p99 ms", [[one.plain.p99 for one in column] for column in columns], at_most=5.0),
        Line(
            "streamed, to its end, p50 ms",
            [[one.streamed.p50 for one in column] for column in columns],
            _ratios([one.streamed for one in own], [one.streamed for one in peer]),
            at_most=0.5,
        ),
        Line("  p99 ms", [[one.streamed.p99 for one in column] for column in columns], at_most=5.0),
        Line(
            f"answers per second, {load.connections} connections",
            [[one.per_second for one in column] for column in columns],
            at_least=1000.0,
        ),
        Line("  their p99, ms", [[one.many_p99_ms for one in column] for column in columns], at_most=500.0),
        Line("  gateway CPU, us per answer", [[one.gateway_us for one in column] for column in columns]),
    ]
    title = (
        f"Kept answers of {load.tokens} tokens, {load.answers} of each form one after another; everything but the "
        f"client on one core; median [quartiles] of {len(rounds)} rounds"
    )
    return Table(title, names, lines)


def _ratios(own: Sequence[Spread], peer: Sequence[Spread]) -> list[float]:
    """Return nothing to judge by where the peer was left out."""
    return [ratio(a.p50, b.p50) for a, b in zip(own, peer, strict=False)] or [math.nan]


async def _measured(load: CachedLoad, arm: Arm) -> CachedFigures:
    arm.go_on()
    try:
        return await _pass(load, arm)
    finally:
        arm.pause()


async def _pass(load: CachedLoad, arm: Arm) -> CachedFigures:
    gateway = Processes({"gateway": arm.pids["gateway"]})
    many: list[float] = []
    async with connections(arm, load.connections) as clients:
        first = clients[0]
        await _kept(load, first)
        plain = [await first.ask_plain(load.tokens, temperature=0) for _ in range(load.answers)]
        streamed = [await _streamed(load, first) for _ in range(load.answers)]
        await asyncio.gather(*[client.ask_plain(load.tokens, temperature=0) for client in clients])
        gateway.take()
        began = time.perf_counter()

        async def keep_asking(client: SseClient) -> None:
            while time.perf_counter() < began + load.seconds:
                many.append(await client.ask_plain(load.tokens, temperature=0))

        await asyncio.gather(*map(keep_asking, clients))
        seconds, used = time.perf_counter() - began, gateway.take()["gateway"]
    slowest = max([*plain, *streamed])  # of many at once, one may wait that long for the others
    if slowest > load.ttft_ms / 1000:
        raise AnswerFailedError(f"{arm.name} had an answer computed anew: it took {slowest:.3f} s")
    return CachedFigures(
        arm.name,
        Spread.of_seconds(plain),
        Spread.of_seconds(streamed),
        len(many) / seconds,
        percentile(many, 0.99) * 1000,
        used / len(many) * 1e6,
    )


async def _kept(load: CachedLoad, client: SseClient) -> None:
    """Ask until the answer is kept: who keeps it does so after it was given."""
    for _ in range(20):
        plain = await client.ask_plain(load.tokens, temperature=0)
        streamed = await _streamed(load, client)
        if max(plain, streamed) < load.ttft_ms / 1000:
            return
    raise AnswerFailedError("the answer is not kept")


async def _streamed(load: CachedLoad, client: SseClient) -> float:
    answer = await client.ask(load.tokens, temperature=0)
    return answer.ended_at - answer.asked_at
