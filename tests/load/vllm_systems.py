"""The two systems of the vLLM case: `vllm serve`, and Headrace with the same model and flags."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.config import prepare_vllm_environment
from headrace_worker.vllm_arguments import engine_arguments
from tests.load.placement import Placement
from tests.load.stack import ENGINE_START_SECONDS, HOST, running_stack
from tests.support.environment import child_environment
from tests.support.processes import Process, free_port

BARE, HEADRACE = "vllm serve", "Headrace"
SYSTEMS = (BARE, HEADRACE)


@dataclass(frozen=True, slots=True)
class Server:
    """One that runs."""

    port: int
    key: str
    pids: Mapping[str, Sequence[int]]
    """By what they are: `engine` is EngineCore with what started it, the others are between it and the client."""
    log: Callable[[], str] = lambda: ""
    """Returns the end of what it has said."""

    def has_ended(self) -> bool:
        """Whether one of its processes is not there any more."""
        return any(_has_ended(pid) for pids in self.pids.values() for pid in pids)


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def running(system: str, deployment: DeploymentConfig, *, name: str) -> Iterator[Server]:
    """Starts a system and waits until it serves."""
    if system == HEADRACE:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            # As in `make up`: streams are checkpointed.
            variables = {"HEADRACE_CHECKPOINT_DIR": folder}
            with running_stack(deployment, Placement(None, None), variables) as stack:
                pids = {name: [pid] for name, pid in stack.pids.items()}
                yield Server(stack.port, stack.api_key, {**pids, "engine": stack.engine_pids})
        return
    port = free_port()
    command = serve_command(deployment, name=name, port=port)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        Process(command, name=system, environ=_serve_environment(folder)) as server,
    ):
        server.wait_for_line("Application startup complete", timeout=ENGINE_START_SECONDS)
        children = [child.pid for child in psutil.Process(server.pid).children(recursive=True)]
        yield Server(port, "none", {"front": [server.pid], "engine": children}, lambda: server.log[-3000:])


def serve_command(deployment: DeploymentConfig, *, name: str, port: int) -> list[str]:
    """Returns the command line of `vllm serve` for what a worker starts its engine with."""
    arguments = engine_arguments(deployment, on_cpu=not _has_gpu())
    model = arguments.pop("model")
    flags = [text for option, value in arguments.items() for text in _flag(option, value)]
    own = ["--host", HOST, "--port", str(port), "--served-model-name", name]
    return [sys.executable, "-m", "tests.load.vllm_command", "serve", model, *own, *flags]


def _flag(name: str, value: object) -> list[str]:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}"] if value else []  # what a worker turns off is off in vLLM by itself
    return [f"--{option}", json.dumps(value) if isinstance(value, dict) else str(value)]


def _serve_environment(folder: str) -> dict[str, str]:
    environ = child_environment()
    prepare_vllm_environment(error_file=Path(folder) / "error.json", environ=environ)
    # The server says that it is ready on a level that the worker's engine is silent on.
    return {**environ, "VLLM_LOGGING_LEVEL": "INFO"}


def _has_gpu() -> bool:
    return os.path.exists("/dev/nvidiactl")  # noqa: PTH110  importing torch to ask it takes seconds
