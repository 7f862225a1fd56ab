"""Guardrail policies with their rules and versions, and what they did."""

from apps.guardrails.models.interventions import Intervention
from apps.guardrails.models.policies import GuardrailAttachment, GuardrailPolicy, PolicyVersion
from apps.guardrails.models.rules import GuardrailRule

__all__ = [
    "GuardrailAttachment",
    "GuardrailPolicy",
    "GuardrailRule",
    "Intervention",
    "PolicyVersion",
]
