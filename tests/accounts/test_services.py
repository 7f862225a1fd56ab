from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from apps.accounts import services
from apps.accounts.models import ApiKey, User
from apps.accounts.selectors import api_key_configs, api_key_list, user_get
from apps.deployments.models import ModelDeployment
from apps.deployments.services import deployment_delete
from apps.tenants.enums import AuditAction
from apps.tenants.managers import UnscopedQueryError
from apps.tenants.models import AuditEvent, Membership, Tenant
from apps.tenants.services import membership_delete
from headrace_wire.api_key import ApiKeyToken

Issued = tuple[ApiKey, ApiKeyToken]


def test_a_key_of_another_tenant_is_not_found(issued: Issued, tenant: Tenant, other_tenant: Tenant) -> None:
    key, _ = issued
    assert list(api_key_list(tenant=tenant)) == [key]
    assert not api_key_list(tenant=other_tenant)
    with pytest.raises(ApiKey.DoesNotExist):
        ApiKey.objects.for_tenant(other_tenant).get(pk=key.pk)


@pytest.mark.parametrize("ask", ["all", "count", "first", "exists", "filter", "get", "create"])
def test_a_query_without_a_tenant_is_refused(db: None, ask: str) -> None:
    with pytest.raises(UnscopedQueryError, match="for_tenant"):
        getattr(ApiKey.objects, ask)()


def test_a_key_belongs_to_a_member_of_its_tenant(tenant: Tenant, user: User, other_tenant: Tenant) -> None:
    with pytest.raises(ValidationError, match="not a member"):
        services.api_key_create(api_key=ApiKey(tenant=tenant, user=user, name="hers"))
    assert not ApiKey.all_tenants.exists()


def test_rotation_keeps_rights_owner_and_length_of_life(membership: Membership, deployment: ModelDeployment) -> None:
    expires_at = timezone.now() + timedelta(days=30)
    key = ApiKey(
        tenant=membership.tenant,
        user=membership.user,
        name="hers",
        scopes=["models"],
        is_restricted=True,
        expires_at=expires_at,
    )
    old, _ = services.api_key_create(api_key=key, allowed_deployments=[deployment])
    new, token = services.api_key_rotate(api_key=old, grace=timedelta(minutes=5), actor=membership.user)

    assert (new.tenant, new.user, new.name, new.scopes) == (old.tenant, old.user, old.name, old.scopes)
    assert new.is_restricted
    assert list(new.allowed_deployments.all()) == [deployment]
    assert new.public_id == token.public_id != old.public_id
    assert new.expires_at is not None
    assert abs(new.expires_at - expires_at) < timedelta(minutes=1)
    old.refresh_from_db()
    assert old.expires_at is not None
    assert old.is_usable(at=timezone.now())
    assert not old.is_usable(at=timezone.now() + timedelta(minutes=6))


def test_rotation_never_lengthens_the_old_key(tenant: Tenant) -> None:
    soon = timezone.now() + timedelta(minutes=1)
    old, _ = services.api_key_create(api_key=ApiKey(tenant=tenant, name="short", expires_at=soon))
    services.api_key_rotate(api_key=old, grace=timedelta(hours=24))
    old.refresh_from_db()
    assert old.expires_at == soon


def test_an_ended_key_is_not_rotated(issued: Issued) -> None:
    key, _ = issued
    services.api_key_revoke(api_key=key)
    with pytest.raises(ValidationError, match="revoked or expired"):
        services.api_key_rotate(api_key=key)


def test_revoking_twice_changes_nothing(issued: Issued) -> None:
    first = services.api_key_revoke(api_key=issued[0])
    second = services.api_key_revoke(api_key=issued[0])
    assert first.revoked_at == second.revoked_at
    assert AuditEvent.all_tenants.filter(action=AuditAction.API_KEY_REVOKED).count() == 1


def test_a_key_does_not_move_to_another_tenant(issued: Issued, other_tenant: Tenant) -> None:
    key, _ = issued
    key.tenant = other_tenant
    with pytest.raises(ValidationError, match="stays with its tenant"):
        services.api_key_update(api_key=key)


def test_an_update_without_a_change_leaves_no_trace(issued: Issued) -> None:
    before = AuditEvent.all_tenants.count()
    services.api_key_update(api_key=issued[0], allowed_deployments=[])
    assert AuditEvent.all_tenants.count() == before


def test_snapshot_says_who_may_use_what(issued: Issued, deployment: ModelDeployment) -> None:
    key, _ = issued
    assert api_key_configs()[0].deployment_ids is None

    key.is_restricted = True
    services.api_key_update(api_key=key, allowed_deployments=[deployment])
    assert api_key_configs()[0].deployment_ids == frozenset({deployment.id.hex})

    deployment_delete(deployment=deployment)
    assert api_key_configs()[0].deployment_ids == frozenset(), "a lost deployment must not open all others"


def test_snapshot_says_when_a_key_ends(issued: Issued, membership: Membership) -> None:
    key, _ = issued
    assert (api_key_configs()[0].expires_at, api_key_configs()[0].revoked) == (None, False)
    services.api_key_revoke(api_key=key)
    assert api_key_configs()[0].revoked
    ApiKey.all_tenants.filter(pk=key.pk).update(revoked_at=timezone.now() - timedelta(days=2))
    assert api_key_configs() == []


def test_keys_of_a_switched_off_user_are_refused(membership: Membership) -> None:
    services.api_key_create(api_key=ApiKey(tenant=membership.tenant, user=membership.user, name="hers"))
    person = membership.user
    person.is_active = False
    services.user_update(user=person)
    assert api_key_configs()[0].revoked


def test_keys_of_a_former_member_are_refused(membership: Membership) -> None:
    services.api_key_create(api_key=ApiKey(tenant=membership.tenant, user=membership.user, name="hers"))
    membership_delete(membership=membership)
    assert api_key_configs()[0].revoked


def test_snapshot_section_takes_a_fixed_number_of_queries(
    tenant: Tenant, deployment: ModelDeployment, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(5):
        key = ApiKey(tenant=tenant, name=f"key {number}", is_restricted=True)
        services.api_key_create(api_key=key, allowed_deployments=[deployment])
    with django_assert_num_queries(2):
        assert len(api_key_configs()) == 5


def test_emails_are_one_whatever_their_case(user: User) -> None:
    assert user_get(email=" ANN@Example.com ") == user
    with pytest.raises(ValidationError, match="There is a user with this email"):
        services.user_create(user=User(email="Ann@EXAMPLE.com"))
    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.create(email="Upper@Example.com")


def test_a_user_without_a_password_cannot_sign_in(db: None) -> None:
    user = User(email="nobody@example.com")
    user.set_unusable_password()
    assert not services.user_create(user=user).has_usable_password()


def test_createsuperuser_works(db: None) -> None:
    user = User.objects.create_superuser("Root@Example.com", "a long enough password")
    assert (user.email, user.is_staff, user.is_superuser) == ("root@example.com", True, True)
