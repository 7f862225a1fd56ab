"""Reads of policies and interventions."""

from datetime import datetime
from typing import Any

from django.db.models import Count, F, Max, Q, QuerySet

from apps.guardrails.enums import Outcome, PolicyMode
from apps.guardrails.models import GuardrailAttachment, GuardrailPolicy, Intervention, PolicyVersion
from headrace_wire.guard_policy import GuardAttachment, GuardPolicy, decode_policy


def guard_attachments() -> list[GuardAttachment]:
    """Returns the snapshot's section: where which version of which active policy applies."""
    return [
        attachment
        for version in active_versions().select_related("policy").prefetch_related("policy__attachments__api_key")
        for attachment in _attachments(version)
    ]


def active_versions() -> "QuerySet[PolicyVersion]":
    """Returns the newest versions of the policies that are no drafts, without their bodies."""
    newest = PolicyVersion.objects.filter(number=F("policy__version")).exclude(policy__mode=PolicyMode.DRAFT)
    return newest.defer("body").order_by("policy__created_at", "policy")


def version_bodies(*, digests: list[str]) -> dict[str, bytes]:
    """Returns the encoded bodies of versions, by digest."""
    rows = PolicyVersion.objects.filter(digest__in=digests).values_list("digest", "body")
    return {digest: bytes(body) for digest, body in rows}


def version_content(version: PolicyVersion) -> GuardPolicy:
    """Returns what the version says."""
    return decode_policy(bytes(version.body))


def policy_newest_version(*, policy: GuardrailPolicy) -> PolicyVersion | None:
    """Returns the version that acts where the policy is no draft; None before it was saved."""
    return PolicyVersion.objects.filter(policy=policy, number=policy.version).first()


def intervention_counts(*, since: datetime) -> list[dict[str, Any]]:
    """Returns a row for each tenant with interventions since then: how many in all, by outcome, shadow and wrong."""
    by = {
        "total": Q(),
        **{outcome.value: Q(outcome=outcome) for outcome in Outcome},
        "shadow": Q(is_shadow=True),
        "wrong": Q(is_false_positive=True),
    }
    rows = Intervention.all_tenants.filter(occurred_at__gte=since).values("tenant_ref", "tenant").order_by()
    counts: dict[str, Any] = {name: Count("pk", filter=which) for name, which in by.items()}
    counted: Any = rows.annotate(label=Max("tenant_label"), **counts)
    return list(counted.order_by("-total", "label"))


def _attachments(version: PolicyVersion) -> list[GuardAttachment]:
    policy = version.policy
    owner = policy.tenant_id.hex if policy.tenant_id else None
    if not policy.is_restricted:
        return [GuardAttachment(digest=version.digest, name=policy.name, tenant_id=owner)]
    return [
        GuardAttachment(
            digest=version.digest,
            name=policy.name,
            tenant_id=owner or _tenant_of(attachment),
            deployment_id=attachment.deployment_id.hex if attachment.deployment_id else None,
            api_key_id=attachment.api_key_id.hex if attachment.api_key_id else None,
        )
        for attachment in policy.attachments.all()
    ]


def _tenant_of(attachment: GuardrailAttachment) -> str | None:
    if attachment.api_key is not None:
        return attachment.api_key.tenant_id.hex
    return attachment.tenant_id.hex if attachment.tenant_id else None
