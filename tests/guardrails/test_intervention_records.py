from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone
from pytest_django import Settings

from apps.guardrails.intervention_records import intervention_mark, interventions_record
from apps.guardrails.models import Intervention
from apps.guardrails.tasks import interventions_expire_task
from apps.tenants.enums import AuditAction
from apps.tenants.models import AuditEvent, Membership, Tenant

from .found import found

pytestmark = pytest.mark.django_db


def aged(stream_id: str, days: int, tenant: Tenant | None = None) -> None:
    """An intervention that was found and stored so long ago."""
    interventions_record(interventions=[found(stream_id, tenant_id=tenant.id.hex if tenant else "gone")])
    at = timezone.now() - timedelta(days=days)
    Intervention.all_tenants.filter(stream_id=stream_id).update(occurred_at=at, recorded_at=at)


def test_a_false_positive_is_marked_and_unmarked_with_a_trail(tenant: Tenant, membership: Membership) -> None:
    interventions_record(interventions=[found(tenant_id=tenant.id.hex)])
    row = Intervention.objects.for_tenant(tenant).get()
    for wanted in (True, True, False):
        row = intervention_mark(intervention=row, is_false_positive=wanted, actor=membership.user)
        assert (row.is_false_positive, row.marked_by_label) == (wanted, membership.user.email)
        assert row.marked_at is not None
    trail = AuditEvent.objects.for_tenant(tenant).filter(action=AuditAction.INTERVENTION_MARKED).order_by("pk")
    assert [event.details["false positive"] for event in trail] == [[False, True], [True, False]]
    assert {event.actor_label for event in trail} == {membership.user.email}


def test_a_mark_says_when(tenant: Tenant) -> None:
    interventions_record(interventions=[found()])
    with pytest.raises(IntegrityError), transaction.atomic():
        Intervention.all_tenants.update(is_false_positive=True)


def test_excerpts_go_with_the_tenants_retention_and_rows_with_the_setting(tenant: Tenant, settings: Settings) -> None:
    settings.HEADRACE_INTERVENTION_DAYS = 60
    tenant.retention_days = 10
    tenant.save()
    for stream_id, days, owner in (("new", 9, tenant), ("old", 11, tenant), ("past", 61, tenant), ("orphan", 31, None)):
        aged(stream_id, days, owner)
    assert interventions_expire_task() == 1
    kept = dict(Intervention.all_tenants.values_list("stream_id", "excerpt"))
    assert kept.keys() == {"new", "old", "orphan"}
    assert kept["new"]
    assert (kept["old"], kept["orphan"]) == ("", "")
