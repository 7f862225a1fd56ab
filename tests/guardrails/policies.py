"""Policies for tests, unsaved."""

from typing import Any

from apps.guardrails.enums import Action, PolicyMode, RuleKind
from apps.guardrails.models import GuardrailPolicy, GuardrailRule
from apps.guardrails.services import policy_save
from apps.tenants.models import Tenant


def card_rule(**values: Any) -> GuardrailRule:
    return GuardrailRule(kind=RuleKind.PERSONAL_DATA, personal_data={"CREDIT_CARD": Action.MASK}, **values)


def word_rule(*words: str, **values: Any) -> GuardrailRule:
    return GuardrailRule(kind=RuleKind.LITERALS, words=list(words), **values)


def saved_policy(tenant: Tenant | None, *rules: GuardrailRule, **values: Any) -> GuardrailPolicy:
    """A policy that is enforced, with a mask for card numbers where no rules are given."""
    policy = GuardrailPolicy(tenant=tenant, **{"name": "Cards", "mode": PolicyMode.ENFORCED, **values})
    policy_save(policy=policy, rules=list(rules) or [card_rule()])
    return policy
