"""Policies between their two forms: rows that people edit, and bodies that gateways and workers judge by."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from apps.deployments.models import ModelDeployment
from apps.guardrails.enums import PolicyMode, RuleKind
from apps.guardrails.models import GuardrailPolicy, GuardrailRule
from headrace_wire import guard_policy as wire

_POLICY_FIELDS = (
    "name",
    "replacement",
    "chunk_size",
    "context_size",
    "judge_deadline_seconds",
    "stream_first",
)


_CLASSES: dict[RuleKind, type[wire.AnyRule]] = {
    RuleKind.LITERALS: wire.LiteralRule,
    RuleKind.REGEX: wire.RegexRule,
    RuleKind.PERSONAL_DATA: wire.PersonalDataRule,
    RuleKind.LENGTH: wire.LengthRule,
    RuleKind.TOPIC: wire.TopicRule,
    RuleKind.ABUSE: wire.AbuseRule,
    RuleKind.LANGUAGE: wire.LanguageRule,
    RuleKind.JUDGE: wire.JudgeRule,
}


def policy_body(policy: GuardrailPolicy, rules: Sequence[GuardrailRule], *, version: int) -> wire.GuardPolicy:
    """Returns what the policy says; a draft's is that of a shadow, since drafts are not published."""
    return wire.GuardPolicy(
        key=policy.id.hex,
        version=version,
        mode=wire.PolicyMode.ENFORCED if policy.mode == PolicyMode.ENFORCED else wire.PolicyMode.SHADOW,
        failure_mode=wire.FailureMode(policy.failure_mode),
        on_input_trip=wire.InputTrip(policy.on_input_trip),
        rules=tuple(rule_body(rule) for rule in rules),
        **{name: getattr(policy, name) for name in _POLICY_FIELDS},
    )


def rule_body(rule: GuardrailRule) -> wire.AnyRule:
    """Returns what the rule says; it has passed `GuardrailRule.clean`."""
    common: dict[str, Any] = {
        "key": rule.id.hex,
        "name": str(rule),
        "applies_to": wire.Direction(rule.applies_to),
        "action": wire.Action(rule.action),
        "severity": wire.Severity(rule.severity),
        "mask": rule.mask,
        "replacement": rule.replacement,
    }
    return _CLASSES[RuleKind(rule.kind)](**common, **_own_fields(rule))


def _own_fields(rule: GuardrailRule) -> dict[str, Any]:
    """Returns what rules of its kind have besides the common; where no threshold is given, the wire's default holds."""
    threshold = {} if rule.threshold is None else {"threshold": rule.threshold}
    judge = rule.judge_deployment.name if rule.judge_deployment is not None else ""
    own: dict[RuleKind, dict[str, Any]] = {
        RuleKind.LITERALS: {"words": tuple(rule.words), "whole_words": rule.whole_words},
        RuleKind.REGEX: {"patterns": tuple(rule.patterns), "case_sensitive": rule.case_sensitive},
        RuleKind.PERSONAL_DATA: {
            "kinds": {wire.PersonalDataKind(kind): wire.Action(does) for kind, does in rule.personal_data.items()},
            "phone_regions": tuple(rule.phone_regions),
        },
        RuleKind.LENGTH: {"max_characters": rule.max_characters},
        RuleKind.TOPIC: {"examples": tuple(rule.examples), **threshold},
        RuleKind.ABUSE: threshold,
        RuleKind.LANGUAGE: {"allowed": tuple(rule.languages)},
        RuleKind.JUDGE: {"deployment": judge, "question": rule.question},
    }
    return own[RuleKind(rule.kind)]


def rule_kind(rule: wire.AnyRule) -> str:
    """Returns the tag that the rule has on the wire."""
    return str(rule.__struct_config__.tag)


def content_restore(policy: GuardrailPolicy, body: wire.GuardPolicy) -> list[GuardrailRule]:
    """Gives the policy what `body` says, but for its mode, and returns the rules, unsaved and in order."""
    for name in (*_POLICY_FIELDS, "failure_mode", "on_input_trip"):
        setattr(policy, name, getattr(body, name))
    names = {rule.deployment for rule in body.rules if isinstance(rule, wire.JudgeRule)}
    judges = {row.name: row for row in ModelDeployment.objects.filter(name__in=names)}
    return [_rule_row(policy, rule, judges) for rule in body.rules]


def _rule_row(policy: GuardrailPolicy, rule: wire.AnyRule, judges: dict[str, ModelDeployment]) -> GuardrailRule:
    kind = RuleKind(rule_kind(rule))
    row = GuardrailRule(
        id=UUID(rule.key),
        policy=policy,
        kind=kind,
        name="" if rule.name == kind.label else rule.name,
        applies_to=rule.applies_to,
        action=rule.action,
        severity=rule.severity,
        mask=rule.mask,
        replacement=rule.replacement,
    )
    match rule:
        case wire.LiteralRule():
            row.words, row.whole_words = list(rule.words), rule.whole_words
        case wire.RegexRule():
            row.patterns, row.case_sensitive = list(rule.patterns), rule.case_sensitive
        case wire.PersonalDataRule():
            row.personal_data = {str(kind): str(action) for kind, action in rule.kinds.items()}
            row.phone_regions = list(rule.phone_regions)
        case wire.LengthRule():
            row.max_characters = rule.max_characters
        case wire.TopicRule():
            row.examples, row.threshold = list(rule.examples), rule.threshold
        case wire.AbuseRule():
            row.threshold = rule.threshold
        case wire.LanguageRule():
            row.languages = list(rule.allowed)
        case wire.JudgeRule():
            row.judge_deployment, row.question = judges.get(rule.deployment), rule.question
    return row
