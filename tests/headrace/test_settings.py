import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.settings.urls import celery_broker_from_url, database_from_url, email_from_url
from tests.support.environment import REPOSITORY_ROOT, child_environment
from tests.support.processes import Process

READ = """
import json, django
from django.conf import settings
django.setup()
names = ("DEBUG", "ALLOWED_HOSTS", "SESSION_COOKIE_SECURE", "SECURE_SSL_REDIRECT", "CELERY_BROKER_URL", "REDIS_URL")
print("SETTINGS", json.dumps({name: getattr(settings, name) for name in names}))
"""


def read_settings(name: str, **environ: str) -> Mapping[str, Any]:
    """Returns some settings as a fresh process sees them."""
    environment = {**child_environment(**environ), "DJANGO_SETTINGS_MODULE": f"headrace.settings.{name}"}
    with Process([sys.executable, "-c", READ], environ=environment, cwd=REPOSITORY_ROOT) as process:
        values: Mapping[str, Any] = json.loads(process.wait_for_line(r"^SETTINGS (.*)$")[1])
        assert process.wait() == 0
    return values


def test_development_is_plain_http_without_debug_pages() -> None:
    values = read_settings("development")
    assert (values["DEBUG"], values["SESSION_COOKIE_SECURE"], values["SECURE_SSL_REDIRECT"]) == (False, False, False)
    assert read_settings("development", HEADRACE_DEBUG="1")["DEBUG"]


def test_production_never_debugs_and_wants_tls() -> None:
    values = read_settings("production", HEADRACE_DEBUG="1", HEADRACE_ALLOWED_HOSTS="headrace.example")
    assert (values["DEBUG"], values["SESSION_COOKIE_SECURE"], values["SECURE_SSL_REDIRECT"]) == (False, True, True)
    assert values["ALLOWED_HOSTS"] == ["headrace.example"]


def test_a_wrong_variable_ends_the_process_with_its_name(tmp_path: Path) -> None:
    environ = child_environment(HEADRACE_PORT="http", HEADRACE_STATE_DIR=str(tmp_path))
    with Process([sys.executable, "manage.py", "check"], environ=environ, cwd=REPOSITORY_ROOT) as process:
        assert process.wait() != 0
        assert "HEADRACE_PORT: must be a whole number from 1 to 65535." in process.log


@pytest.mark.parametrize(
    ("url", "broker"),
    [
        ("redis://:secret@host:6380/2", "redis://:secret@host:6380/2"),
        ("rediss://host/0", "rediss://host/0"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=0"),
        ("unix:///run/redis.sock?db=3", "redis+socket:///run/redis.sock?virtual_host=3"),
        ("unix://:secret@/run/redis.sock", "redis+socket://:secret@/run/redis.sock?virtual_host=0"),
    ],
)
def test_celery_finds_the_same_redis(url: str, broker: str) -> None:
    assert celery_broker_from_url(url) == broker


def test_celery_talks_over_a_unix_socket(redis_url: str) -> None:
    from celery import Celery  # noqa: PLC0415  an application of its own, without Django's

    app = Celery("probe", broker=celery_broker_from_url(redis_url), set_as_current=False)
    with app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, timeout=60)
        assert connection.connected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:////var/lib/h.sqlite3", {"NAME": "/var/lib/h.sqlite3", "ENGINE": "django.db.backends.sqlite3"}),
        ("sqlite:///h%20x.sqlite3", {"NAME": "h x.sqlite3"}),
        ("sqlite://", {"NAME": ":memory:"}),
        (
            "postgresql://us%40er:p%3Ass@db.example:5433/name?sslmode=require",
            {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": "name",
                "USER": "us@er",
                "PASSWORD": "p:ss",
                "HOST": "db.example",
                "PORT": "5433",
                "OPTIONS": {"sslmode": "require"},
            },
        ),
        (
            "postgresql://headrace@/name?host=/run/postgresql",
            {"HOST": "/run/postgresql", "USER": "headrace", "PASSWORD": "", "PORT": "", "OPTIONS": {}},
        ),
    ],
)
def test_databases_are_read_from_urls(url: str, expected: Mapping[str, Any]) -> None:
    entry = database_from_url(url)
    assert {name: entry[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("", {"BACKEND": "django.core.mail.backends.console.EmailBackend"}),
        ("smtp://mail.example", {"HOST": "mail.example", "PORT": 25, "USE_TLS": False, "USE_SSL": False}),
        ("smtp://us%40er:p%3Ass@mail.example:587", {"PORT": 587, "HOST_USER": "us@er", "USE_TLS": True}),
        ("smtps://user:p%3Ass@mail.example", {"PORT": 465, "HOST_PASSWORD": "p:ss", "USE_TLS": False, "USE_SSL": True}),
    ],
)
def test_mail_servers_are_read_from_urls(url: str, expected: Mapping[str, Any]) -> None:
    settings = email_from_url(url)
    assert {name: settings[name] for name in expected} == expected


def test_sqlite_takes_its_write_lock_at_once() -> None:
    options = database_from_url("sqlite:///h")["OPTIONS"]
    assert options["transaction_mode"] == "IMMEDIATE"
    assert "journal_mode=WAL" in options["init_command"]
