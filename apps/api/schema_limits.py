"""What a JSON schema may cost: engines make a grammar of it, and some small schemas take them minutes.

docs/structured-outputs.md says what was measured, and why each limit is where it is.
"""

import re
from collections.abc import Iterator
from typing import Any

from headrace_wire.errors import InvalidRequestError

MAX_CHARACTERS = 256 * 1024
MAX_DEPTH = 64
"""vLLM's own."""
MAX_PROPERTIES = 5000
"""OpenAI's."""
MAX_OPTIONAL_PAIRS = 250_000
"""Each optional property of an object may follow each other one: 500 of one object, or 50 in each of a hundred."""
COUNTED_PAIRS = 25
"""What a pair counts where `minProperties` or `maxProperties` has all numbers of properties told apart."""
MAX_LENGTH_BOUNDS = 16
"""Different pairs of `minLength` and `maxLength`: each is compared with every token, once."""
MAX_REPETITION = 128
"""Bound of one repetition in a pattern: its square to read, and beyond this a check of all tokens at each step."""
MAX_PATTERN_LENGTH = 10_000
"""Of all patterns together, with repetitions written out."""

_QUANTIFIER = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_COUNTS = ("minProperties", "maxProperties")
_LENGTHS = ("minLength", "maxLength")


def check_cost(schema: dict[str, Any], encoded: str) -> None:
    """Refuse a schema that would cost an engine too much; `encoded` is what the engine gets.

    Raises:
        InvalidRequestError: says which limit it passes.
    """
    _limit("characters", len(encoded), MAX_CHARACTERS)
    properties = pairs = written_out = 0
    lengths: set[tuple[float | None, ...]] = set()
    for node, depth in _nodes(schema):
        _limit("levels of nesting", depth, MAX_DEPTH)
        if isinstance(node, list):
            continue
        if isinstance(named := node.get("properties"), dict):
            properties += len(named)
            _limit("properties", properties, MAX_PROPERTIES)
            pairs += _optional_pairs(node, named)
            _limit("pairs of properties of one object that are not required", pairs, MAX_OPTIONAL_PAIRS)
        if any(name in node for name in _LENGTHS):
            lengths.add(tuple(_number(node.get(name)) for name in _LENGTHS))
            _limit("different pairs of `minLength` and `maxLength`", len(lengths), MAX_LENGTH_BOUNDS)
        patterns = [node.get("pattern"), *_keys(node.get("patternProperties"))]
        written_out += sum(_written_out(pattern) for pattern in patterns if isinstance(pattern, str))
        _limit("characters in its patterns with their repetitions written out", written_out, MAX_PATTERN_LENGTH)


def _optional_pairs(node: dict[str, Any], named: dict[str, Any]) -> int:
    required = node.get("required")
    always = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    optional = sum(name not in always for name in named)
    return optional * optional * (COUNTED_PAIRS if any(count in node for count in _COUNTS) else 1)


def _nodes(schema: dict[str, Any]) -> Iterator[tuple[dict[str, Any] | list[Any], int]]:
    """Yield every object and array of a document with its depth; what it calls itself is not looked at."""
    waiting: list[tuple[Any, int]] = [(schema, 1)]
    while waiting:
        node, depth = waiting.pop()
        if isinstance(node, dict | list):
            yield node, depth
            waiting += [(inner, depth + 1) for inner in (node.values() if isinstance(node, dict) else node)]


def _keys(found: Any) -> list[str]:  # noqa: ANN401  any JSON
    return list(found) if isinstance(found, dict) else []


def _number(found: Any) -> float | None:  # noqa: ANN401  any JSON
    return found if isinstance(found, int | float) else None


def _written_out(pattern: str) -> int:
    """Return how long a pattern is with its repetitions written out. What is no regular expression may count as any.

    Raises:
        InvalidRequestError: one repeats too often.
    """
    groups, last, at = [0], 0, 0  # length of each open group so far; of what a quantifier would repeat
    while at < len(pattern):
        sign = pattern[at]
        if sign == "{" and (found := _QUANTIFIER.match(pattern, at)) is not None:
            # Digits are compared by their number first: Python refuses to read thousands of them.
            bounds = [text.lstrip("0") for text in (found[1], found[3]) if text]
            times = max((int(text or 0) if len(text) < 10 else 10**9) for text in bounds)
            _limit("repetitions of one part of a `pattern` (`maxLength` may be larger)", times, MAX_REPETITION)
            groups[-1] += last * (max(times, 1) - 1)
            last *= max(times, 1)
            at = found.end()
            continue
        if sign == "(":
            groups.append(0)
            last = 0
        elif sign == ")":
            last = groups.pop() + 1
            groups = groups or [0]
            groups[-1] += last
        else:
            last = 1
            groups[-1] += 1
        at = _end_of_atom(pattern, at)
    return sum(groups)


def _end_of_atom(pattern: str, at: int) -> int:
    """Return where a character, an escape or a class ends that begins here."""
    if pattern[at] == "\\":
        return at + 2
    if pattern[at] != "[":
        return at + 1
    at += 1
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def _limit(what: str, value: float, most: int) -> None:
    if value > most:
        raise InvalidRequestError(
            f"`response_format.json_schema.schema` may have at most {most} {what}.", param="response_format"
        )
