"""A fault at every token of an answer: the client's bytes and the token ids are those of the undisturbed run."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.faults.golden import Golden, undisturbed
from tests.faults.leaks import leaks_left
from tests.faults.readers import Transport
from tests.faults.report import Tally, record
from tests.faults.stack import FaultStack, running_stack
from tests.faults.storm import LEAK_SECONDS
from tests.faults.sweeps import Sweep
from tests.faults.verdicts import Verdict
from tests.support.snapshots import simulated

TTFT_SECONDS, TPOT_SECONDS = 0.04, 0.02
TOKENS = 40
ENGINE_ARGS = {"ttft_ms": 1000 * TTFT_SECONDS, "tpot_ms": 1000 * TPOT_SECONDS}
MULTIBYTE = "At dusk 🌊 the wheel turns: น้ำ, 水, вода, eau."
"""Of this answer each byte is a token, so that most cuts fall into a character."""
ANSWERS = {"words": ENGINE_ARGS, "bytes": {**ENGINE_ARGS, "answer": MULTIBYTE}}

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module", params=list(ANSWERS))
def stack(request: pytest.FixtureRequest) -> Iterator[FaultStack]:
    deployment = simulated(request.param, engine_args=ANSWERS[request.param], max_num_seqs=256)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-faults-") as folder,
        running_stack(Path(folder), deployment) as stack,
    ):
        yield stack


@pytest.fixture(scope="module")
def golden(stack: FaultStack) -> Golden:
    return asyncio.run(undisturbed(stack, "Tell me of the wheel.", max_tokens=TOKENS))


@pytest.fixture
async def sweep(stack: FaultStack, golden: Golden) -> Sweep:
    await stack.wait_until_whole()
    return Sweep(stack, golden, ttft_seconds=TTFT_SECONDS, tpot_seconds=TPOT_SECONDS)


async def check(sweep: Sweep, stack: FaultStack, name: str) -> None:
    tally = Tally.of(sweep.outcomes)
    print(f"{name}: {tally}", record(f"{name} at every token of {stack.model}", tally), sep="\n")
    assert tally.verdicts[Verdict.EXACT] == tally.streams, f"{tally}\n{stack.log}"
    assert not sweep.missing, f"never hit: {sorted(sweep.missing)}"
    async with Redis.from_url(stack.redis_url) as redis:
        assert not (left := await leaks_left(redis, seconds=LEAK_SECONDS)), left


@pytest.mark.parametrize("first", [Transport.WEBSOCKET, Transport.EVENTS])
async def test_client_cut(sweep: Sweep, stack: FaultStack, first: Transport) -> None:
    await sweep.cut_clients(first)
    await check(sweep, stack, f"clients cut ({first})")


@pytest.mark.parametrize("first", [Transport.WEBSOCKET, Transport.EVENTS])
async def test_gateway_killed(sweep: Sweep, stack: FaultStack, first: Transport) -> None:
    await sweep.kill_gateways(first)
    await check(sweep, stack, f"gateways killed ({first})")


@pytest.mark.parametrize("first", [Transport.WEBSOCKET, Transport.EVENTS])
async def test_worker_killed(sweep: Sweep, stack: FaultStack, first: Transport) -> None:
    await sweep.kill_workers(first)
    await check(sweep, stack, f"workers killed ({first})")
