"""Faults, drawn by a seed: what is struck, how it comes back, and that a spare is there meanwhile."""

import asyncio
import random
import time
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from tests.faults.members import Member
from tests.faults.stack import WORKER_LEASE_SECONDS, FaultStack

DRAIN_SECONDS = 120.0
FREEZE_SECONDS = (0.2, 3 * WORKER_LEASE_SECONDS)
"""Some end before the lease does, most do not."""
DOWN_SECONDS = (0.1, 1.5)
"""How long Redis stays away."""
FORGOTTEN_SECONDS = 1.0
"""What an append-only file that is synced every second may lack."""


class Fault(StrEnum):
    """What may happen to a process."""

    KILL_WORKER = "kill -9 of a worker"
    FREEZE_WORKER = "SIGSTOP of a worker"
    KILL_GATEWAY = "kill -9 of a gateway"
    DRAIN_GATEWAY = "SIGTERM of a gateway"
    RESTART_REDIS = "Redis restarted"
    ROLL_BACK_REDIS = "Redis restarted, last second lost"


class Strike(Struct, frozen=True):
    """A fault as it happened."""

    fault: Fault
    member: str
    at: float
    """`monotonic`."""
    at_ms: int
    """The wall clock, which is Redis' too."""
    gateway: int | None = None
    incarnations: frozenset[str] = frozenset()
    """Leases that the struck worker held."""
    seconds: float = 0.0
    """How long it was frozen or away."""


class Striker:
    """Strikes until cancelled, and brings back what it struck. Of each kind, one process at a time is struck."""

    def __init__(self, stack: FaultStack, rng: random.Random, weights: Mapping[Fault, int]) -> None:
        self.strikes: list[Strike] = []
        self._stack = stack
        self._rng = rng
        self._weights = weights
        self._struck: set[str] = set()
        """Kinds (`worker`, `gateway`, `redis`) of which one process is not back yet."""
        self._recoveries = asyncio.TaskGroup()

    async def run(self, calm_seconds: tuple[float, float], over: asyncio.Event) -> None:
        """Strikes, with a pause of `calm_seconds` between, until `over`; returns when all is back."""
        async with self._recoveries:
            while not over.is_set():
                try:
                    async with asyncio.timeout(self._rng.uniform(*calm_seconds)):
                        await over.wait()
                except TimeoutError:
                    self._strike()

    def _strike(self) -> None:
        possible = [fault for fault in self._weights if _kind(fault) not in self._struck]
        if not possible:
            return
        (fault,) = self._rng.choices(possible, [self._weights[fault] for fault in possible])
        member = self._rng.choice(
            {"worker": self._stack.workers, "gateway": self._stack.gateways}.get(_kind(fault), [self._stack.redis])
        )
        self._struck.add(_kind(fault))
        self._recoveries.create_task(self._inflict(fault, member), name=f"{fault} {member.name}")

    async def _inflict(self, fault: Fault, member: Member) -> None:
        if fault is Fault.FREEZE_WORKER:
            await self._freeze(member)
        elif _kind(fault) == "redis":
            await self._restart_redis(fault)
        elif fault is Fault.DRAIN_GATEWAY:
            self._note(fault, member)
            assert await member.drain(seconds=DRAIN_SECONDS) == 0, member.log[-4000:]
            member.start()
        else:
            self._note(fault, member)
            member.kill()
            member.start()
        await member.ready()
        self._struck.discard(_kind(fault))

    async def _freeze(self, member: Member) -> None:
        seconds = self._rng.uniform(*FREEZE_SECONDS)
        self._note(Fault.FREEZE_WORKER, member, seconds=seconds)
        member.freeze()
        await asyncio.sleep(seconds)
        member.thaw()
        await asyncio.sleep(WORKER_LEASE_SECONDS)  # until it has noticed, and has a new name where it needs one

    async def _restart_redis(self, fault: Fault) -> None:
        redis, seconds = self._stack.redis, self._rng.uniform(*DOWN_SECONDS)
        written = redis.written_bytes
        if fault is Fault.ROLL_BACK_REDIS:
            await asyncio.sleep(FORGOTTEN_SECONDS)
        self._note(fault, redis, seconds=seconds)
        redis.kill()
        if fault is Fault.ROLL_BACK_REDIS:
            redis.forget_after(written)
        await asyncio.sleep(seconds)
        redis.start()

    def _note(self, fault: Fault, member: Member, *, seconds: float = 0.0) -> None:
        gateways = self._stack.gateways
        strike = Strike(
            fault,
            member.name,
            time.monotonic(),
            int(time.time() * 1000),
            gateways.index(member) if member in gateways else None,
            frozenset(member.incarnations),
            seconds,
        )
        self.strikes.append(strike)


def _kind(fault: Fault) -> str:
    if fault in (Fault.RESTART_REDIS, Fault.ROLL_BACK_REDIS):
        return "redis"
    return "gateway" if fault in (Fault.KILL_GATEWAY, Fault.DRAIN_GATEWAY) else "worker"
