"""All of Headrace as real processes: Redis, gateway, workers, Celery. On SQLite, so that it starts fast."""

import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from headrace_launcher.embedded_redis import EmbeddedRedis, find_redis_server
from tests.support.environment import REPOSITORY_ROOT, child_environment
from tests.support.processes import Process, free_port

START_SECONDS = 60.0
ENGINE_START_SECONDS = 180.0
GATEWAY = "gateway"


@dataclass(frozen=True)
class Person:
    """Somebody who can sign in."""

    email: str
    password: str


@dataclass(frozen=True)
class LiveStack:
    """Where everything is, and how to start more of it."""

    base_url: str
    ws_url: str
    redis_url: str
    api_key: str
    admin: Person
    user: Person
    environ: Mapping[str, str]
    processes: list[Process] = field(default_factory=list)

    def start(
        self, *command: str | Path, name: str, ready: str, timeout: float = START_SECONDS, **environ: str
    ) -> Process:
        """Starts a process of the stack and waits for a line of its log; it ends with the stack."""
        process = Process(command, name=name, environ={**self.environ, **environ}, cwd=REPOSITORY_ROOT)
        self.processes.append(process)
        process.wait_for_line(ready, timeout=timeout)
        return process

    @property
    def gateway_pid(self) -> int:
        """Of the gateway that was started first."""
        return next(process.pid for process in self.processes if process.name == GATEWAY)

    def start_gateway(self, port: int | None = None, *options: str) -> Process:
        """Starts a gateway, on the stack's own port where none is given; `options` are the server's flags."""
        arguments = ("--host", "127.0.0.1", "--port", str(port or urlsplit(self.base_url).port), *options)
        return self.start(sys.executable, "-m", "headrace.server", *arguments, name=GATEWAY, ready="Listening on")

    def kill_gateway(self) -> None:
        """Kills the gateway that was started last, without a chance to say good-bye."""
        process = next(process for process in reversed(self.processes) if process.name == GATEWAY)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def start_worker(self, deployment: str, *, ready: str = "ready") -> Process:
        """Starts a worker of a deployment and waits until it serves, or for another line of its log."""
        command = (sys.executable, "-m", "headrace_worker", "--deployment", deployment)
        return self.start(*command, name=f"worker:{deployment}", ready=ready, timeout=ENGINE_START_SECONDS)

    def start_celery(self) -> Process:
        """Starts a Celery worker with beat inside."""
        options = ("--beat", "--pool", "solo", "--loglevel", "WARNING", "--schedule", "unused")
        command = (sys.executable, "-m", "celery", "-A", "headrace", "worker", *options)
        return self.start(*command, name="celery", ready="celery@|ready")

    def run_django(self, code: str) -> str:
        """Runs Python code in Django's shell, in a process of its own; returns what it printed."""
        return run_to_end([sys.executable, "manage.py", "shell", "--no-imports", "-c", code], self.environ)

    def stop(self) -> None:
        """Ends its processes, the last one first."""
        for process in reversed(self.processes):
            process.stop()

    @property
    def log(self) -> str:
        """All logs, for a failed test."""
        return "\n\n".join(f"---- {process.name}\n{process.log}" for process in self.processes)


def run_to_end(command: Sequence[str | Path], environ: Mapping[str, str]) -> str:
    """Runs a command; returns its output.

    Raises:
        AssertionError: It failed; the message has its output.
    """
    with Process(command, environ=environ, cwd=REPOSITORY_ROOT) as process:
        status = process.wait(timeout=START_SECONDS)
        assert status == 0, f"{command} ended with {status}:\n{process.log}"
        return process.log


@contextmanager
def running_stack(
    folder: Path,
    deployments: Mapping[str, Mapping[str, Any]],
    *,
    tenant: Mapping[str, Any] = MappingProxyType({}),
    **variables: str,
) -> Iterator[LiveStack]:
    """Starts a stack in an empty folder with deployments: name to model fields, `engine_args` among them.

    They are simulated where they do not say otherwise. `tenant` has fields of the seeded tenants; `variables` are set
    in the environment of all processes.
    """
    redis = EmbeddedRedis.in_directory(find_redis_server(), folder / "redis")
    port = free_port()
    settled = {
        "REDIS_URL": redis.url,
        "DATABASE_URL": f"sqlite:///{folder / 'headrace.sqlite3'}",
        "HEADRACE_SETTINGS": "development",
        "DJANGO_SETTINGS_MODULE": "headrace.settings.development",
        "HEADRACE_STATE_DIR": str(folder),
        "HEADRACE_SECRET_KEY": "of the tests alone",
    }
    environ = child_environment(**{**settled, **variables})
    with ExitStack() as cleaning:
        server = cleaning.enter_context(Process(redis.command(), name="redis"))
        server.wait_for_address(str(redis.socket))
        run_to_end([sys.executable, "manage.py", "migrate", "--verbosity", "0"], environ)
        seeded = _seed(folder, environ, deployments, tenant)
        stack = LiveStack(
            base_url=f"http://127.0.0.1:{port}",
            ws_url=f"ws://127.0.0.1:{port}/v1/ws",
            redis_url=redis.url,
            api_key=seeded["api_key"],
            admin=Person(**seeded["admin"]),
            user=Person(**seeded["user"]),
            environ=environ,
        )
        cleaning.callback(stack.stop)
        for name in deployments:
            stack.start_worker(name)
        stack.start_gateway()
        yield stack


def _seed(
    folder: Path,
    environ: Mapping[str, str],
    deployments: Mapping[str, Mapping[str, Any]],
    tenant: Mapping[str, Any],
) -> dict[str, Any]:
    first = next(iter(deployments))
    demo = ("--state-file", str(folder / "demo.json"), "--model", first, "--model-path", "simulated")
    printed = run_to_end([sys.executable, "manage.py", "seed_demo", *demo, "--engine", "simulated", "--json"], environ)
    code = (
        "import json\n"
        "from apps.deployments.models import ModelDeployment\n"
        "from apps.deployments.services import deployment_create, deployment_update\n"
        f"for name, fields in json.loads({json.dumps(json.dumps(deployments))}).items():\n"
        "    found = ModelDeployment.objects.filter(name=name).first()\n"
        "    row = found or ModelDeployment(name=name, model='simulated', engine='simulated')\n"
        "    for field, value in fields.items(): setattr(row, field, value)\n"
        "    (deployment_update if found else deployment_create)(deployment=row)\n"
        "from apps.tenants.models import Tenant\n"
        "from apps.tenants.services import tenant_update\n"
        "for tenant in Tenant.objects.all():\n"
        f"    for field, value in {dict(tenant)!r}.items(): setattr(tenant, field, value)\n"
        "    tenant_update(tenant=tenant)\n"
    )
    run_to_end([sys.executable, "manage.py", "shell", "--no-imports", "-c", code], environ)
    seeded: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return seeded
