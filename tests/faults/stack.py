"""Redis, gateways and workers as real processes, each of which may die and come back. No database."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from redis.asyncio import Redis

from headrace_launcher.embedded_redis import EmbeddedRedis, find_redis_server
from headrace_wire.snapshot import DeploymentConfig
from tests.faults.members import Member, RedisMember
from tests.support.environment import child_environment
from tests.support.processes import free_port
from tests.support.snapshots import KEY_A, publish_snapshot, snapshot

HOST = "127.0.0.1"
WORKER_LEASE_SECONDS = 1.5
GATEWAY_LEASE_SECONDS = 2.0
"""Scaled down from 5 s each. Shorter ones end by themselves where a machine of two cores is busy."""


@dataclass
class FaultStack:
    """Where everything is."""

    model: str
    redis_url: str
    redis: RedisMember
    gateways: list[Member] = field(default_factory=list)
    workers: list[Member] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    """Of the gateways."""

    @property
    def api_key(self) -> str:
        return KEY_A.reveal()

    @property
    def members(self) -> list[Member]:
        """All processes but Redis."""
        return [*self.workers, *self.gateways]

    async def wait_until_whole(self) -> None:
        """Returns when every process serves; what is down is started, what is frozen goes on."""
        for member in self.members:
            member.thaw()
            if not member.is_up:
                member.start()
        for member in self.members:
            await member.ready()

    @property
    def log(self) -> str:
        """The end of all logs, for a failed test."""
        return "\n\n".join(f"---- {member.name}\n{member.log[-6000:]}" for member in self.members)


@contextmanager
def running_stack(
    folder: Path, deployment: DeploymentConfig, *, gateways: int = 2, workers: int = 2, drain_seconds: float = 3.0
) -> Iterator[FaultStack]:
    """Starts a stack in an empty folder and waits until it serves."""
    redis = EmbeddedRedis.in_directory(find_redis_server(), folder / "redis")
    environ = child_environment(
        REDIS_URL=redis.url,
        DATABASE_URL=f"sqlite:///{folder / 'unused.sqlite3'}",
        HEADRACE_STATE_DIR=str(folder),
        HEADRACE_SECRET_KEY="of the fault tests alone",
        DJANGO_SETTINGS_MODULE="headrace.settings.development",
    )
    with ExitStack() as cleaning:
        stack = FaultStack(deployment.name, redis.url, RedisMember(redis))
        cleaning.callback(stack.redis.stop)
        stack.redis.start()
        asyncio.run(_configure(stack, deployment))
        for number in range(workers):
            stack.workers.append(_worker(f"worker-{number}", deployment.name, environ))
        for number in range(gateways):
            stack.ports.append(free_port())
            stack.gateways.append(_gateway(f"gateway-{number}", stack.ports[-1], environ, drain_seconds))
        for member in stack.members:
            cleaning.callback(member.stop)
        asyncio.run(stack.wait_until_whole())
        yield stack


def _worker(name: str, deployment: str, environ: dict[str, str]) -> Member:
    leases = {
        "HEADRACE_LEASE_SECONDS": str(WORKER_LEASE_SECONDS),
        "HEADRACE_RENEW_SECONDS": str(WORKER_LEASE_SECONDS / 5),
        "HEADRACE_DRAIN_SECONDS": "1",
        "HEADRACE_QUARANTINE_AFTER": "0",  # they die more often here than on a machine that works
    }
    return Member(name, _python("headrace_worker", "--deployment", deployment), {**environ, **leases}, ["engine ready"])


def _gateway(name: str, port: int, environ: dict[str, str], drain_seconds: float) -> Member:
    options = {
        "--host": HOST,
        "--port": port,
        "--drain-deadline-seconds": drain_seconds,
        "--drain-cut-notice-seconds": drain_seconds / 3,
        "--drain-jitter-seconds": 0.2,
    }
    arguments = [str(text) for option in options.items() for text in option]
    lease = {"HEADRACE_LEASE_SECONDS": str(GATEWAY_LEASE_SECONDS)}
    return Member(
        name, _python("headrace.server", *arguments), {**environ, **lease}, ["Listening on", "gateway_started"]
    )


def _python(module: str, *arguments: str) -> Sequence[str]:
    return (sys.executable, "-m", module, *arguments)


async def _configure(stack: FaultStack, deployment: DeploymentConfig) -> None:
    await stack.redis.ready()
    async with Redis.from_url(stack.redis_url) as redis:
        await publish_snapshot(redis, snapshot(1, deployment))
