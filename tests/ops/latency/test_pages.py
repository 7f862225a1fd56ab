"""The latency pages and their numbers: of operators, and of members, who see their own tenant and nothing else."""

import pytest
from django.test import Client
from django.urls import reverse

from apps.accounts.models import User
from apps.tenants.models import Membership, Tenant

PAGE = reverse("admin:ops_latencyhour_changelist")
NUMBERS = reverse("admin:ops_latencyhour_numbers")
OWN_PAGE = reverse("ops:own_latency")
OWN_NUMBERS = reverse("ops:own_latency_numbers")

pytestmark = pytest.mark.usefixtures("live_redis")


@pytest.fixture
def member(client: Client, membership: Membership) -> Client:
    client.force_login(membership.user)
    return client


def test_an_operator_sees_the_page_and_its_numbers(admin_client: Client, tenant: Tenant) -> None:
    page = admin_client.get(PAGE, {"tenant": str(tenant.pk), "range": "24h"})
    assert page.status_code == 200
    assert f'<option value="{tenant.pk}" selected>Acme</option>' in page.content.decode()
    told = admin_client.get(NUMBERS, {"tenant": str(tenant.pk), "compare": "day"}).json()
    assert len(told["at"]) == len(told["series"]["count.requests"]) >= 60
    assert told["before"]["shift"] == 86_400


def test_pages_are_for_staff_who_may_see_them(client: Client, user: User) -> None:
    client.force_login(user)
    assert [client.get(url).status_code for url in (PAGE, NUMBERS)] == [302, 302]
    user.is_staff = True
    user.save()
    assert [client.get(url).status_code for url in (PAGE, NUMBERS)] == [403, 403]


def test_a_member_sees_a_page_without_the_fleet(member: Client, tenant: Tenant) -> None:
    page = member.get(OWN_PAGE)
    assert page.status_code == 200
    assert page["Cache-Control"] == "no-store"
    assert "script-src 'self'" in page["Content-Security-Policy"]
    assert 'data-panel="ttft"' in page.content.decode()
    assert 'data-panel="kv"' not in page.content.decode()
    told = member.get(OWN_NUMBERS, {"choices": "1"}).json()
    assert not any(name.startswith("fleet.") for name in told["series"])
    assert told["links"] == []
    assert told["choices"]["tenant"] == [[str(tenant.pk), "Acme"]]


def test_who_is_in_no_tenant_sees_nothing(client: Client, user: User) -> None:
    client.force_login(user)
    assert client.get(OWN_PAGE).status_code == 403
    assert client.get(OWN_NUMBERS).status_code == 404
