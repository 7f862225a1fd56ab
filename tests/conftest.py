"""Fixtures for every test: a real Redis, a real database, real processes. One of each service per test process."""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from headrace_launcher.embedded_redis import EmbeddedRedis, find_redis_server
from tests.support import dealing
from tests.support.environment import SupportEnvironment, child_environment
from tests.support.machine_programs import ProgramMissingError, ensure_program
from tests.support.postgres_server import running_postgres
from tests.support.processes import PATIENCE_SECONDS, Process, free_port
from tests.support.tiny_model import tiny_model_in

pytest_plugins = ["tests.support.records"]

settings.register_profile("headrace", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("headrace")

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
        timeout: float = PATIENCE_SECONDS,
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


@pytest.fixture(scope="session")
def tiny_model(support_environment: SupportEnvironment) -> Path:
    """Folder of a random Llama of 2 layers with SmolLM2's tokenizer; made once per clone."""
    return tiny_model_in(support_environment.cache_dir)


@pytest.fixture(scope="session")
def chromium(support_environment: SupportEnvironment) -> Path:
    """Path of Debian's Chromium."""
    return _program(support_environment, "chromium", package="chromium")


@pytest.fixture(scope="session")
def nginx(support_environment: SupportEnvironment) -> Path:
    """Path of nginx, to be run by tests with a configuration of their own."""
    return _program(support_environment, "nginx", package="nginx-light")


@pytest.fixture(scope="session")
def promtool(support_environment: SupportEnvironment) -> Path:
    """Path of Prometheus' own checker of rules."""
    return _program(support_environment, "promtool", package="prometheus")


def _program(environment: SupportEnvironment, program: str, *, package: str) -> Path:
    try:
        return ensure_program(program, package=package)
    except ProgramMissingError as error:
        if environment.is_ci:
            raise
        pytest.skip(str(error))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Has a stage of few tests (`-m "browser and ..."`) not load the files that have none of them."""
    stage = re.match(r"(alone|browser|engine|faults)($| and )", config.option.markexpr)
    if stage is None or not collection_path.match("test_*.py"):
        return None
    return True if f"mark.{stage[1]}" not in collection_path.read_text("utf-8") else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Marks what uses the database, so that `make test` can run it again on SQLite; puts tests in order."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if item.get_closest_marker("django_db") or {"db", "transactional_db"}.intersection(fixtures):
            item.add_marker("database")
    yield
    items[:] = dealing.deal(items)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Names long texts by their argument: they are unreadable as ids, and random ones differ between processes."""
    return argname if isinstance(val, str) and len(val) > 40 else None
