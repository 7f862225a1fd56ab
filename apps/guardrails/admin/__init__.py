"""Admin of guardrail policies and of what they did."""

from apps.guardrails.admin.interventions import InterventionAdmin
from apps.guardrails.admin.policies import GuardrailPolicyAdmin

__all__ = ["GuardrailPolicyAdmin", "InterventionAdmin"]
