"""Causes put into a running installation are found from what its gateway and workers say of themselves.

One deployment for each cause; all are well first, then each has its cause in turn. Latencies are those that the gateway
files; the fleet is sampled from the workers' registrations as Celery does it, only more often.
"""

import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import pytest
from pytest_django import Settings
from redis import Redis

from apps.deployments.fleet_mirror import registrations_read
from apps.ops.diagnosis.causes import Cause
from apps.ops.diagnosis.diagnose import diagnose
from apps.ops.diagnosis.observations import Fleet, Observation
from headrace_wire import redis_keys
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.latency.measures import Tally
from headrace_wire.latency.store import slot_of, totals_read
from headrace_wire.latency.summary import Summary
from tests.support.live_stack import LiveStack, running_stack

QUICK = {"ttft_ms": 10, "tpot_ms": 5, "answer_tokens": 20}
DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "places": {"engine_args": QUICK, "max_num_seqs": 2},
    "batch": {"engine_args": {**QUICK, "tpot_us_each": 2000}, "max_num_seqs": 64},
    "prefixes": {"engine_args": {**QUICK, "block_tokens": 16, "prefill_us": 1000}, "max_num_seqs": 64},
    "memory": {"engine_args": {**QUICK, "answer_tokens": 60, "kv_tokens": 200}, "max_num_seqs": 64},
}
CAUSES = {
    "places": Cause.CAPACITY,
    "batch": Cause.CONTENTION,
    "prefixes": Cause.PREFIX_MISSES,
    "memory": Cause.MEMORY_FULL,
}
LOAD_SECONDS = 4.0
FEWEST = 15
STALE_SECONDS = 1.5
"""Registrations are written each second: earlier ones say what was before the load."""
FILED_SECONDS = 40.0
LONG = "These words stand at the beginning of each prompt, and there are a good many of them. " * 6

pytestmark = pytest.mark.faults

Turn = Callable[[int], Awaitable[None]]


@pytest.fixture(scope="module")
def stack() -> Iterator[LiveStack]:
    with (
        tempfile.TemporaryDirectory(prefix="headrace-diagnosis-") as folder,
        running_stack(Path(folder), DEPLOYMENTS) as running,
    ):
        yield running


@dataclass
class Watch:
    """What workers and queue of one deployment looked like during a load."""

    redis: Redis
    deployment: str
    began: float = field(default_factory=time.time)
    seen: list[tuple[list[WorkerInfo], int]] = field(default_factory=list)

    async def run(self) -> None:
        """Looks ten times a second."""
        while True:
            alive = await asyncio.to_thread(registrations_read)
            workers = [info for info in alive.alive.values() if info.deployment == self.deployment]
            waiting = self.redis.scard(redis_keys.waiting_key(self.deployment))
            assert isinstance(waiting, int)
            if time.time() - self.began > STALE_SECONDS:
                self.seen.append((workers, waiting))
            await asyncio.sleep(0.1)

    def fleet(self) -> Fleet:
        """Returns what was seen."""
        last = {info.incarnation: info for workers, _ in self.seen for info in workers}
        return Fleet(
            workers=self._mean(lambda info: info.state is WorkerState.READY),
            workers_started=sum(info.started_at > self.began for info in last.values()),
            slots=self._mean(lambda info: info.max_num_seqs),
            running=self._mean(lambda info: info.num_requests_running),
            held=self._mean(lambda info: info.num_requests_held),
            waiting=fmean(waiting for _, waiting in self.seen),
            waiting_most=max(waiting for _, waiting in self.seen),
            kv_cache_usage_most=max((one.kv_cache_usage for workers, _ in self.seen for one in workers), default=0.0),
        )

    def _mean(self, value: Callable[[WorkerInfo], float]) -> float:
        return fmean(sum(value(info) for info in workers) for workers, _ in self.seen)


