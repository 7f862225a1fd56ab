"""Causes of slowness, and how each is put into a running installation and taken out again."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import psutil

from apps.ops.diagnosis.causes import Cause
from headrace_wire.cancellation import cancel_and_wait
from tests.support.live_stack import LiveStack
from tests.support.processes import Process
from tests.support.steady_load import Habits, SteadyLoad

STALL_SECONDS = 20.0
"""Of the tenant: after so long, a client that acknowledges nothing is cut."""
KEPT = "The water turns the wheel and the wheel turns the stone, and nobody may say so."
ANSWER = "The water turns the wheel and the wheel turns the stone."
"""Begins as what a guardrail blocks, which therefore cannot let go of any of it before its end."""
LONG = "These words stand at the beginning of each prompt, and there are a good many of them. " * 6

PACED: dict[str, Any] = {"ttft_ms": 100, "tpot_ms": 50}
"""Slow enough for a busy machine to keep step."""
DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "gateway": {"engine_args": PACED},
    "places": {"engine_args": PACED, "max_num_seqs": 4},
    "batch": {"engine_args": {**PACED, "tpot_us_each": 8000}, "max_num_seqs": 64},
    "prefixes": {"engine_args": {**PACED, "block_tokens": 16, "prefill_us": 1000}, "max_num_seqs": 16},
    "prompts": {"engine_args": {**PACED, "prefill_us": 1000}, "max_num_seqs": 16},
    "memory": {"engine_args": {**PACED, "kv_tokens": 970}, "max_num_seqs": 64},
    "guarded": {"engine_args": {**PACED, "answer": ANSWER}},
    "readers": {"engine_args": PACED},
    "network": {"engine_args": PACED},
    "restarts": {"engine_args": PACED},
    "swings": {"engine_args": {**PACED, "process": True}},
}

USUAL = Habits()

Act = Callable[[LiveStack, SteadyLoad], Coroutine[Any, Any, None]]


@dataclass(frozen=True, kw_only=True)
class Injection:
    """One cause, and the deployment whose load has it."""

    cause: Cause
    deployment: str
    usual: Habits = USUAL
    changed: Habits | None = None
    """While it is in."""
    tokens: int = 16
    begin: Act | None = None
    finish: Act | None = None
    slots: int = 2
    """How many samples of the fleet it takes."""
    timeouts: int = 0
    """How many streams must have ended at deadlines."""
    comes_during: bool = False
    """Its phase begins before it."""
    lets_through: bool = True
    """Streams come to their ends."""

    async def put_in(self, stack: LiveStack, load: SteadyLoad) -> None:
        """Puts it in."""
        if self.begin is not None:
            await self.begin(stack, load)
        if self.changed is not None:
            load.change(self.changed)

    async def take_out(self, stack: LiveStack, load: SteadyLoad) -> None:
        """Takes it out."""
        if self.finish is not None:
            await self.finish(stack, load)
        if self.changed is not None:
            load.change(self.usual)

    def with_key(self, api_key: str) -> "Injection":
        """Returns it, with the key whose answers are guarded where they shall be."""
        if self.cause is not Cause.GUARD or self.changed is None:
            return self
        return replace(self, changed=replace(self.changed, api_key=api_key))


GUARD = f"""
from apps.accounts.models import ApiKey
from apps.accounts.services import api_key_create
from apps.guardrails.models import GuardrailAttachment, GuardrailPolicy, GuardrailRule
from apps.guardrails.services import policy_save

