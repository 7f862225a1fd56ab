"""The arms of a comparison: the endpoint itself, and each system that stands before an engine like it."""

import asyncio
import os
import shutil
import signal
import string
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil
from redis.asyncio import Redis

from headrace_launcher.embedded_redis import EmbeddedRedis, find_redis_server
from headrace_wire.response_cache_terms import ResponseCacheTerms
from headrace_wire.snapshot import DeploymentConfig, EngineKind
from tests.load.peers.endpoint import HOST, LISTENING
from tests.load.peers.environments import LITELLM_ENVIRONMENT, Progress
from tests.load.placement import Placement, on_core
from tests.load.stack import running_stack
from tests.support.environment import REPOSITORY_ROOT, child_environment
from tests.support.processes import Process, free_port
from tests.support.snapshots import publish_snapshot, snapshot

DIRECT, HEADRACE, LITELLM, LITELLM_BARE, NGINX = "direct", "Headrace", "LiteLLM", "LiteLLM bare", "nginx"
LITELLM_CACHE = "LiteLLM cache"
_LITELLM_CONFIGS = {
    LITELLM: "litellm_keys.yaml",
    LITELLM_BARE: "litellm_bare.yaml",
    LITELLM_CACHE: "litellm_cache.yaml",
}
MODEL = "bench"
LITELLM_KEY = "sk-of-the-bench-alone"
START_SECONDS = 180.0
SPARE_SLOTS = 4
"""Of the engine, for requests beside the streams."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A system that answers OpenAI's chat completions, and its processes."""

    name: str
    port: int
    key: str
    pids: dict[str, int]
    """On the system's core, by what they are; the one called `gateway` faces the clients. None for `direct`."""
    engine_pids: list[int] = field(default_factory=list)
    """On the load's core."""
    stopped_meanwhile: bool = False
    """Whether it can stand still while others are measured."""

    def pause(self) -> None:
        """Has it use nothing while others are measured."""
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        """Ends a pause."""
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        if self.stopped_meanwhile:
            for pid in self.pids.values():
                os.kill(pid, number)


def deployment(*, streams: int, ttft_ms: float, tokens_per_second: float) -> DeploymentConfig:
    """Returns Headrace's engine, in a child process so that its CPU is not the worker's."""
    return DeploymentConfig(
        id=MODEL,
        name=MODEL,
        model="simulated",
        engine=EngineKind.SIMULATED,
        engine_args={"ttft_ms": ttft_ms, "tpot_ms": 1000 / tokens_per_second, "process": True},
        max_num_seqs=streams + SPARE_SLOTS,
        queue_limit=4096,
    )


@contextmanager
def running_arms(
    names: Sequence[str],
    engine: DeploymentConfig,
    placement: Placement,
    *,
    progress: Progress,
    response_caches: Sequence[ResponseCacheTerms] = (),
) -> Iterator[list[Arm]]:
    """Starts the direct arm and those of these names, all before engines of one pace; those that can be are paused."""
    if _LITELLM_CONFIGS.keys() & set(names):
        LITELLM_ENVIRONMENT.ensure(progress=progress)
    with ExitStack() as cleaning:
        direct = cleaning.enter_context(_endpoint(engine, placement))
        arms = [direct]
        for name in names:
            progress(f"starting {name}")
            arms.append(cleaning.enter_context(_running(name, engine, direct, placement, response_caches)))
        for arm in arms:
            arm.pause()
            cleaning.callback(arm.go_on)  # a process that is stopped does not hear that it shall end
        yield arms


@contextmanager
def _running(
    name: str,
    engine: DeploymentConfig,
    direct: Arm,
    placement: Placement,
    response_caches: Sequence[ResponseCacheTerms],
) -> Iterator[Arm]:
    if name == HEADRACE:
        with running_stack(engine, placement) as stack:
            asyncio.run(_keep_answers(stack.redis_url, engine, response_caches))
            yield Arm(name, stack.port, stack.api_key, stack.pids, stack.engine_pids)
        return
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder, on_core(placement.system):
        start = _nginx if name == NGINX else _litellm
        with start(name, direct, Path(folder)) as arm:
            yield arm


async def _keep_answers(redis_url: str, engine: DeploymentConfig, policies: Sequence[ResponseCacheTerms]) -> None:
    if policies:
        config = msgspec.structs.replace(snapshot(2, engine), response_caches=list(policies))
        async with Redis.from_url(redis_url) as redis:
            await publish_snapshot(redis, config)


@contextmanager
def _endpoint(engine: DeploymentConfig, placement: Placement) -> Iterator[Arm]:
    port, args = free_port(), engine.engine_args
    options = {
        "port": port,
        "ttft-ms": args["ttft_ms"],
        "tpot-ms": args["tpot_ms"],
        "slots": engine.max_num_seqs,
    }
    pairs = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    command = (sys.executable, "-m", "tests.load.peers.endpoint", *pairs)
    with on_core(placement.load):
        process = Process(command, name="endpoint", environ=child_environment(), cwd=REPOSITORY_ROOT)
    with process:
        process.wait_for_line(LISTENING)
        yield Arm(DIRECT, port, "none", {}, [process.pid])


@contextmanager
def _litellm(name: str, direct: Arm, folder: Path) -> Iterator[Arm]:
    port = free_port()
    command = (
        LITELLM_ENVIRONMENT.program,
        *("--config", Path(__file__).with_name(_LITELLM_CONFIGS[name])),
        *("--host", HOST),
        *("--port", str(port)),
        *("--num_workers", "1"),
        *("--keepalive_timeout", "75"),  # as long as Headrace keeps an idle connection
    )
    environ = {
        "BENCH_ENDPOINT": f"http://{HOST}:{direct.port}/v1",
        "BENCH_KEY": LITELLM_KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it asks the internet for prices
    }
    pids = {}
    with ExitStack() as cleaning:
        if name != LITELLM_BARE:
            redis = EmbeddedRedis.in_directory(find_redis_server(), folder / "redis")
            server = cleaning.enter_context(Process(redis.command(), name="redis of LiteLLM"))
            server.wait_for_address(str(redis.socket))
            environ["REDIS_URL"] = redis.url
            pids["redis"] = server.pid
        # Its own interpreter, without our folders on its path.
        process = cleaning.enter_context(Process(command, name=name, environ={**_bare_environment(), **environ}))
        process.wait_for_line("Uvicorn running on", timeout=START_SECONDS)
        yield Arm(name, port, LITELLM_KEY, {"gateway": process.pid, **pids}, direct.engine_pids, stopped_meanwhile=True)


@contextmanager
def _nginx(name: str, direct: Arm, folder: Path) -> Iterator[Arm]:
    port, template = free_port(), string.Template(Path(__file__).with_name("nginx.conf").read_text("utf-8"))
    config = folder / "nginx.conf"
    values = {"folder": str(folder), "endpoint": f"{HOST}:{direct.port}", "listen": f"{HOST}:{port}"}
    config.write_text(template.substitute(values), "utf-8")
    program = nginx_program()
    assert program is not None
    with Process((program, "-p", folder, "-c", config), name=name) as process:
        process.wait_for_address((HOST, port))
        (worker,) = psutil.Process(process.pid).children()
        yield Arm(name, port, "none", {"gateway": worker.pid}, direct.engine_pids)


def nginx_program() -> str | None:
    """Returns where nginx is; None where it is not installed, and that arm is left out."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _bare_environment() -> dict[str, str]:
    return {name: value for name, value in child_environment().items() if name not in {"PYTHONPATH", "REDIS_URL"}}
