from collections.abc import Iterator

import pytest
from django.core.checks import run_checks
from pytest_django import Settings
from redis import Redis

GOOD = {
    "DEBUG": False,
    "SECRET_KEY": "k" * 50,
    "HEADRACE_SECRET_KEY_IS_DEFAULT": False,
    "ALLOWED_HOSTS": ["headrace.example"],
    "HEADRACE_METRICS_TOKEN": "token",
    "HEADRACE_EMAIL_IS_SENT": True,
    "HEADRACE_GATEWAY_COUNT": 2,
    "SESSION_COOKIE_SECURE": True,
    "CSRF_COOKIE_SECURE": True,
}


def ids() -> set[str]:
    """Ours among the findings of `check --deploy`."""
    found = run_checks(include_deployment_checks=True, tags=["security", "redis", "database"], databases=[])
    return {str(message.id) for message in found if str(message.id).startswith("headrace.")}


@pytest.fixture
def good(settings: Settings, live_redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings with nothing to say against."""
    monkeypatch.setitem(settings.DATABASES["default"], "ENGINE", "django.db.backends.postgresql")
    for name, value in GOOD.items():
        setattr(settings, name, value)
    yield settings
    live_redis.config_set("appendonly", "yes")
    live_redis.config_set("maxmemory-policy", "noeviction")


def test_good_settings_pass(good: Settings) -> None:
    assert ids() == set()


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("DEBUG", True, "headrace.E001"),
        ("HEADRACE_SECRET_KEY_IS_DEFAULT", True, "headrace.E002"),
        ("SECRET_KEY", "short", "headrace.E002"),
        ("ALLOWED_HOSTS", ["*"], "headrace.E003"),
        ("HEADRACE_METRICS_TOKEN", None, "headrace.W001"),
        ("REDIS_URL", "unix:///nowhere/redis.sock", "headrace.W002"),
        ("SESSION_COOKIE_SECURE", False, "headrace.W003"),
        ("HEADRACE_EMAIL_IS_SENT", False, "headrace.W004"),
    ],
)
def test_a_setting_that_cannot_be_right_is_named(good: Settings, name: str, value: object, found: str) -> None:
    setattr(good, name, value)
    assert ids() == {found}


def test_only_one_gateway_may_use_sqlite(good: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(good.DATABASES["default"], "ENGINE", "django.db.backends.sqlite3")
    assert ids() == {"headrace.E004"}
    good.HEADRACE_GATEWAY_COUNT = 1
    assert ids() == set()


def test_a_redis_that_forgets_is_named(good: Settings, live_redis: Redis) -> None:
    live_redis.config_set("appendonly", "no")
    assert ids() == {"headrace.E005"}


def test_a_redis_that_evicts_is_named(good: Settings, live_redis: Redis) -> None:
    live_redis.config_set("maxmemory-policy", "allkeys-lru")
    assert ids() == {"headrace.E006"}
