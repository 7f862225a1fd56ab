"""Fixtures for every test: a real Redis, a real database, real processes. One of each service per test process."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from headrace_launcher.embedded_redis import EmbeddedRedis, find_redis_server
from tests.support.environment import SupportEnvironment, child_environment
from tests.support.postgres_server import running_postgres
from tests.support.processes import Process, free_port

pytest_plugins = ["tests.support.records"]

Spawn = Callable[..., Process]


@pytest.fixture(scope="session")
def support_environment() -> SupportEnvironment:
    return SupportEnvironment.read()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis of this test process on a unix socket, empty at first; append-only file on, as in real life."""
    with tempfile.TemporaryDirectory(prefix="headrace-redis-") as folder:
        redis = EmbeddedRedis.in_directory(find_redis_server(), Path(folder))
        with Process(redis.command(), name="redis") as server:
            server.wait_for_address(str(redis.socket))
            yield redis.url


@pytest.fixture(scope="session")
def postgres_url(support_environment: SupportEnvironment) -> Iterator[str]:
    """A PostgreSQL of this test process: the one named by HEADRACE_TEST_DATABASE_URL, else one started here."""
    if support_environment.database_url is not None:
        yield support_environment.database_url
        return
    with running_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    request: pytest.FixtureRequest,
    support_environment: SupportEnvironment,
    django_db_modify_db_settings_parallel_suffix: None,
) -> None:
    """Points Django's tests at PostgreSQL, or at SQLite where HEADRACE_TEST_DATABASE says so."""
    if support_environment.database == "sqlite" or support_environment.database_url is not None:
        return
    from tests.support.database_choice import use_database  # noqa: PLC0415  Django is set up only for its own tests

    use_database(request.getfixturevalue("postgres_url"))


@pytest.fixture
def port() -> int:
    """A free port on 127.0.0.1."""
    return free_port()


@pytest.fixture
def spawn(request: pytest.FixtureRequest) -> Iterator[Spawn]:
    """Starts real processes and ends them after the test, the last one first; a failed test shows their logs.

    `spawn(command, name=, environ={...}, ready=)`: `environ` is added to this process's; `ready` is a pattern of a log
    line, or an address (unix socket path as `Path`, or host and port) that must accept a connection.
    """
    running: list[Process] = []

    def start(
        command: Sequence[str | Path],
        *,
        name: str = "",
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        ready: str | Path | tuple[str, int] | None = None,
        timeout: float = 30.0,
    ) -> Process:
        process = Process(command, name=name, environ=child_environment(**(environ or {})), cwd=cwd)
        running.append(process)
        if isinstance(ready, str):
            process.wait_for_line(ready, timeout=timeout)
        elif ready is not None:
            process.wait_for_address(str(ready) if isinstance(ready, Path) else ready, timeout=timeout)
        return process

    yield start
    for process in reversed(running):
        process.stop()
        request.node.add_report_section("teardown", f"log of {process.name}", process.log)