async def load(stack: LiveStack, deployment: str, turn: Turn, *, clients: int) -> tuple[Watch, int]:
    """Has clients take turns for some seconds; returns what was seen and how many turns there were."""
    watch = Watch(Redis.from_url(stack.redis_url), deployment)
    numbers = itertools.count()
    ends_at = time.monotonic() + LOAD_SECONDS

    async def client() -> int:
        turns = 0
        while time.monotonic() < ends_at or turns * clients < FEWEST:
            await turn(next(numbers))
            turns += 1
        return turns

    watching = asyncio.create_task(watch.run())
    try:
        turns = sum(await asyncio.gather(*(client() for _ in range(clients))))
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        watch.redis.close()
    return watch, turns


def over_http(stack: LiveStack, http: httpx.AsyncClient, deployment: str, prompt: Callable[[int], str]) -> Turn:
    async def turn(number: int) -> None:
        body = {
            "model": deployment,
            "messages": [{"role": "user", "content": prompt(number)}],
            "max_tokens": 100,
            "stream": True,
        }
        answer = await http.post(f"{stack.base_url}/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert "[DONE]" in answer.text

    return turn


async def filed(stack: LiveStack, deployment: str, began: float, turns: int) -> Summary:
    """Waits for the gateway to file that many requests in slots from `began` on; a slot is filed when it is over."""
    deadline = time.monotonic() + FILED_SECONDS
    with Redis.from_url(stack.redis_url) as redis:
        while True:
            summary = Summary()
            for _, packed in totals_read(redis, start=slot_of(began), end=int(time.time()) + 1, deployment=deployment):
                summary.merge_packed(packed)
            if summary.tally(Tally.REQUESTS) >= turns:
                return summary
            assert time.monotonic() < deadline, f"{summary.tally(Tally.REQUESTS)} of {turns} requests were filed"
            await asyncio.sleep(0.2)


async def observed(stack: LiveStack, deployment: str, loaded: tuple[Watch, int]) -> Observation:
    watch, turns = loaded
    summary = await filed(stack, deployment, watch.began, turns)
    return Observation(seconds=LOAD_SECONDS, summary=summary, fleet=watch.fleet())


async def test_causes_that_are_put_in_are_found_and_no_others(stack: LiveStack, settings: Settings) -> None:
    settings.REDIS_URL = stack.redis_url
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        headers={"Authorization": f"Bearer {stack.api_key}"}, timeout=60, limits=limits
    ) as http:

        def asks(deployment: str, prompt: Callable[[int], str] = lambda _: "Hello.") -> Turn:
            return over_http(stack, http, deployment, prompt)

        usual: dict[str, tuple[Turn, int]] = {
            "places": (asks("places"), 1),
            "batch": (asks("batch"), 1),
            "prefixes": (asks("prefixes", lambda _: LONG), 1),
            "memory": (asks("memory"), 2),
        }
        loaded = [await load(stack, name, turn, clients=clients) for name, (turn, clients) in usual.items()]
        before = {name: await observed(stack, name, one) for name, one in zip(usual, loaded, strict=True)}
        injected = {
            "places": await load(stack, "places", asks("places"), clients=12),
            "batch": await load(stack, "batch", asks("batch"), clients=16),
            "prefixes": await load(stack, "prefixes", asks("prefixes", lambda number: f"{number} {LONG}"), clients=1),
            "memory": await load(stack, "memory", asks("memory"), clients=12),
        }
        now = {name: await observed(stack, name, one) for name, one in injected.items()}
    for name, expected in CAUSES.items():
        found = diagnose(now[name], before[name])
        # Nobody put in what the machine itself may have had meanwhile: a gateway without CPU, no worker at all.
        named = {finding.cause for finding in found} & set(CAUSES.values())
        told = json.dumps([(finding.cause, finding.evidence) for finding in found], ensure_ascii=False)
        # What fills the KV cache runs at once, too.
        beside = {Cause.CONTENTION} if expected is Cause.MEMORY_FULL else set()
        assert {expected} <= named <= {expected} | beside, f"{name}: {told}\n{now[name].fleet}\n{before[name].fleet}"
