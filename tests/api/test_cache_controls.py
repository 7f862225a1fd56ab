"""What requests may say about kept answers."""

from typing import Any

import pytest

from apps.api.cache_controls import cache_controls
from apps.api.requests import parse_chat_completion
from apps.streams.services import CacheControls
from headrace_wire.errors import InvalidRequestError


def controls(cache: str | None = None, header: str | None = None, extra: str = "") -> CacheControls:
    field = f', "cache": {cache}' if cache is not None else ""
    body = f'{{"model": "m", "messages": [{{"role": "user", "content": "a"}}]{field}{extra}}}'
    request = parse_chat_completion(body.encode())
    return cache_controls(request.cache, header, request.user)


@pytest.mark.parametrize(
    ("cache", "header", "found"),
    [
        (None, None, {}),
        ("null", None, {}),
        ("{}", None, {}),
        ('{"no-cache": true}', None, {"no_cache": True}),
        ('{"no-store": true}', None, {"no_store": True}),
        ('{"use-cache": true}', None, {"use_cache": True}),
        ('{"ttl": 60}', None, {"ttl_seconds": 60}),
        ('{"s-maxage": 9.5}', None, {"max_age_seconds": 9.5}),
        ('{"s-maxage": 9, "max-age": 5}', None, {"max_age_seconds": 5}),
        ('{"max-age": 5}', "max-age=3, no-store", {"max_age_seconds": 3, "no_store": True}),
        (None, "No-Cache", {"no_cache": True}),
        (None, 'max-age="7", private, stale-if-error=4', {"max_age_seconds": 7}),
        (None, "max-age=99999999999", None),
        (None, "", {}),
    ],
)
def test_field_and_header(cache: str | None, header: str | None, found: dict[str, Any] | None) -> None:
    if found is None:
        with pytest.raises(InvalidRequestError, match="max-age"):
            controls(cache, header)
    else:
        assert controls(cache, header) == CacheControls(**found)


@pytest.mark.parametrize(
    ("cache", "param"),
    [
        ('{"ttl": -1}', "cache.ttl"),
        ('{"s-maxage": 1e300}', "cache.s-maxage"),
        ('{"no-cache": "yes"}', "cache.no-cache"),
        ('{"ttl": "60"}', "cache.ttl"),
        ("true", "cache"),
        ('{"zzz": 1}', "cache"),
        ('{"no-cache": true, "no-stor": true}', "cache"),
    ],
)
def test_a_wrong_field_is_named(cache: str, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        controls(cache)
    assert caught.value.param == param


def test_an_unknown_word_is_told() -> None:
    with pytest.raises(InvalidRequestError, match="unknown field `no-stor`"):
        controls('{"no-stor": true}')


@pytest.mark.parametrize("header", ["max-age=soon", "max-age=-1", "max-age=", "max-age=1.5"])
def test_a_wrong_header_is_named(header: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        controls(header=header)
    assert caught.value.param == "Cache-Control"


def test_a_request_that_names_its_end_user_is_personal() -> None:
    assert controls(extra=', "user": "anna"').is_personal
    assert not controls(extra=', "user": ""').is_personal
