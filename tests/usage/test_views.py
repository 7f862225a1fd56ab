"""A member's own page: his keys and his usage, and nobody else's."""

import re

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from apps.accounts.models import ApiKey, User
from apps.accounts.services import api_key_create, api_key_revoke, user_create
from apps.tenants.models import AuditEvent, Membership, Tenant
from apps.tenants.services import membership_create
from headrace_wire.api_key import ApiKeyToken

PAGE = reverse("usage:own")
TOKEN = re.compile(r"sk-hr-[a-z0-9]{12}-[A-Za-z0-9]{40}")


@pytest.fixture
def member(client: Client, membership: Membership) -> Client:
    client.force_login(membership.user)
    return client


def make(client: Client, name: str = "laptop") -> str:
    form_id = client.get(PAGE).context["form"]["form_id"].value()
    return client.post(PAGE, {"name": name, "form_id": form_id}).content.decode()


def test_a_member_makes_a_key_of_his_own_which_is_shown_once(member: Client, membership: Membership) -> None:
    html = make(member)
    found = TOKEN.search(html)
    assert found is not None
    token = ApiKeyToken.parse(found[0])
    key = ApiKey.objects.for_tenant(membership.tenant).get()
    assert token is not None
    assert token.matches(bytes(key.secret_sha256))
    assert (key.user, key.name, key.created_by) == (membership.user, "laptop", membership.user)
    assert sorted(key.scopes) == ["inference", "models"], "what members get; more is for administrators"
    again = member.get(PAGE)
    assert "laptop" in again.content.decode()
    assert not TOKEN.search(again.content.decode())
    assert again["Cache-Control"] == "no-store"


def test_reloading_the_answer_makes_no_second_key(member: Client) -> None:
    form_id = member.get(PAGE).context["form"]["form_id"].value()
    member.post(PAGE, {"name": "laptop", "form_id": form_id})
    again = member.post(PAGE, {"name": "laptop", "form_id": form_id})
    assert "sent before" in again.content.decode()
    assert ApiKey.all_tenants.count() == 1


def test_a_member_makes_so_many_keys_and_no_more(member: Client, membership: Membership, settings: Settings) -> None:
    settings.HEADRACE_MEMBER_KEYS = 2
    for _ in range(2):
        assert TOKEN.search(make(member))
    refused = make(member)
    assert not TOKEN.search(refused)
    assert "You have 2 keys" in refused
    api_key_revoke(api_key=ApiKey.objects.for_tenant(membership.tenant).first() or ApiKey())
    assert TOKEN.search(make(member)), "a revoked one does not count"


@pytest.mark.parametrize("name", ["", "   ", "x" * 101])
def test_a_bad_name_is_shown(member: Client, name: str) -> None:
    answer = member.post(PAGE, {"name": name})
    assert answer.context["form"].errors
    assert not ApiKey.all_tenants.exists()


def test_a_member_revokes_his_own_keys_only(member: Client, membership: Membership) -> None:
    make(member)
    own = ApiKey.all_tenants.get()
    colleague = user_create(user=User(email="colleague@example.com"))
    membership_create(tenant=membership.tenant, user=colleague)
    others = [
        api_key_create(api_key=ApiKey(tenant=membership.tenant, user=colleague, name="colleague's"))[0],
        api_key_create(api_key=ApiKey(tenant=membership.tenant, name="the tenant's"))[0],
    ]
    html = member.get(PAGE).content.decode()
    for key in others:
        assert key.public_id not in html
        assert member.post(reverse("usage:own_key_revoke", args=[key.pk])).status_code == 404
        assert ApiKey.all_tenants.get(pk=key.pk).revoked_at is None
    assert member.get(reverse("usage:own_key_revoke", args=[own.pk])).status_code == 405
    assert member.post(reverse("usage:own_key_revoke", args=[own.pk])).status_code == 302
    assert ApiKey.all_tenants.get(pk=own.pk).revoked_at is not None
    assert AuditEvent.all_tenants.filter(object_id=str(own.pk), actor=membership.user).count() == 2


def test_who_is_signed_out_or_in_no_tenant_makes_nothing(client: Client, user: User, tenant: Tenant) -> None:
    assert client.get(PAGE).status_code == 302
    assert client.post(PAGE, {"name": "x"}).status_code == 302
    client.force_login(user)
    Membership.all_tenants.filter(user=user).delete()
    assert "no active tenant" in client.get(PAGE).content.decode()
    client.post(PAGE, {"name": "x"})
    assert not ApiKey.all_tenants.filter(tenant=tenant).exists()
