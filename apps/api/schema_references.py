"""JSON schemas whose references lead nowhere but to references: no text satisfies them, and no engine can begin one."""

from typing import Any
from urllib.parse import unquote

_COMBINATIONS = ("anyOf", "oneOf", "allOf")


def is_endless(schema: dict[str, Any]) -> bool:
    """Say whether a schema itself comes to nothing but `$ref`s of this document, in circles, however it is read.

    What is wrong deeper in it, or refers to other documents, is the engine's to say.
    """
    seen: set[int] = set()
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict):
            return False
        if id(node) in seen:
            continue
        seen.add(id(node))
        leads = _leads(node)
        if leads is None:
            return False
        waiting += [_target(schema, lead) if isinstance(lead, str) else lead for lead in leads]
    return True


def _leads(node: dict[str, Any]) -> list[Any] | None:
    """Return what a schema refers to, as its reference or the schemas to choose from; None where it says more."""
    if isinstance(reference := node.get("$ref"), str):
        return [reference] if reference == "#" or reference.startswith("#/") else None
    for name in _COMBINATIONS:
        if isinstance(choices := node.get(name), list) and choices:
            return choices if all(isinstance(one, dict) for one in choices) else None
    return None


def _target(schema: Any, reference: str) -> Any:  # noqa: ANN401  any JSON
    """Return what a reference names in its document; None where there is nothing."""
    found = schema
    for part in reference.removeprefix("#").split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isascii() and name.isdigit() and len(name) < 10:
            found = found[int(name)] if int(name) < len(found) else None
        else:
            return None
    return found
