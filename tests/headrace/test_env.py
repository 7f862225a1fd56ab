from pathlib import Path

import pytest

from headrace.env import DEVELOPMENT_SECRET_KEY, Environment, InvalidEnvironmentError


def test_nothing_set_is_one_machine() -> None:
    environment = Environment.read({})
    assert (environment.host, environment.port) == ("127.0.0.1", 8000)
    assert environment.database_url == f"sqlite:///{environment.state_dir}/headrace.sqlite3"
    assert environment.state_dir.is_absolute()
    assert environment.secret_key == DEVELOPMENT_SECRET_KEY
    assert environment.metrics_token is None
    assert environment.checkpoint_dir is None
    assert Environment.read({}).gateway_id != environment.gateway_id


def test_values_are_read_typed(tmp_path: Path) -> None:
    environment = Environment.read(
        {
            "HEADRACE_PORT": " 9000 ",
            "HEADRACE_STATE_DIR": str(tmp_path),
            "HEADRACE_CHECKPOINT_DIR": str(tmp_path / "kv"),
            "HEADRACE_ALLOWED_HOSTS": "a.example, b.example,",
            "REDIS_URL": "unix:///run/redis.sock?db=2",
            "DATABASE_URL": "postgresql://u:p@db/name",
            "HEADRACE_DEBUG": "yes",
            "HEADRACE_SECURE_COOKIES": "0",
        }
    )
    assert environment.port == 9000
    assert environment.checkpoint_dir == tmp_path / "kv"
    assert environment.allowed_hosts == ("a.example", "b.example")
    assert (environment.debug, environment.secure_cookies) == (True, False)
    assert environment.redis_url == "unix:///run/redis.sock?db=2"
    assert environment.test_database_url == "postgresql://u:p@db/name"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEADRACE_PORT", "http"),
        ("HEADRACE_PORT", "0"),
        ("HEADRACE_PORT", "70000"),
        ("HEADRACE_PORT", "80.5"),
        ("REDIS_URL", "localhost:6379"),
        ("REDIS_URL", "http://user:hunter2@localhost"),
        ("REDIS_URL", "redis://[broken"),
        ("DATABASE_URL", "mysql://user:hunter2@localhost/db"),
        ("HEADRACE_TEST_DATABASE_URL", "hunter2"),
        ("HEADRACE_CHECKPOINT_DIR", "hunter2/kv"),
        ("HEADRACE_EMAIL_URL", "https://user:hunter2@mail.example"),
        ("HEADRACE_DEBUG", "maybe"),
        ("HEADRACE_LOG_LEVEL", "LOUD"),
        ("HEADRACE_GATEWAY_COUNT", "-1"),
        ("HEADRACE_PREFER_MS", "-1"),
        ("HEADRACE_SEMANTIC_MS", "0"),
        ("HEADRACE_LEASE_SECONDS", "soon"),
        ("HEADRACE_LEASE_SECONDS", "0"),
        ("HEADRACE_LEASE_SECONDS", "nan"),
    ],
)
def test_a_wrong_value_names_its_variable_and_is_not_repeated(name: str, value: str) -> None:
    with pytest.raises(InvalidEnvironmentError) as refusal:
        Environment.read({name: value})
    assert refusal.value.variable == name
    assert str(refusal.value).startswith(f"{name}: ")
    assert "hunter2" not in str(refusal.value)


def test_secrets_stay_out_of_the_repr() -> None:
    secrets = {
        "HEADRACE_SECRET_KEY": "hunter2-key",
        "HEADRACE_METRICS_TOKEN": "hunter2-token",
        "DATABASE_URL": "postgresql://u:hunter2@db/name",
        "REDIS_URL": "redis://:hunter2@redis/0",
        "HEADRACE_EMAIL_URL": "smtps://u:hunter2@mail",
    }
    assert "hunter2" not in repr(Environment.read(secrets))
