"""All of Headrace as real processes: Redis, gateway, workers, Celery. On SQLite, so that it starts fast."""

import itertools
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from redis import Redis

from headrace_launcher.embedded_redis import EmbeddedRedis, find_redis_server
from headrace_wire import redis_keys
from tests.support.django_console import DjangoConsole
from tests.support.environment import REPOSITORY_ROOT, child_environment
from tests.support.migrated_database import copy_migrated
from tests.support.processes import Process, free_port

START_SECONDS = 180.0
ENGINE_START_SECONDS = 400.0
GATEWAY = "gateway"
_GATEWAY_READY = "Listening on"


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
    console: DjangoConsole
    processes: list[Process] = field(default_factory=list)

    def start(
        self, *command: str | Path, name: str, ready: str, timeout: float = START_SECONDS, **environ: str
    ) -> Process:
        """Starts a process of the stack and waits for a line of its log; it ends with the stack."""
        process = self._begin(*command, name=name, **environ)
        process.wait_for_line(ready, timeout=timeout)
        return process

    def _begin(self, *command: str | Path, name: str, **environ: str) -> Process:
        process = Process(command, name=name, environ={**self.environ, **environ}, cwd=REPOSITORY_ROOT)
        self.processes.append(process)
        return process

    @property
    def gateway_pid(self) -> int:
        """Of the gateway that was started first."""
        return next(process.pid for process in self.processes if process.name == GATEWAY)

    def start_gateway(self, port: int | None = None, *options: str) -> Process:
        """Starts a gateway, on the stack's own port where none is given; `options` are the server's flags."""
        command = _gateway_command(port or urlsplit(self.base_url).port or 0, *options)
        return self.start(*command, name=GATEWAY, ready=_GATEWAY_READY)

    def kill_gateway(self) -> None:
        """Kills the gateway that was started last, without a chance to say good-bye."""
        process = next(process for process in reversed(self.processes) if process.name == GATEWAY)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def start_worker(self, deployment: str, *, ready: str = "ready") -> Process:
        """Starts a worker of a deployment and waits until it serves, or for another line of its log."""
        process = self.begin_worker(deployment)
        process.wait_for_line(ready, timeout=ENGINE_START_SECONDS)
        return process

    def begin_worker(self, deployment: str) -> Process:
        """Starts a worker of a deployment, and does not wait for it."""
        command = (sys.executable, "-m", "headrace_worker", "--deployment", deployment)
        return self._begin(*command, name=f"worker:{deployment}")

    def start_celery(self) -> Process:
        """Starts a Celery worker with beat inside."""
        options = ("--beat", "--pool", "solo", "--loglevel", "WARNING", "--schedule", "unused")
        command = (sys.executable, "-m", "celery", "-A", "headrace", "worker", *options)
        return self.start(*command, name="celery", ready="celery@|ready")

    def run_django(self, code: str) -> str:
        """Runs Python code in a Django; returns what it printed, once all gateways know what it has changed."""
        before = self.config_version()
        printed = self.console.run(code)
        if (version := self.config_version()) != before:
            for gateway in self.processes:
                if gateway.name == GATEWAY and gateway.returncode is None:
                    _wait_for_config(gateway, version)
        return printed

    def config_version(self) -> int:
        """Of the configuration that was published last."""
        with Redis.from_url(self.redis_url) as redis:
            stored: Any = redis.hget(redis_keys.snapshot_key(), "version")
        return int(stored or 0)

    def stop(self) -> None:
        """Ends its processes, the last one first."""
        for process in reversed(self.processes):
            process.stop()

    @property
    def log(self) -> str:
        """All logs, for a failed test."""
        processes = [self.console.process, *self.processes]
        return "\n\n".join(f"---- {process.name}\n{process.log}" for process in processes)


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
        console = DjangoConsole(folder, environ)
        cleaning.callback(console.process.stop)
        if environ["DATABASE_URL"].startswith("sqlite:///"):
            copy_migrated(Path(environ["DATABASE_URL"].removeprefix("sqlite:///")), environ)
        # It is a Django, too: it starts while the other one fills the database, and reads the configuration after that.
        gateway = Process(_gateway_command(port), name=GATEWAY, environ=environ, cwd=REPOSITORY_ROOT)
        cleaning.callback(gateway.stop)
        seeded = _seed(console, folder, environ, deployments, tenant)
        stack = LiveStack(
            base_url=f"http://127.0.0.1:{port}",
            ws_url=f"ws://127.0.0.1:{port}/v1/ws",
            redis_url=redis.url,
            api_key=seeded["api_key"],
            admin=Person(**seeded["admin"]),
            user=Person(**seeded["user"]),
            environ=environ,
            console=console,
        )
        cleaning.callback(stack.stop)
        workers = [stack.begin_worker(name) for name in deployments]
        stack.processes.append(gateway)
        gateway.wait_for_line(_GATEWAY_READY, timeout=START_SECONDS)
        _wait_for_config(gateway, stack.config_version())
        for worker in workers:
            worker.wait_for_line("ready", timeout=ENGINE_START_SECONDS)
        yield stack


def _gateway_command(port: int, *options: str) -> tuple[str, ...]:
    arguments = ("--host", "127.0.0.1", "--port", str(port), *options)
    return (sys.executable, "-m", "headrace.server", *arguments)


def _wait_for_config(gateway: Process, version: int) -> None:
    """Returns once a gateway has read this configuration, or a later one."""
    line = r"^(?=.*(?:config_read|gateway_started)).*version(?:=|\": )(\d+)"  # for people, or JSON
    for number in itertools.count(1):
        read = gateway.wait_for_line(line, times=number, timeout=START_SECONDS)
        if int(read[1]) >= version:
            return


def _seed(
    console: DjangoConsole,
    folder: Path,
    environ: Mapping[str, str],
    deployments: Mapping[str, Mapping[str, Any]],
    tenant: Mapping[str, Any],
) -> dict[str, Any]:
    first = next(iter(deployments))
    code = (
        "import json\n"
        "from pathlib import Path\n"
        "from django.core.management import call_command\n"
        "call_command('migrate', verbosity=0)\n"
        f"call_command('seed_demo', state_file=Path({str(folder / 'demo.json')!r}), model={first!r},\n"
        "    model_path='simulated', engine='simulated', json=True)\n"
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
    seeded: dict[str, Any] = json.loads(console.run(code).splitlines()[-1])
    return seeded
