"""What guardrails did, on its way from gateways and workers to the interventions table.

A bounded Redis stream (`redis_keys.interventions_key`), read by a Celery consumer; rows are unique by
`Intervention.id`, so that a judgement repeated after a takeover counts once.
"""

from enum import StrEnum

from msgspec import Struct

from headrace_wire.guard_policy import Action, Direction


class Outcome(StrEnum):
    """What happened."""

    BLOCKED = "blocked"
    MASKED = "masked"
    FLAGGED = "flagged"
    UNCHECKED = "unchecked"
    """A judge failed, and the policy lets the text through."""
    FAILED = "failed"
    """A judge failed, and the policy ends the stream."""


class Intervention(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One finding of one rule in one stream. Nothing in it says more of the text than the tenant's retention allows."""

    stream_id: str
    tenant_id: str
    deployment: str
    policy: str
    """Key of the policy."""
    policy_version: int
    rule: str
    """Key of the rule; empty where a failure concerns all window rules of a policy."""
    rule_kind: str = ""
    finding: str = ""
    """What was found: a kind of personal data, a topic's score, why a judge failed."""
    direction: Direction = Direction.OUTPUT
    action: Action = Action.FLAG
    """The rule's own; a shadow policy did not carry it out."""
    outcome: Outcome = Outcome.FLAGGED
    is_shadow: bool = False
    start: int = 0
    """Offset of the first character found, in the text as generated (code points)."""
    end: int = 0
    excerpt: str = ""
    held_ms: float = 0.0
    """How long text waited for this judgement."""
    occurred_at: float = 0.0
    """Unix seconds, UTC."""

    @property
    def id(self) -> str:
        """The same for the same finding, whoever makes it."""
        return f"{self.stream_id}:{self.policy}:{self.rule}:{self.direction}:{self.start}:{self.outcome}"
