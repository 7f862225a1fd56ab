"""What differs between two versions of a policy, in few words: for the list of versions and the audit trail."""

from collections.abc import Iterator
from typing import Any

import msgspec

from apps.guardrails.bodies import rule_kind
from apps.guardrails.enums import RuleKind
from apps.tenants.changes import Changes
from headrace_wire.guard_policy import AnyRule, GuardPolicy

_UNTOLD = frozenset({"key", "version", "rules", "kind"})
TOLD_ENTRIES = 5
"""Of a list, so many that came and so many that went are named."""


def policy_changes(before: GuardPolicy | None, after: GuardPolicy) -> Changes:
    """Returns what differs, as name to `[before, after]`; rules stand under “rule <name>: <field>”."""
    old_fields = _plain(before) if before is not None else {}
    changes: Changes = {
        name: [old_fields.get(name), value]
        for name, value in _plain(after).items()
        if before is None or old_fields.get(name) != value
    }
    old = {rule.key: rule for rule in before.rules} if before is not None else {}
    new = {rule.key: rule for rule in after.rules}
    for key, rule in new.items():
        changes.update(_rule_changes(old.get(key), rule))
    changes.update({f"rule {_label(rule)}": [_kind(rule), None] for key, rule in old.items() if key not in new})
    kept = [key for key in old if key in new]
    if kept != [key for key in new if key in old]:
        changes["order of rules"] = [[_label(old[key]) for key in kept], [_label(rule) for rule in after.rules]]
    return changes


def changes_told(changes: Changes) -> list[str]:
    """Returns a line for each change."""
    return [f"{name}: {_told(old)} → {_told(new)}" for name, (old, new) in changes.items()]


def _rule_changes(before: AnyRule | None, after: AnyRule) -> Changes:
    if before is None or type(before) is not type(after):
        return {f"rule {_label(after)}": [None if before is None else _kind(before), _kind(after)]}
    old, new = _plain(before), _plain(after)
    return {
        f"rule {_label(after)}: {name}": list(_difference(old[name], new[name]))
        for name in new
        if old[name] != new[name]
    }


def _difference(old: Any, new: Any) -> Iterator[object]:  # noqa: ANN401
    """Yields both values; of long lists only what the other one has not."""
    if not isinstance(old, list) or not isinstance(new, list) or max(len(old), len(new)) <= TOLD_ENTRIES:
        yield from (old, new)
        return
    for mine, other in ((old, set(new)), (new, set(old))):
        alone = [entry for entry in mine if entry not in other]
        more = f" and {len(alone) - TOLD_ENTRIES} more" if len(alone) > TOLD_ENTRIES else ""
        yield f"{len(mine)} entries, of them only here: {', '.join(map(str, alone[:TOLD_ENTRIES])) or 'none'}{more}"


def _plain(value: GuardPolicy | AnyRule) -> dict[str, Any]:
    fields = {name: getattr(value, name) for name in value.__struct_fields__ if name not in _UNTOLD}
    plain: dict[str, Any] = msgspec.to_builtins(fields)
    return {name: list(inner) if isinstance(inner, tuple) else inner for name, inner in plain.items()}


def _label(rule: AnyRule) -> str:
    return f"“{rule.name}”"


def _kind(rule: AnyRule) -> str:
    return f"{RuleKind(rule_kind(rule)).label}, {rule.action}"


def _told(value: object) -> str:
    if value is None:
        return "nothing"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
