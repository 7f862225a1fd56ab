import html
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from apps.accounts.models import User
from apps.accounts.services import user_create
from apps.tenants import services
from apps.tenants.enums import AuditAction
from apps.tenants.models import AuditEvent, Membership, Tenant
from apps.tenants.sealed_text import unseal
from apps.tenants.services import membership_create, tenant_create

TENANTS = reverse("admin:tenants_tenant_changelist")
MEMBERS = reverse("admin:tenants_membership_changelist")
AUDIT = reverse("admin:tenants_auditevent_changelist")


def tenant_form(**changes: Any) -> dict[str, Any]:
    form = {
        "name": "Initech",
        "slug": "initech",
        "is_active": "on",
        "time_zone": "Europe/Zurich",
        "retention_days": "30",
        "log_retention_seconds": "3600",
        "stream_window": "256",
        "max_connections": "1024",
        "detached_policy": "finish",
        "detached_tokens": "256",
        "detached_grace_seconds": "30",
        "stall_timeout_seconds": "60",
        "draft_tokens_per_minute": "100000",
        "inexact_penalties": "continue",
        "inexact_precision": "continue",
        "inexact_sampling": "continue",
        "intervention_excerpts": "redacted",
        "memberships-TOTAL_FORMS": "0",
        "memberships-INITIAL_FORMS": "0",
    }
    return {**form, **changes}


def change_page(tenant: Tenant) -> str:
    return reverse("admin:tenants_tenant_change", args=[tenant.pk])


def actions() -> list[str]:
    return [event.action for event in AuditEvent.all_tenants.order_by("pk")]


def test_a_tenant_is_made_with_its_first_member(admin_client: Client, user: User) -> None:
    form = tenant_form(
        **{"memberships-TOTAL_FORMS": "1", "memberships-0-user": str(user.pk), "memberships-0-role": "owner"}
    )
    answer = admin_client.post(reverse("admin:tenants_tenant_add"), form)
    assert answer.status_code == 302
    tenant = Tenant.objects.get(slug="initech")
    assert Membership.objects.for_tenant(tenant).get().user == user
    assert actions()[-2:] == [AuditAction.TENANT_CREATED, AuditAction.MEMBER_ADDED]
    assert {event.actor for event in AuditEvent.objects.for_tenant(tenant)} == {User.objects.get(is_superuser=True)}


def test_a_webhook_secret_is_shown_once(admin_client: Client, tenant: Tenant) -> None:
    page = reverse("admin:tenants_tenant_renew_webhook_secret", args=[tenant.pk])
    assert "whsec_" not in admin_client.get(page).content.decode()
    shown = admin_client.post(page)
    secret = unseal(Tenant.objects.get().webhook_secret)
    assert secret in html.unescape(shown.content.decode())
    assert "no-store" in shown["Cache-Control"]
    for again in (page, change_page(tenant), AUDIT):
        assert secret not in html.unescape(admin_client.get(again).content.decode())


def test_members_are_changed_and_removed_on_the_tenants_page(admin_client: Client, membership: Membership) -> None:
    tenant = membership.tenant
    row = {
        "memberships-TOTAL_FORMS": "1",
        "memberships-INITIAL_FORMS": "1",
        "memberships-0-id": str(membership.pk),
        "memberships-0-tenant": str(tenant.pk),
        "memberships-0-user": str(membership.user_id),
        "memberships-0-role": "member",
    }
    form = tenant_form(name=tenant.name, slug=tenant.slug, time_zone="UTC")
    assert admin_client.post(change_page(tenant), {**form, **row}).status_code == 302
    assert admin_client.post(change_page(tenant), {**form, **row, "memberships-0-DELETE": "on"}).status_code == 302
    assert actions()[-2:] == [AuditAction.MEMBER_CHANGED, AuditAction.MEMBER_REMOVED]
    assert not Membership.objects.for_tenant(tenant).exists()


def test_a_user_is_not_added_twice(admin_client: Client, membership: Membership) -> None:
    tenant = membership.tenant
    rows: dict[str, str] = {"memberships-TOTAL_FORMS": "2", "memberships-INITIAL_FORMS": "1"}
    for number, pk in enumerate((str(membership.pk), "")):
        rows |= {
            f"memberships-{number}-id": pk,
            f"memberships-{number}-user": str(membership.user_id),
            f"memberships-{number}-role": "owner",
        }
    answer = admin_client.post(change_page(tenant), {**tenant_form(name=tenant.name), **rows})
    assert answer.status_code == 200
    assert "duplicate" in answer.content.decode()


@pytest.mark.parametrize(
    ("field", "value"),
    [("time_zone", "Nowhere"), ("log_retention_seconds", "60"), ("slug", "not a slug"), ("name", "")],
)
def test_bad_values_are_shown_in_the_form(admin_client: Client, field: str, value: str) -> None:
    answer = admin_client.post(reverse("admin:tenants_tenant_add"), tenant_form(**{field: value}))
    assert answer.status_code == 200
    assert field in answer.context["adminform"].form.errors
    assert not Tenant.objects.exists()


def test_the_slug_stays(admin_client: Client, tenant: Tenant) -> None:
    admin_client.post(change_page(tenant), tenant_form(slug="other", name="Renamed"))
    tenant.refresh_from_db()
    assert (tenant.slug, tenant.name) == ("acme", "Renamed")


def test_what_a_service_refuses_late_is_a_message(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody takes the slug between the form's check and the service's."""
    create = services.tenant_create

    def overtaken(*, tenant: Tenant, actor: Any = None) -> Tenant:
        monkeypatch.undo()
        create(tenant=Tenant(slug="free", name="Faster"))
        return create(tenant=tenant, actor=actor)

    monkeypatch.setattr(services, "tenant_create", overtaken)
    answer = admin_client.post(reverse("admin:tenants_tenant_add"), tenant_form(slug="free"), follow=True)
    assert "already exists" in answer.content.decode()


def test_tenants_and_audit_rows_cannot_be_deleted_or_written(admin_client: Client, tenant: Tenant) -> None:
    event = AuditEvent.objects.for_tenant(tenant).get()
    assert admin_client.post(reverse("admin:tenants_tenant_delete", args=[tenant.pk])).status_code == 403
    for name in ("delete", "change"):
        url = reverse(f"admin:tenants_auditevent_{name}", args=[event.pk])
        assert admin_client.post(url, {"actor_label": "nobody"}).status_code == 403
    assert admin_client.get(reverse("admin:tenants_auditevent_add")).status_code == 403
    page = admin_client.get(reverse("admin:tenants_auditevent_change", args=[event.pk])).content.decode()
    assert "Tenant created" in page


def test_lists_take_a_fixed_number_of_queries(
    admin_client: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    def make(first: int, count: int) -> None:
        for number in range(first, first + count):
            tenant = tenant_create(tenant=Tenant(slug=f"tenant-{number}", name=f"Tenant {number}"))
            user = user_create(user=User(email=f"user{number}@example.com"))
            membership_create(tenant=tenant, user=user)

    make(0, 1)
    for url, queries in ((TENANTS, 5), (MEMBERS, 5), (AUDIT, 5)):
        admin_client.get(url)
        with django_assert_num_queries(queries, info=url):
            admin_client.get(url)
    make(1, 8)
    for url, queries in ((TENANTS, 5), (MEMBERS, 5), (AUDIT, 5)):
        with django_assert_num_queries(queries, info=url):
            admin_client.get(url)
