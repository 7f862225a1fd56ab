from importlib import import_module

import pytest
from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from pytest_django import Settings

from apps.accounts.models import User
from apps.quotas.models import Plan
from apps.quotas.services import plan_create
from apps.tenants import selectors, services
from apps.tenants.enums import AuditAction, ExcerptRetention, InexactPolicy, MemberRole
from apps.tenants.managers import UnscopedQueryError
from apps.tenants.models import AuditEvent, Membership, Tenant
from apps.tenants.outside_address import InsideAddressError, outside_addresses
from apps.tenants.sealed_text import UnreadableTextError, seal, unseal
from apps.usage.webhooks import WebhookError, webhook_post
from headrace_wire import guard_policy as wire
from headrace_wire.messages import Inexact
from headrace_wire.snapshot import DetachedPolicy, TenantConfig


def test_a_tenant_is_created_with_an_audit_row(user: User) -> None:
    tenant = services.tenant_create(tenant=Tenant(slug="acme", name="Acme"), actor=user)
    event = AuditEvent.objects.for_tenant(tenant).get()
    assert (event.action, event.actor, event.actor_label) == (AuditAction.TENANT_CREATED, user, user.email)
    assert event.details["slug"] == [None, "acme"]
    assert event.object_id == str(tenant.pk)


def test_the_system_is_named_where_nobody_acted(tenant: Tenant) -> None:
    event = AuditEvent.objects.for_tenant(tenant).get()
    assert (event.actor, event.actor_label) == (None, services.SYSTEM)


def test_an_update_tells_before_and_after_and_nothing_else(tenant: Tenant) -> None:
    tenant.detached_policy = DetachedPolicy.ABORT
    services.tenant_update(tenant=tenant)
    event = AuditEvent.objects.for_tenant(tenant).filter(action=AuditAction.TENANT_CHANGED).get()
    assert event.details == {"detached_policy": ["finish", "abort"]}


def test_an_update_without_a_change_leaves_no_trace(tenant: Tenant) -> None:
    services.tenant_update(tenant=tenant)
    assert AuditEvent.objects.for_tenant(tenant).count() == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("time_zone", "Mars/Olympus"),
        ("log_retention_seconds", 3599),
        ("stream_window", 7),
        ("max_connections", 0),
        ("detached_policy", "forget"),
        ("retention_days", 0),
        ("stall_timeout_seconds", 0.0),
        ("slug", "other"),
    ],
)
def test_a_value_that_cannot_be_is_refused(tenant: Tenant, field: str, value: object) -> None:
    setattr(tenant, field, value)
    with pytest.raises(ValidationError) as refusal:
        services.tenant_update(tenant=tenant)
    assert field in refusal.value.message_dict
    assert AuditEvent.objects.for_tenant(tenant).count() == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("log_retention_seconds", 10), ("stream_window", 1), ("retention_days", 0), ("detached_policy", "forget")],
)
def test_the_database_refuses_what_goes_around_the_services(tenant: Tenant, field: str, value: object) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Tenant.objects.filter(pk=tenant.pk).update(**{field: value})


def test_a_user_is_a_member_once(membership: Membership) -> None:
    with pytest.raises(ValidationError):
        services.membership_create(tenant=membership.tenant, user=membership.user)
    with pytest.raises(IntegrityError), transaction.atomic():
        Membership.all_tenants.create(tenant=membership.tenant, user=membership.user)


def test_a_role_changes_and_ends_with_audit_rows(membership: Membership) -> None:
    tenant = membership.tenant
    membership.role = MemberRole.MEMBER
    services.membership_update(membership=membership)
    services.membership_delete(membership=membership)
    actions = AuditEvent.objects.for_tenant(tenant).order_by("pk").values_list("action", flat=True)
    assert list(actions)[1:] == [AuditAction.MEMBER_ADDED, AuditAction.MEMBER_CHANGED, AuditAction.MEMBER_REMOVED]


def test_a_membership_does_not_move(membership: Membership, other_tenant: Tenant) -> None:
    membership.tenant = other_tenant
    with pytest.raises(ValidationError, match="stays with"):
        services.membership_update(membership=membership)


def test_keys_are_cut_in_audit_rows(tenant: Tenant) -> None:
    secret = "A" * 40
    tenant.name = f"sk-hr-aaaabbbbcccc-{secret}"
    services.tenant_update(tenant=tenant)
    event = AuditEvent.objects.for_tenant(tenant).filter(action=AuditAction.TENANT_CHANGED).get()
    assert secret not in f"{event.details}{event.object_label}"
    assert "sk-hr-aaaabbbbcccc-…" in event.object_label


def test_a_membership_of_another_tenant_is_not_found(membership: Membership, other_tenant: Tenant) -> None:
    assert selectors.membership_get(tenant=membership.tenant, user=membership.user) == membership
    assert selectors.membership_get(tenant=other_tenant, user=membership.user) is None


def test_inactive_tenants_and_users_have_no_place(membership: Membership) -> None:
    tenant, user = membership.tenant, membership.user
    tenant.is_active = False
    services.tenant_update(tenant=tenant)
    assert selectors.membership_get(tenant=tenant, user=user) is None
    assert not selectors.membership_list(user=user)


