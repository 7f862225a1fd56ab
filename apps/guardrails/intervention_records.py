"""Writes of interventions: added once, marked by people, deleted by age."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from apps.guardrails.models import GuardrailPolicy, PolicyVersion
from apps.guardrails.models import Intervention as Row
from apps.guardrails.selectors import version_content
from apps.tenants.enums import AuditAction
from apps.tenants.models import Tenant
from apps.tenants.references import LABEL_LENGTH, label_of, rows_by_ref
from apps.tenants.services import Actor, audit_record
from apps.usage.upserts import rows_insert_new
from headrace_wire.interventions import Intervention

EXPIRE_BATCH = 5_000
ORPHAN_DAYS = 30
"""How long excerpts are kept whose tenant is gone."""


@transaction.atomic
def interventions_record(*, interventions: Sequence[Intervention]) -> int:
    """Stores interventions; returns how many were new. Those that are there already change nothing.

    Raises:
        django.db.Error: Nothing is stored.
    """
    names = _Names(interventions)
    rows = {found.id: names.row(found) for found in reversed(interventions)}
    return len(rows_insert_new([rows[ref] for ref in sorted(rows)], once="ref"))


@transaction.atomic
def intervention_mark(*, intervention: Row, is_false_positive: bool, actor: Actor = None) -> Row:
    """Says that the rule found what it should not have, or takes that back."""
    row = Row.all_tenants.select_for_update().get(pk=intervention.pk)
    if row.is_false_positive == is_false_positive:
        return row
    before, row.is_false_positive = row.is_false_positive, is_false_positive
    row.marked_by_id = actor.pk if actor is not None else None
    row.marked_by_label = str(actor)[:254] if actor is not None else ""
    row.marked_at = timezone.now()
    row.save(update_fields=["is_false_positive", "marked_by", "marked_by_label", "marked_at"])
    audit_record(
        tenant=row.tenant,
        actor=actor,
        action=AuditAction.INTERVENTION_MARKED,
        target=row,
        details={"false positive": [before, is_false_positive], "stream": row.stream_id, "rule": row.rule_label},
    )
    return row


def interventions_expire() -> int:
    """Deletes interventions past `HEADRACE_INTERVENTION_DAYS`; returns how many.

    Excerpts are words of conversations, and go with those: after their tenant's retention.
    """
    for tenant_id, days in [*Tenant.objects.order_by("pk").values_list("pk", "retention_days"), (None, ORPHAN_DAYS)]:
        _old(days).filter(tenant=tenant_id).exclude(excerpt="").update(excerpt="")
    deleted = 0
    while chosen := list(_old(settings.HEADRACE_INTERVENTION_DAYS).values_list("pk", flat=True)[:EXPIRE_BATCH]):
        deleted += Row.all_tenants.filter(pk__in=chosen).delete()[0]
    return deleted


def _old(days: int) -> "QuerySet[Row]":
    """Age counts from when the database got them as well: what comes late is not gone at once."""
    before = timezone.now() - timedelta(days=days)
    return Row.all_tenants.filter(occurred_at__lt=before, recorded_at__lt=before).order_by()


class _Names:
    """What the database knows of those whom a batch names."""

    def __init__(self, interventions: Sequence[Intervention]) -> None:
        self.tenants = rows_by_ref(Tenant, {found.tenant_id for found in interventions})
        self.policies = rows_by_ref(GuardrailPolicy, {found.policy for found in interventions})
        numbers = {(found.policy, found.policy_version) for found in interventions}
        self.versions = {
            (policy, number): version
            for policy, number in numbers
            if policy in self.policies
            and (version := PolicyVersion.objects.filter(policy=self.policies[policy], number=number).first())
        }
        self.rules = {
            (policy, rule.key): rule.name
            for (policy, _), version in self.versions.items()
            for rule in version_content(version).rules
        }

    def row(self, found: Intervention) -> Row:
        tenant = self.tenants.get(found.tenant_id)
        return Row(
            ref=found.id,
            stream_id=found.stream_id,
            tenant=tenant,
            tenant_ref=found.tenant_id,
            tenant_label=label_of(tenant) or found.tenant_id,
            deployment_label=found.deployment,
            policy_version=self.versions.get((found.policy, found.policy_version)),
            policy_ref=found.policy,
            policy_label=label_of(self.policies.get(found.policy)) or found.policy,
            policy_number=found.policy_version,
            rule_ref=found.rule,
            rule_label=self.rules.get((found.policy, found.rule), found.rule)[:LABEL_LENGTH],
            rule_kind=found.rule_kind,
            finding=found.finding,
            direction=found.direction.value,
            action=found.action.value,
            outcome=found.outcome.value,
            is_shadow=found.is_shadow,
            start=found.start,
            end=found.end,
            excerpt=found.excerpt,
            held_ms=found.held_ms,
            occurred_at=datetime.fromtimestamp(found.occurred_at, UTC),
        )
