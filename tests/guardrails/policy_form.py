"""The form of a policy, as a browser sends it."""

from typing import Any

from apps.guardrails.enums import PersonalDataKind


def rule_fields(number: int = 0, **values: Any) -> dict[str, Any]:
    """The fields of a rule's form that masks card numbers, as a browser sends them."""
    kinds = {f"personal_data_{kind.value}": "" for kind in PersonalDataKind}
    fields = {
        "kind": "personal_data",
        "applies_to": "output",
        "action": "block",
        "severity": "medium",
        "position": "0",
        "whole_words": "on",
        **kinds,
        "personal_data_CREDIT_CARD": "mask",
        **values,
    }
    return {f"rules-{number}-{name}": value for name, value in fields.items()}


def policy_form(*rules: dict[str, Any], initial: int = 0, **values: Any) -> dict[str, Any]:
    form = {
        "name": "Card numbers",
        "mode": "enforced",
        "failure_mode": "closed",
        "on_input_trip": "refuse",
        "replacement": "I cannot help with that.",
        "chunk_size": "16",
        "context_size": "8",
        "judge_deadline_seconds": "5",
        "rules-TOTAL_FORMS": str(len(rules)),
        "rules-INITIAL_FORMS": str(initial),
        "attachments-TOTAL_FORMS": "0",
        "attachments-INITIAL_FORMS": "0",
        **values,
    }
    for rule in rules:
        form.update(rule)
    return form


def errors_of(answer: Any) -> str:
    context = answer.context
    inlines = [formset.formset.errors for formset in context["inline_admin_formsets"]]
    return f"{context['adminform'].form.errors} {inlines} {context['errors']}"