tenant = ApiKey.all_tenants.first().tenant
key, token = api_key_create(api_key=ApiKey(tenant=tenant, name="guarded"))
policy_save(
    policy=GuardrailPolicy(tenant=tenant, name="Nobody", mode="enforced"),
    rules=[GuardrailRule(kind="literals", words=[{KEPT!r}], action="block")],
    attachments=[GuardrailAttachment(api_key=key)],
)
print(token.reveal())
"""


def guarded_key(stack: LiveStack) -> str:
    """Makes a key under a policy, and returns it."""
    return stack.run_django(GUARD).splitlines()[-1]


class _Hiccups:
    """Stops a process for a moment, and lets it run for another, until it is told to end."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def begin(self, pid: int, *, stopped: float, runs: float, pause: float = 0.0, spell: float = 0.0) -> None:
        """Begins; with a `pause`, spells of so many seconds are followed by as long a time without any."""
        self._task = asyncio.create_task(self._run(pid, stopped, runs, pause, spell))

    async def end(self) -> None:
        """Ends; the process runs again."""
        assert self._task is not None
        await cancel_and_wait(self._task)

    async def _run(self, pid: int, stopped: float, runs: float, pause: float, spell: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                spell_ends = loop.time() + spell
                while not pause or loop.time() < spell_ends:
                    os.kill(pid, signal.SIGSTOP)
                    await asyncio.sleep(stopped)
                    os.kill(pid, signal.SIGCONT)
                    await asyncio.sleep(runs)
                await asyncio.sleep(pause)
        finally:
            os.kill(pid, signal.SIGCONT)


_hiccups = _Hiccups()


async def _gateway_stutters(stack: LiveStack, _load: SteadyLoad) -> None:
    _hiccups.begin(stack.gateway_pid, stopped=0.3, runs=0.1)


async def _engine_stutters(stack: LiveStack, load: SteadyLoad) -> None:
    (engine,) = [
        child.pid
        for child in psutil.Process(_worker(stack, load.deployment).pid).children(recursive=True)
        if "headrace_worker.simulated_process" in child.cmdline()
    ]
    _hiccups.begin(engine, stopped=0.4, runs=0.1, spell=20.0, pause=20.0)


async def _hiccups_end(_stack: LiveStack, _load: SteadyLoad) -> None:
    await _hiccups.end()


async def _worker_stops(stack: LiveStack, load: SteadyLoad) -> None:
    await asyncio.to_thread(_worker(stack, load.deployment).stop)


async def _worker_starts(stack: LiveStack, load: SteadyLoad) -> None:
    await asyncio.to_thread(stack.start_worker, load.deployment)


async def _worker_restarts(stack: LiveStack, load: SteadyLoad) -> None:
    await _worker_stops(stack, load)
    await _worker_starts(stack, load)


def _worker(stack: LiveStack, deployment: str) -> Process:
    """Returns the newest one."""
    return next(one for one in reversed(stack.processes) if one.name == f"worker:{deployment}")


def _begins_alike(number: int) -> str:
    return f"{LONG}{number}"


def _begins_anew(number: int) -> str:
    return f"{number} {LONG}"


INJECTIONS = (
    Injection(
        cause=Cause.GATEWAY, deployment="gateway", begin=_gateway_stutters, finish=_hiccups_end, usual=Habits(clients=2)
    ),
    Injection(cause=Cause.CAPACITY, deployment="places", usual=Habits(clients=2), changed=Habits(clients=16)),
    Injection(cause=Cause.CONTENTION, deployment="batch", usual=Habits(clients=1), changed=Habits(clients=12)),
    Injection(
        cause=Cause.COLD_START,
        deployment="restarts",
        usual=Habits(clients=4),
        begin=_worker_restarts,
        comes_during=True,
    ),
    Injection(
        cause=Cause.PREFIX_MISSES,
        deployment="prefixes",
        usual=Habits(prompt=_begins_alike),
        changed=Habits(prompt=_begins_anew),
    ),
    Injection(
        cause=Cause.LONGER_PROMPTS,
        deployment="prompts",
        changed=Habits(prompt=_begins_anew),
    ),
    Injection(cause=Cause.GUARD, deployment="guarded", changed=Habits()),
    Injection(
        cause=Cause.SLOW_CLIENTS,
        deployment="readers",
        tokens=40,
        usual=Habits(clients=3, window=16),
        changed=Habits(clients=3, window=16, pause_seconds=1.0, acknowledge_every=8),
    ),
    Injection(
        cause=Cause.NETWORK_TIMEOUTS,
        deployment="network",
        tokens=40,
        usual=Habits(clients=4, window=16),
        changed=Habits(clients=4, window=16, is_dark=lambda number: number % 2 == 0),
        timeouts=4,
    ),
    Injection(
        cause=Cause.NO_WORKER,
        deployment="restarts",
        usual=Habits(clients=4),
        begin=_worker_stops,
        finish=_worker_starts,
        lets_through=False,
    ),
    Injection(
        cause=Cause.MEMORY_FULL,
        deployment="memory",
        usual=Habits(prompt=lambda number: f"{number:100}"),
        changed=Habits(clients=12, prompt=lambda number: f"{number:100}"),
    ),
    Injection(
        cause=Cause.THROUGHPUT_SWINGS,
        deployment="swings",
        usual=Habits(clients=3),
        begin=_engine_stutters,
        finish=_hiccups_end,
        slots=9,
    ),
)
"""In this order in turn, so that no deployment has two one after the other."""
TOGETHER = {
    "outside": (Cause.GATEWAY, Cause.COLD_START, Cause.SLOW_CLIENTS, Cause.NETWORK_TIMEOUTS, Cause.NO_WORKER),
    "prompts": (Cause.PREFIX_MISSES, Cause.LONGER_PROMPTS, Cause.GUARD),
    "engine": (Cause.CAPACITY, Cause.CONTENTION, Cause.MEMORY_FULL, Cause.THROUGHPUT_SWINGS),
}
"""Causes that are put into one installation."""
LEASE_SECONDS = 30.0
"""On a machine whose processes stand still for longer than usual leases, causes would come that nobody put in."""
