"""From what was found to its record, which says no more of the text than the tenant wants kept."""

import hashlib
import hmac
import time

from msgspec import Struct
from msgspec.structs import replace

from headrace_guard.combination import BoundWindowRule, Guard
from headrace_guard.scanner import BoundRule, Hit
from headrace_guard.windows import Window
from headrace_wire.guard_policy import AbuseRule, Action, Direction, ExcerptRetention, LiteralRule
from headrace_wire.interventions import Intervention, Outcome

EXCERPT_CHARACTERS = 400
"""Of a longer text the beginning is kept."""

_OUTCOMES = {Action.BLOCK: Outcome.BLOCKED, Action.MASK: Outcome.MASKED, Action.FLAG: Outcome.FLAGGED}


class Subject(Struct, frozen=True):
    """Whose text is judged, and what may be kept of it."""

    stream_id: str
    tenant_id: str
    deployment: str
    excerpts: ExcerptRetention
    salt: str
    """The tenant's; hashes of excerpts cannot be compared across tenants, nor guessed without it."""

    def excerpt(self, text: str) -> str:
        """Return what is kept of a text."""
        text = text[:EXCERPT_CHARACTERS]
        match self.excerpts:
            case ExcerptRetention.NONE:
                return ""
            case ExcerptRetention.HASH:
                return hmac.new(self.salt.encode(), text.encode(), hashlib.sha256).hexdigest()[:32]
            case ExcerptRetention.REDACTED:
                return f"{text[0]}…{text[-1]} ({len(text)} characters)" if len(text) > 4 else "…"
            case _:
                return text


def hit_record(guard: Guard, subject: Subject, hit: Hit, direction: Direction, *, held_ms: float = 0.0) -> Intervention:
    """Return the record of what a light rule found."""
    return replace(
        _record(guard, subject, hit.bound, direction),
        finding=_finding(subject, hit.bound, hit.finding),
        action=hit.action,
        outcome=Outcome.FLAGGED if hit.bound.is_shadow else _OUTCOMES[hit.action],
        start=hit.start,
        end=hit.end,
        excerpt=subject.excerpt(hit.text),
        held_ms=held_ms,
    )


def window_record(
    guard: Guard,
    subject: Subject,
    bound: BoundWindowRule,
    window: Window,
    direction: Direction,
    *,
    finding: str,
    outcome: Outcome,
    held_ms: float,
) -> Intervention:
    """Return the record of what a window rule found in a window, or of its failure."""
    failed = outcome in {Outcome.FAILED, Outcome.UNCHECKED}
    return replace(
        _record(guard, subject, bound, direction),
        finding=finding if failed else _finding(subject, bound, finding),
        outcome=outcome,
        start=window.start,
        end=window.end,
        excerpt="" if failed else subject.excerpt(window.text),
        held_ms=held_ms,
    )


def _finding(subject: Subject, bound: BoundRule | BoundWindowRule, finding: str) -> str:
    """Return what may be kept of a finding: these rules name the very word that was written."""
    if not isinstance(bound.rule, LiteralRule | AbuseRule):
        return finding
    return "" if subject.excerpts is ExcerptRetention.HASH else subject.excerpt(finding)


def _record(guard: Guard, subject: Subject, bound: BoundRule | BoundWindowRule, direction: Direction) -> Intervention:
    rule, policy = bound.rule, guard.policies[bound.policy]
    return Intervention(
        stream_id=subject.stream_id,
        tenant_id=subject.tenant_id,
        deployment=subject.deployment,
        policy=policy.key,
        policy_version=policy.version,
        rule=rule.key,
        rule_kind=str(rule.__struct_config__.tag),
        direction=direction,
        action=rule.action,
        is_shadow=bound.is_shadow,
        occurred_at=time.time(),
    )