def test_the_chosen_place_is_one_of_the_users_own(membership: Membership, other_tenant: Tenant) -> None:
    user = membership.user
    for asked in (None, other_tenant.pk, "nonsense", str(membership.tenant_id)):
        assert selectors.membership_choose(user=user, tenant_id=asked) == membership
    second = services.membership_create(tenant=other_tenant, user=user)
    assert selectors.membership_choose(user=user, tenant_id=other_tenant.pk) == second


@pytest.mark.parametrize("model", [Membership, AuditEvent])
def test_a_query_without_a_tenant_is_refused(db: None, model: type[Membership] | type[AuditEvent]) -> None:
    with pytest.raises(UnscopedQueryError, match="for_tenant"):
        model.objects.all()


def test_a_plan_is_in_the_snapshot(tenant: Tenant) -> None:
    tenant.plan = plan_create(plan=Plan(name="Gold", weight=8, priority=0, request_priorities=[2, 0, 2]))
    services.tenant_update(tenant=tenant)
    (config,) = selectors.tenant_configs()
    assert (config.weight, config.priority, config.request_priorities) == (8, 0, frozenset({0, 2}))


def test_a_webhook_never_lacks_a_secret_and_no_audit_row_has_it(tenant: Tenant) -> None:
    tenant.webhook_url = "https://example.org/hook"
    services.tenant_update(tenant=tenant)
    sealed = Tenant.objects.get().webhook_secret
    first = unseal(sealed)
    assert first.startswith("whsec_")
    assert first not in sealed
    second = services.tenant_webhook_secret_renew(tenant=tenant)
    stale = Tenant.objects.get()
    stale.webhook_secret, stale.name = sealed, "Renamed"
    services.tenant_update(tenant=stale)
    assert unseal(Tenant.objects.get().webhook_secret) == second != first
    events = AuditEvent.objects.for_tenant(tenant)
    assert events.filter(action=AuditAction.TENANT_WEBHOOK_SECRET_RENEWED).count() == 1
    assert not [event for event in events if first in str(event.details) or second in str(event.details)]


def test_what_was_sealed_is_read_with_our_keys_alone(settings: Settings) -> None:
    sealed = seal("whsec_x")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another", [settings.SECRET_KEY]
    assert unseal(sealed) == "whsec_x"
    settings.SECRET_KEY_FALLBACKS = []
    with pytest.raises(UnreadableTextError):
        unseal(sealed)


def test_secrets_of_older_releases_are_sealed_and_can_go_back(tenant: Tenant) -> None:
    migration = import_module("apps.tenants.migrations.0007_seal_webhook_secrets")
    Tenant.objects.update(webhook_secret="whsec_x")
    migration.seal(apps, None)
    assert unseal(Tenant.objects.get().webhook_secret) == "whsec_x"
    migration.unseal(apps, None)
    assert Tenant.objects.get().webhook_secret == "whsec_x"


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "localhost",
            "10.1.2.3",
            "192.168.0.9",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "2130706433",
        ),
        *("[::1]", "[::ffff:127.0.0.1]", "[fd00::1]", "[fe80::1]", "[2002:7f00:1::]"),
    ],
)
def test_a_webhook_does_not_lead_inside(tenant: Tenant, settings: Settings, host: str) -> None:
    settings.HEADRACE_WEBHOOK_INTERNAL = False
    with pytest.raises(InsideAddressError):
        outside_addresses(host.strip("[]"), 443)
    tenant.webhook_url = f"http://{host}/hook"
    with pytest.raises(ValidationError):
        services.tenant_update(tenant=tenant)
    with pytest.raises(WebhookError):
        webhook_post(url=tenant.webhook_url, headers={}, body=b"")
    assert outside_addresses("1.1.1.1", 443) == ["1.1.1.1"]


@pytest.mark.parametrize("port", [0, 65536, 99999])
def test_a_webhook_has_a_port_that_there_is(tenant: Tenant, port: int) -> None:
    tenant.webhook_url = f"https://example.org:{port}/hook"
    with pytest.raises(ValidationError, match="ports are from 1 to 65535"):
        services.tenant_update(tenant=tenant)


@pytest.mark.parametrize("url", ["ftp://example.org/", "javascript:alert(1)", "example.org/hook"])
def test_a_webhook_goes_to_http_only(tenant: Tenant, url: str) -> None:
    tenant.webhook_url = url
    with pytest.raises(ValidationError):
        services.tenant_update(tenant=tenant)


def test_snapshot_section(tenant: Tenant) -> None:
    assert selectors.tenant_configs() == [TenantConfig(id=tenant.id.hex, slug="acme", name="Acme")]
    tenant.is_active = False
    tenant.inexact_penalties = InexactPolicy.FAIL
    tenant.intervention_excerpts = ExcerptRetention.FULL
    tenant.draft_tokens_per_minute = 0
    services.tenant_update(tenant=tenant)
    config = selectors.tenant_configs()[0]
    assert not config.active
    assert config.continue_inexactly == {Inexact.PRECISION, Inexact.SAMPLING}
    assert config.intervention_excerpts is wire.ExcerptRetention.FULL
    assert config.draft_tokens_per_minute == 0
