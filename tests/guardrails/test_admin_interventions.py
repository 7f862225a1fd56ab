from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

from asgiref.sync import async_to_sync
from django.test import Client
from django.urls import reverse

from apps.accounts.models import User
from apps.guardrails.intervention_records import interventions_record
from apps.guardrails.models import Intervention
from apps.tenants.models import Tenant

from .found import found
from .policies import saved_policy

INTERVENTIONS = reverse("admin:guardrails_intervention_changelist")


def test_interventions_are_looked_at_marked_and_exported_but_never_deleted(
    admin_client: Client, admin_user: User, tenant: Tenant
) -> None:
    interventions_record(interventions=[found("strm-1", tenant_id=tenant.id.hex), found("strm-2", is_shadow=True)])
    row = Intervention.objects.for_tenant(tenant).get()
    page = admin_client.get(reverse("admin:guardrails_intervention_change", args=[row.pk]))
    assert "4…1 (16 characters)" in page.content.decode()
    delete = reverse("admin:guardrails_intervention_delete", args=[row.pk])
    assert admin_client.post(delete, {"post": "yes"}).status_code == 403
    chosen = {"_selected_action": [str(row.pk)]}
    admin_client.post(INTERVENTIONS, {**chosen, "action": "delete_selected", "post": "yes"})
    admin_client.post(INTERVENTIONS, {**chosen, "action": "mark_false_positive"})
    row.refresh_from_db()
    assert (row.is_false_positive, row.marked_by) == (True, admin_user)
    admin_client.post(INTERVENTIONS, {**chosen, "action": "unmark_false_positive"})
    row.refresh_from_db()
    assert not row.is_false_positive
    shadow = admin_client.get(INTERVENTIONS, {"is_shadow__exact": "1"}).context["cl"].result_list
    assert [one.stream_id for one in shadow] == ["strm-2"]


def test_interventions_are_filtered_by_policy(admin_client: Client, tenant: Tenant) -> None:
    policy = saved_policy(tenant)
    interventions_record(interventions=[found("strm-1", policy=policy.pk.hex), found("strm-2")])
    answer = admin_client.get(INTERVENTIONS, {"policy": policy.pk.hex})
    assert [row.stream_id for row in answer.context["cl"].result_list] == ["strm-1"]
    by_rule = admin_client.get(INTERVENTIONS, {"rule_label__icontains": "no such rule"})
    assert list(by_rule.context["cl"].result_list) == []


def test_interventions_are_exported(admin_client: Client, tenant: Tenant) -> None:
    async def read(chunks: AsyncIterator[bytes]) -> str:
        return b"".join([chunk async for chunk in chunks]).decode()

    interventions_record(interventions=[found("strm-1", tenant_id=tenant.id.hex, excerpt="=1+1")])
    chosen = {"_selected_action": [str(Intervention.objects.for_tenant(tenant).get().pk)], "action": "export"}
    answer: Any = admin_client.post(INTERVENTIONS, chosen)
    text = async_to_sync(read)(answer.streaming_content)
    assert text.splitlines()[0].startswith("occurred_at,stream_id,tenant_id,tenant_name")
    assert ",'=1+1," in text


def test_counts_by_tenant(admin_client: Client, tenant: Tenant, other_tenant: Tenant) -> None:
    now = datetime.now(UTC).timestamp()
    mine, other = {"tenant_id": tenant.id.hex, "occurred_at": now}, {"tenant_id": other_tenant.id.hex}
    interventions_record(
        interventions=[found("a", **mine), found("b", **mine, is_shadow=True), found("c", **other, occurred_at=now)]
    )
    page = admin_client.get(reverse("admin:guardrails_intervention_counts"), {"days": "1"})
    rows = [(row["label"], row["total"], row["masked"], row["shadow"]) for row in page.context["rows"]]
    assert rows == [("Acme", 2, 2, 1), ("Globex", 1, 1, 0)]
    assert "Acme" in page.content.decode()


# ---- test bench
