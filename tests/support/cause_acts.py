"""What is done to processes, files and policies of an installation so that a cause of slowness is there, or gone."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import psutil
from redis import Redis

from headrace_wire import codec, redis_keys
from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.fleet import WorkerInfo
from headrace_wire.functions import Reply
from headrace_wire.latency.store import SLOT_SECONDS
from tests.support.gpu_stand_in import gpu_fill, gpu_install
from tests.support.live_stack import LiveStack
from tests.support.processes import Process
from tests.support.steady_load import SteadyLoad

if TYPE_CHECKING:
    from tests.support.injected_causes import Strength

KEPT = "The water turns the wheel and the wheel turns the stone, and over the weir it falls again; nobody may say so."
ANSWER = KEPT[:100]
"""Begins as what a guardrail blocks, which cannot let go of any of it before its end. Each byte is a token."""
UNUSED = "unused"
"""A deployment whose worker nobody asks for anything."""
USUAL_SHARE, FULL_SHARE = 0.5, 0.97
"""Of the GPU's memory."""
GPU_SECONDS = 60.0
"""Workers read it every ten seconds, and say so every second."""
RUNS_SHARE = 1 / 3
"""For how long a process that stutters runs, in the mean, of the time for which it stands still."""
SPELL_SECONDS = 2 * SLOT_SECONDS
"""Spells of stuttering and of none, each of whole samples."""

GUARD = f"""
from apps.accounts.models import ApiKey
from apps.accounts.services import api_key_create
from apps.guardrails.models import GuardrailAttachment, GuardrailPolicy, GuardrailRule
from apps.guardrails.services import policy_save
from apps.tenants.models import Tenant

tenant = Tenant.objects.get(slug="demo")
key, token = api_key_create(api_key=ApiKey(tenant=tenant, name="guarded"))
policy_save(
    policy=GuardrailPolicy(tenant=tenant, name="Nobody", mode="enforced"),
    rules=[GuardrailRule(kind="literals", words=[{KEPT!r}], action="block")],
    attachments=[GuardrailAttachment(api_key=key)],
)
print(token.reveal())
"""


DEPLOY = """
import json
from apps.deployments.models import ModelDeployment
from apps.deployments.services import deployment_create

for name, fields in json.loads({deployments!r}).items():
    deployment_create(deployment=ModelDeployment(name=name, model="simulated", engine="simulated", **fields))
"""


def deployments_create(stack: LiveStack, deployments: Mapping[str, Mapping[str, Any]]) -> None:
    """Makes deployments that have no worker yet: a machine on which a dozen start at once starts nothing else."""
    stack.run_django(DEPLOY.format(deployments=json.dumps(deployments)))


def guarded_key(stack: LiveStack) -> str:
    """Makes a key under a policy, and returns it."""
    return stack.run_django(GUARD).splitlines()[-1]


def gpu_prepare(folder: Path) -> str:
    """Gives the workers of a stack in this folder a GPU; returns their PYTHONPATH."""
    return gpu_install(folder / "gpu", USUAL_SHARE)


