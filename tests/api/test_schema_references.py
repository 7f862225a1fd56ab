"""Schemas that never come to say anything."""

from typing import Any

import pytest

from apps.api.schema_references import is_endless

CIRCLE = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#", "type": "string"},
        {"$ref": "#/$defs/a", "$defs": CIRCLE},
        {"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#/$defs/a"}]}], "$defs": CIRCLE},
        {"oneOf": [{"$ref": "#/oneOf/0"}]},
    ],
)
def test_references_in_a_circle_are_endless(schema: dict[str, Any]) -> None:
    assert is_endless(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/~1b%25"}, "/b%": {"type": "string"}}},
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#/anyOf/7", "anyOf": []},
        {"$ref": "#anchor"},
        {"$ref": "https://example.org/schema"},
        {"anyOf": [True]},
        {"$ref": 3},
    ],
)
def test_whatever_says_something_or_is_not_known_here_goes_to_the_engine(schema: dict[str, Any]) -> None:
    assert not is_endless(schema)


def test_long_chains_take_their_length() -> None:
    links: dict[str, Any] = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(20_000)}
    assert not is_endless({"$ref": "#/$defs/0", "$defs": links})
    links["20000"] = {"$ref": "#/$defs/0"}
    assert is_endless({"$ref": "#/$defs/0", "$defs": links})
