"""What makes a policy acceptable beyond the fields of its rows. Errors say what to do."""

from collections.abc import Iterable, Sequence

from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from apps.deployments.models import ModelDeployment
from apps.deployments.selectors import deployment_list
from apps.guardrails.bodies import rule_body
from apps.guardrails.enums import PolicyMode, RuleKind
from apps.guardrails.models import GuardrailAttachment, GuardrailPolicy, GuardrailRule
from apps.tenants.models import Tenant
from headrace_guard.patterns import PatternError
from headrace_guard.scanner import BoundRule, Scanner
from headrace_wire.guard_policy import LightRule, RegexRule

CHARACTERS_PER_TOKEN = 4
"""Of English text, roughly."""

_PROBLEM_FIELDS = {RuleKind.LITERALS: "words", RuleKind.REGEX: "patterns", RuleKind.PERSONAL_DATA: "phone_regions"}


def rule_check(rule: GuardrailRule) -> None:
    """Compiles a rule that has passed its own `clean`.

    Raises:
        ValidationError: It cannot be judged; the message stands at the field and says what to change.
    """
    body = rule_body(rule)
    if isinstance(body, RegexRule):
        for number, pattern in enumerate(body.patterns, start=1):
            single = RegexRule(key=body.key, patterns=(pattern,), case_sensitive=body.case_sensitive)
            _compile(single, "patterns", _("Pattern %d: ") % number)
    elif isinstance(body, LightRule):
        _compile(body, _PROBLEM_FIELDS.get(RuleKind(rule.kind)), "")


def policy_check(
    policy: GuardrailPolicy, rules: Sequence[GuardrailRule], attachments: Iterable[GuardrailAttachment]
) -> None:
    """Checks a policy as a whole.

    Raises:
        ValidationError: It has no rule, or asks a deployment that cannot answer it.
    """
    if not rules:
        raise ValidationError(_("A policy without rules judges nothing. Add at least one rule."), code="empty_policy")
    judges = {rule.judge_deployment for rule in rules if rule.judge_deployment is not None}
    for judge in judges:
        judge_check(judge, policy.tenant)
    if policy.is_restricted and judges:
        _circle_check(policy, judges, {row.deployment_id for row in attachments if row.deployment_id is not None})


def judge_check(judge: ModelDeployment, tenant: Tenant | None) -> None:
    """Checks that a deployment may be asked.

    Raises:
        ValidationError: It is off, or not seen by everybody whom the policy concerns.
    """
    if not judge.is_active:
        raise ValidationError(
            _("The deployment %s is off; switch it on or ask another one.") % judge, code="judge_inactive"
        )
    if tenant is None and judge.is_restricted:
        raise ValidationError(
            _("The deployment %s is only for some tenants, and this policy is for all: ask one that all see.") % judge,
            code="judge_invisible",
        )
    if tenant is not None and not deployment_list(tenant=tenant).filter(pk=judge.pk).exists():
        raise ValidationError(
            _("The tenant does not see the deployment %s: make it visible, or ask another one.") % judge,
            code="judge_invisible",
        )


def policy_warnings(policy: GuardrailPolicy, rules: Iterable[GuardrailRule]) -> list[str]:
    """Returns what is acceptable and yet may not be meant."""
    told: list[object] = []
    window = policy.chunk_size + policy.context_size
    for rule in rules:
        longest = max(map(len, rule.examples), default=0) // CHARACTERS_PER_TOKEN
        if rule.kind == RuleKind.TOPIC and longest > window:
            numbers = {"rule": str(rule), "tokens": longest, "window": window}
            told.append(
                _(
                    "%(rule)s: the longest example has about %(tokens)d tokens, a window only %(window)d. Use shorter"
                    " examples, or raise chunk size and context size."
                )
                % numbers
            )
    if policy.is_restricted and policy.is_active and not policy.attachments.exists():
        told.append(_("The policy applies nowhere: attach it, or untick “only where it is attached”."))
    return [str(text) for text in told]


def _compile(rule: LightRule, field: str | None, prefix: object) -> None:
    try:
        Scanner([BoundRule(rule, 0)])
    except PatternError as error:
        message = f"{prefix}{error}"
        raise ValidationError({field: message} if field else message, code="pattern") from error


def _circle_check(policy: GuardrailPolicy, judges: set[ModelDeployment], judged: set[object]) -> None:
    """Follows who judges whom: what a deployment says for a judgement is not judged, but what it says to others is.

    A policy that applies everywhere judges no judge; only one that is attached to a deployment can close a circle.
    """
    names = {judge.pk: judge.name for judge in judges}
    asked_by: dict[object, set[object]] = {deployment: set(names) for deployment in judged}
    others = GuardrailAttachment.objects.filter(
        policy__is_restricted=True, deployment__isnull=False, policy__rules__judge_deployment__isnull=False
    ).exclude(policy=policy)
    active = others.exclude(policy__mode=PolicyMode.DRAFT)
    for deployment, judge in active.values_list("deployment", "policy__rules__judge_deployment"):
        asked_by.setdefault(deployment, set()).add(judge)
    for start in judged:
        seen, waiting = set[object](), list(asked_by[start])
        while waiting:
            at = waiting.pop()
            if at == start:
                raise ValidationError(
                    _("A deployment would judge itself (by way of %s): attach the policy elsewhere, or ask another.")
                    % ", ".join(sorted(names.values())),
                    code="judge_circle",
                )
            if at not in seen:
                seen.add(at)
                waiting.extend(asked_by.get(at, ()))
