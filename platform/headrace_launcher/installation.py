"""The processes of one installation on one machine, and what each is told."""

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from headrace_launcher.embedded_redis import EmbeddedRedis, find_redis_server
from headrace_launcher.environment import LauncherEnvironment
from headrace_launcher.errors import LaunchError
from headrace_launcher.supervisor import ProcessKind

DRAIN_SECONDS = 5.0
"""How long running streams may go on after Ctrl-C."""
# One worker on one machine has nobody to gossip with.
_CELERY_OPTIONS = ("--concurrency=1", "--loglevel=WARNING", "--without-gossip", "--without-mingle")
# Its line for every periodic task would bury the others, and a demo on a container's root account is no news.
_CELERY_ENVIRON = {
    "HEADRACE_LOG_LEVEL": "WARNING",
    "PYTHONWARNINGS": "ignore:You're running the worker with superuser privileges",
}

STORES, GATEWAYS, WORKERS = 0, 1, 2
"""Tiers of the supervisor; the last ends first."""


def embedded_redis(state_dir: Path) -> tuple[ProcessKind, EmbeddedRedis]:
    """Returns the Redis of a state directory.

    Raises:
        LaunchError: This machine has no server program for it.
    """
    redis = EmbeddedRedis.in_directory(find_redis_server(), state_dir / "redis")
    return ProcessKind(name="redis", command=redis.command(), environ={}, tier=STORES), redis


def service_kinds(environment: LauncherEnvironment, *, environ: Mapping[str, str], model: str) -> list[ProcessKind]:
    """Returns gateway, worker, Celery worker and beat, in the order of their start. `environ` is common to all."""
    metrics = fresh_metrics_directory(environment.state_dir)
    django = {**environ, "PROMETHEUS_MULTIPROC_DIR": str(metrics)}
    # Celery's answers to SIGTERM and SIGQUIT need the Redis that is gone when we were killed.
    at_once = signal.SIGKILL
    python = sys.executable
    gateway = [python, "-m", "headrace.server", "--host", environment.host, "--port", str(environment.port)]
    gateway += ["--drain-deadline-seconds", str(DRAIN_SECONDS), "--drain-cut-notice-seconds", "1"]
    celery = [python, "-m", "celery", "--quiet", "--app", "headrace.celery:app"]
    schedule = environment.state_dir / "celerybeat.pid"
    schedule.unlink(missing_ok=True)
    return [
        ProcessKind(
            name="gateway",
            command=gateway,
            environ=django,
            tier=GATEWAYS,
            stop_seconds=DRAIN_SECONDS + 5,
            may_leave=True,
        ),
        worker_kind(model, "worker", environ=environ),
        ProcessKind(
            name="celery",
            command=[*celery, "worker", *_CELERY_OPTIONS],
            environ={**_CELERY_ENVIRON, **django},
            tier=WORKERS,
            death_signal=at_once,
        ),
        ProcessKind(
            name="beat",
            command=[*celery, "beat", "--loglevel", "WARNING", "--pidfile", str(schedule)],
            environ={**_CELERY_ENVIRON, **django},
            tier=WORKERS,
        ),
    ]


def worker_kind(deployment: str, name: str, *, environ: Mapping[str, str]) -> ProcessKind:
    """Returns the workers of a deployment."""
    return ProcessKind(
        name=name,
        command=[sys.executable, "-m", "headrace_worker", "--deployment", deployment],
        environ={"HEADRACE_DRAIN_SECONDS": str(DRAIN_SECONDS), **environ},
        tier=WORKERS,
        stop_seconds=DRAIN_SECONDS + 10,
        may_leave=True,
        port_variables=["HEADRACE_METRICS_PORT"],
    )


def fresh_metrics_directory(state_dir: Path) -> Path:
    """Returns an empty folder in which the processes of this run share their counters."""
    folder = state_dir / "metrics"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    return folder


def require_usable_environment(environment: LauncherEnvironment) -> None:
    """Has the gateway's own reader look at the environment, before a model is made or a store started.

    Raises:
        LaunchError: A variable cannot be used; the message starts with its name.
    """
    command = [sys.executable, "-c", "import headrace"]
    done = subprocess.run(command, env=environment.child(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LaunchError(done.stderr.strip())


def require_free_port(host: str, port: int) -> None:
    """Checks that the gateway will be able to listen.

    Raises:
        LaunchError: It will not.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        raise LaunchError(
            f"Port {port} on {host} cannot be used: {error.strerror}. Stop what listens there, or set HEADRACE_PORT."
        ) from error
