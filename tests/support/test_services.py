"""That the services tests stand on are the real ones, and that a process that fails says why."""

import signal
import sys
from pathlib import Path

import psutil
import pytest
import redis
from django.db import connection

from tests.conftest import Spawn
from tests.support.environment import SupportEnvironment
from tests.support.machine_programs import ProgramMissingError, ensure_program
from tests.support.processes import Process, ProcessFailedError


@pytest.mark.django_db
def test_database_is_the_one_that_was_asked_for(support_environment: SupportEnvironment) -> None:
    expected = {"postgres": "postgresql", "sqlite": "sqlite"}[support_environment.database]
    assert connection.vendor == expected
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_redis_has_functions_and_keeps_its_log(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.function_list() is not None
        assert client.info("persistence")["aof_enabled"] == 1


def test_process_that_ends_early_shows_its_log() -> None:
    code = "print('the reason'); raise SystemExit(3)"
    with Process([sys.executable, "-c", code], name="broken") as process:
        with pytest.raises(ProcessFailedError, match=r"(?s)broken .*no line like 'ready'.*the reason"):
            process.wait_for_line("ready")
        assert process.wait() == 3


def test_spawned_process_is_awaited_by_its_line_and_ended(spawn: Spawn) -> None:
    code = "import signal; print('ready at', 42); signal.pause()"
    process = spawn([sys.executable, "-c", code], ready=r"ready at \d+")
    process.stop()
    assert process.returncode == -signal.SIGTERM
    assert not psutil.pid_exists(process.pid)


def test_spawned_process_is_awaited_by_its_port(spawn: Spawn, port: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    assert spawn(command, ready=("127.0.0.1", port)).returncode is None


def test_missing_program_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ProgramMissingError, match=r"apt-get install no-such-package"):
        ensure_program("no-such-program", package="no-such-package")
