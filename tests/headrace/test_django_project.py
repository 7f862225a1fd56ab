import warnings
from typing import Any

import pytest
from django.core.cache import caches
from django.core.management import call_command
from django.test import AsyncClient, Client
from django_prometheus.cache.metrics import django_cache_hits_total, django_cache_misses_total
from pytest_django import Settings
from redis.exceptions import RedisError


@pytest.mark.django_db
def test_models_and_migrations_say_the_same() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_static_files_are_served_whole_with_their_type(client: Client) -> None:
    answer = client.get("/static/accounts/sign_in.css")
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/css")
    assert b"color-scheme" in answer.content
    assert not answer.streaming

    again = client.get("/static/accounts/sign_in.css", headers={"If-Modified-Since": answer["Last-Modified"]})
    assert (again.status_code, again.content) == (304, b"")
    part = client.get("/static/accounts/sign_in.css", headers={"Range": "bytes=0-4"})
    assert (part.status_code, part.content) == (206, answer.content[:5])
    assert client.head("/static/accounts/sign_in.css").content == b""


async def test_static_files_cause_no_warning_under_asgi() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = await AsyncClient().get("/static/unfold/css/styles.css")
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/static/../manage.py", "/static/%2e%2e/manage.py", "/static/none.css", "/static/"])
@pytest.mark.django_db
def test_nothing_else_is_served_from_there(client: Client, path: str) -> None:
    assert client.get(path).status_code == 404


def _counted() -> tuple[float, float]:
    def total(counter: Any) -> float:
        value: float = counter.labels(backend="redis")._value.get()
        return value

    return total(django_cache_hits_total), total(django_cache_misses_total)


def _use_redis(settings: Settings, url: str) -> None:
    settings.CACHES = {"default": {"BACKEND": "headrace.cache.MeteredRedisCache", "LOCATION": url}}


def test_the_cache_counts_hits_and_misses(settings: Settings, redis_url: str) -> None:
    _use_redis(settings, redis_url)
    cache = caches["default"]
    cache.clear()
    hits, misses = _counted()
    assert cache.get("thing", "nothing") == "nothing"
    cache.set("thing", None)
    assert cache.get("thing", "nothing") is None
    assert _counted() == (hits + 1, misses + 1)


def test_a_cache_that_is_away_says_so(settings: Settings) -> None:
    _use_redis(settings, "unix:///nowhere/redis.sock")
    with pytest.raises(RedisError):
        caches["default"].get("thing")