class _Hiccups:
    """Stops a process for a moment, and lets it run for another, until it is told to end."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._random = Random(1)

    def begin(self, pid: int, stopped: float, *, spell: float = 0.0) -> None:
        """Begins; with a `spell`, so many seconds of it take turns with as many without, by the wall clock."""
        self._task = asyncio.create_task(self._run(pid, stopped, spell))

    async def end(self) -> None:
        """Ends; the process runs again."""
        if self._task is not None:
            await cancel_and_wait(self._task)
            self._task = None

    async def _run(self, pid: int, stopped: float, spell: float) -> None:
        try:
            while True:
                if spell and time.time() // spell % 2:
                    await asyncio.sleep(spell - time.time() % spell)
                    continue
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(stopped)
                os.kill(pid, signal.SIGCONT)
                # Clients that wait together fall into step with an even beat, between its stops.
                await asyncio.sleep(stopped * RUNS_SHARE * self._random.uniform(0.5, 1.5))
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


_hiccups = _Hiccups()


async def gateway_stutters(stack: LiveStack, _load: SteadyLoad, strength: "Strength") -> None:
    """A request and a first token wait for it, each a good part of the time for which it stands still."""
    _hiccups.begin(stack.gateway_pid, strength.seconds / 2)


async def engine_stutters_at_times(stack: LiveStack, load: SteadyLoad, strength: "Strength") -> None:
    """It is slow, and as fast as ever, by turns."""
    _hiccups.begin(_engine_pid(stack, load), strength.seconds / 3, spell=SPELL_SECONDS)


async def hiccups_end(_stack: LiveStack, _load: SteadyLoad, _strength: "Strength") -> None:
    """All processes run."""
    await _hiccups.end()


async def gpu_fills(stack: LiveStack, load: SteadyLoad, strength: "Strength") -> None:
    """Its memory is full, and the engine on it slow."""
    await _gpu_is(stack, load, FULL_SHARE)
    _hiccups.begin(_engine_pid(stack, load), strength.seconds / 3)


async def gpu_empties(stack: LiveStack, load: SteadyLoad, _strength: "Strength") -> None:
    """All is as before."""
    await _hiccups.end()
    await _gpu_is(stack, load, USUAL_SHARE)


async def worker_stops(stack: LiveStack, load: SteadyLoad, _strength: "Strength") -> None:
    """The deployment's only one, once its streams have ended."""
    await asyncio.to_thread(_worker(stack, load.deployment).stop, timeout=60)


async def worker_ends(stack: LiveStack, deployment: str) -> None:
    """Nobody will ask it again; where it never began there is nothing to end."""
    for process in stack.processes:
        if process.name == f"worker:{deployment}" and process.returncode is None:
            await asyncio.to_thread(process.stop)


async def worker_starts(stack: LiveStack, load: SteadyLoad, _strength: "Strength") -> None:
    """There is one again; where one runs still, nothing is done."""
    if _worker(stack, load.deployment).returncode is not None:
        await asyncio.to_thread(stack.start_worker, load.deployment)


async def worker_restarts(stack: LiveStack, load: SteadyLoad, strength: "Strength") -> None:
    """Streams wait until it has loaded."""
    await worker_stops(stack, load, strength)
    await worker_starts(stack, load, strength)


def _worker(stack: LiveStack, deployment: str) -> Process:
    """Returns the newest one."""
    return next(one for one in reversed(stack.processes) if one.name == f"worker:{deployment}")


def _engine_pid(stack: LiveStack, load: SteadyLoad) -> int:
    """Returns the process in which a worker's engine steps."""
    (engine,) = [
        child.pid
        for child in psutil.Process(_worker(stack, load.deployment).pid).children(recursive=True)
        if "headrace_worker.simulated_process" in child.cmdline()
    ]
    return engine


async def _gpu_is(stack: LiveStack, load: SteadyLoad, share: float) -> None:
    """Returns once the deployment's worker has said that so much of its GPU's memory is in use."""
    gpu_fill(Path(stack.environ["HEADRACE_STATE_DIR"]) / "gpu", share)

    def is_so(info: WorkerInfo) -> bool:
        usage = info.gpu.memory_usage if info.gpu is not None else None
        return usage is not None and abs(usage - share) < 0.01

    async with asyncio.timeout(GPU_SECONDS):
        while not await asyncio.to_thread(_all_say, stack, load.deployment, is_so):  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.2)


def _all_say(stack: LiveStack, deployment: str, is_so: Callable[[WorkerInfo], bool]) -> bool:
    with Redis.from_url(stack.redis_url) as redis:
        rows: Reply = redis.hgetall(redis_keys.workers_key())
    infos = [info for raw in rows.values() if (info := codec.decode(raw, WorkerInfo)).deployment == deployment]
    return bool(infos) and all(map(is_so, infos))
