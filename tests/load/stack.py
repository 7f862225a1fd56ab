"""A gateway, a worker and their Redis as the bench runs them: real processes, configured over the wire, no database."""

import asyncio
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec
import psutil
from redis.asyncio import Redis

from headrace_launcher.embedded_redis import EmbeddedRedis, find_redis_server
from headrace_wire import redis_keys
from headrace_wire.api_key import ApiKeyToken
from headrace_wire.guard_policy import GuardAttachment, GuardPolicy, encode_policy, policy_digest
from headrace_wire.prompt_caches import PromptCacheConfig
from headrace_wire.snapshot import DeploymentConfig, TenantConfig
from tests.load.placement import Placement, move_process, on_core
from tests.support.environment import REPOSITORY_ROOT, child_environment
from tests.support.processes import Process, free_port
from tests.support.snapshots import KEY_A, api_key, publish_snapshot, snapshot

HOST = "127.0.0.1"
SECRET_KEY = "of the bench alone"
ENGINE_START_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class BenchStack:
    """What a case needs to know of the running stack."""

    port: int
    model: str
    api_key: str
    pids: dict[str, int]
    """Of `gateway`, `worker` and `redis`."""
    engine_pids: list[int]
    """The worker's engine children."""
    redis_url: str


@contextmanager
def running_stack(
    deployment: DeploymentConfig,
    placement: Placement,
    variables: Mapping[str, str] = MappingProxyType({}),
    *,
    workers: int = 1,
    gateway_options: Sequence[str] = (),
    policies: Mapping[str, GuardPolicy] = MappingProxyType({}),
    tenants: Sequence[ApiKeyToken] = (),
    prompt_caches: Sequence[PromptCacheConfig] = (),
) -> Iterator[BenchStack]:
    """Starts everything for one deployment and waits until it serves; the engine child goes to the load's core.

    `variables` are set in the environment of its processes. Of several workers, the first is the one that is measured.
    `policies` are guardrails by the tenant that they apply to. `tenants`: one more for each of these keys.
    """
    with ExitStack() as cleaning:
        folder = Path(cleaning.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        redis = EmbeddedRedis.in_directory(find_redis_server(), folder / "redis")
        environ = child_environment(
            REDIS_URL=redis.url,
            DATABASE_URL=f"sqlite:///{folder / 'unused.sqlite3'}",
            HEADRACE_STATE_DIR=str(folder),
            HEADRACE_SECRET_KEY=SECRET_KEY,
            DJANGO_SETTINGS_MODULE="headrace.settings.development",
            HEADRACE_DRAIN_SECONDS="1",
            **variables,
        )
        port = free_port()
        with on_core(placement.system):
            server = cleaning.enter_context(Process(redis.command(), name="redis"))
            server.wait_for_address(str(redis.socket))
            asyncio.run(_configure(redis.url, deployment, policies, tenants, prompt_caches))
            serving = ("headrace_worker", "--deployment", deployment.name)
            worker, *others = [_start(cleaning, environ, *serving) for _ in range(workers)]
            gateway = _start(
                cleaning, environ, "headrace.server", "--host", HOST, "--port", str(port), *gateway_options
            )
        for each in (worker, *others):
            each.wait_for_line("engine ready", timeout=ENGINE_START_SECONDS)
        gateway.wait_for_line("Listening on", timeout=ENGINE_START_SECONDS)
        engines = [child.pid for child in psutil.Process(worker.pid).children(recursive=True)]
        for pid in engines:
            move_process(pid, placement.load)
        pids = {"gateway": gateway.pid, "worker": worker.pid, "redis": server.pid}
        yield BenchStack(port, deployment.name, KEY_A.reveal(), pids, engines, redis.url)


def _start(cleaning: ExitStack, environ: dict[str, str], module: str, *arguments: str) -> Process:
    command = (sys.executable, "-m", module, *arguments)
    return cleaning.enter_context(Process(command, name=module, environ=environ, cwd=REPOSITORY_ROOT))


async def _configure(
    redis_url: str,
    deployment: DeploymentConfig,
    policies: Mapping[str, GuardPolicy],
    keys: Sequence[ApiKeyToken],
    prompt_caches: Sequence[PromptCacheConfig],
) -> None:
    async with Redis.from_url(redis_url) as redis:
        attachments = []
        for tenant_id, policy in policies.items():
            body = encode_policy(policy)
            attachments.append(GuardAttachment(digest=policy_digest(body), name=policy.name, tenant_id=tenant_id))
            await redis.set(redis_keys.guard_policy_key(policy_digest(body)), body)
        config = snapshot(1, deployment)
        config = msgspec.structs.replace(
            config,
            guardrails=attachments,
            prompt_caches=list(prompt_caches),
            tenants=[*config.tenants, *[TenantConfig(id=key.public_id, slug=key.public_id) for key in keys]],
            api_keys=[*config.api_keys, *[api_key(key, key.public_id) for key in keys]],
        )
        await publish_snapshot(redis, config)
