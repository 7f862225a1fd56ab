"""Redis dies in mid-stream or in a takeover, its last moments lost or not: exact answers, or explicit errors."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from headrace_wire import redis_keys
from headrace_wire.functions import Reply
from tests.faults.golden import Golden, undisturbed
from tests.faults.journey import alternating, travel
from tests.faults.leaks import leaks_left
from tests.faults.readers import Hop, Reader, Transport
from tests.faults.stack import FaultStack, running_stack
from tests.faults.storm import LEAK_SECONDS
from tests.faults.verdicts import Judge, Outcome, Verdict
from tests.support.snapshots import simulated

TOKENS = 200
"""Six seconds: what is to happen in mid-stream does, on a busy machine too."""
READERS = 12
PATIENCE_SECONDS = 180.0
BEGUN_TOKENS = 6
LOST_TOKENS = 20
"""What each stream gains after the moment to which Redis falls back."""

Entries = dict[tuple[bytes, bytes], bytes]
"""Of all logs: key and entry id to content."""


@pytest.fixture(scope="module")
def stack() -> Iterator[FaultStack]:
    deployment = simulated("restarts", engine_args={"ttft_ms": 30, "tpot_ms": 30}, max_num_seqs=64)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-faults-") as folder,
        running_stack(Path(folder), deployment) as stack,
    ):
        yield stack


@pytest.fixture(scope="module")
def golden(stack: FaultStack) -> Golden:
    return asyncio.run(undisturbed(stack, "What does the wheel forget?", max_tokens=TOKENS))


class Scene:
    """Readers on their way through a stack."""

    def __init__(self, stack: FaultStack, golden: Golden, tasks: asyncio.TaskGroup) -> None:
        self.stack = stack
        self.readers: list[Reader] = []
        self._golden = golden
        self._tasks = tasks

    def enter(self, count: int) -> list[Reader]:
        """Starts readers, over both gateways and all transports."""
        new = [
            Reader(self.stack.ports, self.stack.api_key, self.stack.model, self._golden.prompt, self._golden.tokens)
            for _ in range(count)
        ]
        for number, reader in enumerate(new):
            self._tasks.create_task(travel(reader, _route(number), seconds=PATIENCE_SECONDS))
        self.readers += new
        return new

    async def judge(self, readers: Sequence[Reader]) -> list[Outcome]:
        """Returns what became of readers whose streams are over."""
        async with Redis.from_url(self.stack.redis_url) as redis:
            judge = Judge(redis)
            return [await judge.judge(reader, self._golden) for reader in readers]


def _route(number: int) -> Iterator[Hop]:
    gateway = number % 2
    if number % 3 == 2:
        return alternating(Hop(Transport.WEBSOCKET, gateway, cut_at=0), Hop(Transport.EVENTS, 1 - gateway))
    return alternating(Hop(Transport.CHAT if number % 3 else Transport.WEBSOCKET, gateway))


@asynccontextmanager
async def scene(stack: FaultStack, golden: Golden) -> AsyncIterator[Scene]:
    """At its end everybody has finished, and nothing is left behind."""
    await stack.wait_until_whole()
    async with asyncio.TaskGroup() as tasks:
        yield Scene(stack, golden, tasks)
    async with Redis.from_url(stack.redis_url) as redis:
        assert not (left := await leaks_left(redis, seconds=LEAK_SECONDS)), left


async def until(readers: Sequence[Reader], golden: Golden, tokens: int) -> None:
    """Returns when each has about so many tokens, in however few messages they came."""
    characters = len(golden.text) * tokens / golden.tokens
    async with asyncio.timeout(PATIENCE_SECONDS):
        while any(len(reader.text) < characters for reader in readers):  # noqa: ASYNC110  what comes is not announced
            await asyncio.sleep(0.01)


async def logged(stack: FaultStack) -> Entries:
    async with Redis.from_url(stack.redis_url) as redis:
        found: Entries = {}
        async for key in redis.scan_iter(redis_keys.log_prefix() + "*", count=1000):
            rows: Reply = await redis.xrange(key)
            found |= {(key, entry_id): fields[b"d"] for entry_id, fields in rows}
        return found


async def fall_back(stack: FaultStack, mark: int) -> Entries:
    """Kills Redis and starts it from its file as it was when it had `mark` bytes; returns what it had before.

    The length of the file at any time is the end of a command: Redis writes what a turn of its loop did as a whole.
    """
    before = await logged(stack)
    stack.redis.kill()
    stack.redis.forget_after(mark)
    stack.redis.start()
    await stack.redis.ready()
    return before


def check_ids(before: Entries, after: Entries) -> None:
    """No entry id stands for other content than it did."""
    assert before.keys() & after.keys()
    changed = {key: (before[key], after[key]) for key in before.keys() & after.keys() if before[key] != after[key]}
    assert not changed


async def test_all_of_its_file_is_there(stack: FaultStack, golden: Golden) -> None:
    async with scene(stack, golden) as here:
        readers = here.enter(READERS)
        await until(readers, golden, BEGUN_TOKENS)
        stack.redis.kill()
        stack.redis.start()
        await stack.redis.ready()
    for outcome in await here.judge(readers):
        assert outcome.verdict is Verdict.EXACT, f"{outcome}\n{stack.log}"


async def test_the_last_moments_are_lost_in_mid_stream(stack: FaultStack, golden: Golden) -> None:
    """What its workers know of is written again; streams that began in the lost time end explicitly."""
    async with scene(stack, golden) as here:
        old = here.enter(READERS)
        await until(old, golden, BEGUN_TOKENS)
        mark = stack.redis.written_bytes
        young = here.enter(READERS)
        await until(young, golden, BEGUN_TOKENS)
        before = await fall_back(stack, mark)
    for outcome in await here.judge(old):
        assert outcome.verdict is Verdict.EXACT, f"{outcome}\n{stack.log}"
    for outcome in await here.judge(young):
        assert outcome.verdict is Verdict.FAILED, f"{outcome}\n{stack.log}"
        assert outcome.reader.failure in {"log_rolled_back", "stream_not_found"}
    check_ids(before, await logged(stack))


async def test_the_last_moments_are_lost_in_a_takeover(stack: FaultStack, golden: Golden) -> None:
    """Of half of the streams, whoever knew more than Redis is dead."""
    async with scene(stack, golden) as here:
        readers = here.enter(READERS)
        await until(readers, golden, BEGUN_TOKENS)
        mark = stack.redis.written_bytes
        await until(readers, golden, BEGUN_TOKENS + LOST_TOKENS)
        victim = stack.workers[0]
        victim.kill()
        before = await fall_back(stack, mark)
        victim.start()
        await victim.ready()
    outcomes = await here.judge(readers)
    for outcome in outcomes:
        assert outcome.verdict in {Verdict.EXACT, Verdict.FAILED}, f"{outcome}\n{stack.log}"
        assert outcome.reader.failure in {"", "log_rolled_back"}
    assert any(outcome.takeovers for outcome in outcomes)
    check_ids(before, await logged(stack))
