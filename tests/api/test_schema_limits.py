"""Schemas that would cost an engine too much are refused; what people write is not."""

import json
from typing import Any

import msgspec
import pytest

from apps.api.schema_limits import check_cost
from headrace_wire.errors import InvalidRequestError


def check(schema: dict[str, Any]) -> None:
    check_cost(schema, msgspec.json.encode(schema).decode())


def pattern(text: str) -> dict[str, Any]:
    return {"type": "string", "pattern": text}


def record(count: int, *, required: int = 0, **more: object) -> dict[str, Any]:
    names = [f"p{i}" for i in range(count)]
    fields = {name: {"type": "string"} for name in names}
    return {"type": "object", "properties": fields, "required": names[:required], **more}


def lengths(count: int) -> dict[str, Any]:
    return {"prefixItems": [{"type": "string", "minLength": 1, "maxLength": 10 + i} for i in range(count)]}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (pattern("(a{1,10000}){1,10000}"), "at most 128 repetitions"),
        (pattern("a{129}"), "128 repetitions"),
        (pattern("a{129,}"), "128 repetitions"),
        (pattern("a{1," + "9" * 5000 + "}"), "128 repetitions"),
        (pattern(r"[\]({]{1,129}"), "128 repetitions"),
        (pattern("(a{100}){101}"), "10000 characters in its patterns"),
        (pattern("(((a{9}b){9}c){9}d){20}"), "10000 characters in its patterns"),
        (pattern("(a{100}[(]){100}"), "10000 characters in its patterns"),
        (pattern("a{100}){101}"), "10000 characters in its patterns"),
        ({"items": [pattern("(a{60}){90}") for _ in range(2)]}, "10000 characters in its patterns"),
        ({"patternProperties": {"^a{1,200}$": {}}}, "128 repetitions"),
        ({"propertyNames": pattern("a{1,200}")}, "128 repetitions"),
        (record(5001, required=5001), "at most 5000 properties"),
        ({"$defs": {str(i): record(400, required=400) for i in range(13)}}, "at most 5000 properties"),
        (record(501), "at most 250000 pairs of properties of one object that are not required"),
        ({"$defs": {str(i): record(51) for i in range(97)}}, "pairs of properties"),
        (record(101, minProperties=3), "pairs of properties"),
        (record(101, maxProperties=3), "pairs of properties"),
        (lengths(17), "at most 16 different pairs"),
        (nested(65), "at most 64 levels"),
        ({"enum": ["x" * 262_144]}, "at most 262144 characters"),
    ],
)
def test_what_costs_too_much_is_refused_with_its_limit(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        check(schema)
    assert words in error.value.message
    assert (error.value.param, error.value.http_status) == ("response_format", 400)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        pattern(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"),
        pattern(r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?Z$"),
        pattern(r"\{1,9999\}[{1,9999}]"),
        pattern("a{0}b{,3}c{x}(?:d|e){1,128}"),
        pattern("(a{100}){99}"),
        pattern("("),
        pattern(")))"),
        pattern("[a"),
        pattern("a\\"),
        {"properties": {"pattern": pattern("a"), "minLength": {"type": "integer"}, "properties": {"type": "object"}}},
        record(5000, required=4500),
        record(100, minProperties=3),
        {"$defs": {str(i): record(50) for i in range(100)}},
        record(1000, required=1000, minProperties=3),
        {"type": "array", "minItems": 10**9, "items": {"type": "string", "minLength": 9, "maxLength": 10**9}},
        {"anyOf": [{"type": "string", "maxLength": 100} for _ in range(1000)]},
        lengths(16),
        nested(64),
        {"enum": [f"value-{i}" for i in range(10_000)]},
        {"required": 3, "properties": [], "minLength": "x", "patternProperties": None, "pattern": 7},
    ],
)
def test_what_people_write_goes_to_the_engine(schema: dict[str, Any]) -> None:
    check(schema)


def test_a_large_document_is_looked_at_once() -> None:
    check(json.loads('{"a":[' + ",".join("[{}]" for _ in range(50_000)) + "]}"))
