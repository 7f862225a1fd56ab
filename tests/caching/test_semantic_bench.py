"""The semantic cache's test bench: what would come of two questions under a policy."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.accounts.models import User
from apps.caching.models import ResponseCachePolicy
from apps.caching.response_services import response_cache_create
from apps.tenants.models import Tenant

ASKED = "How do I reset my password?"


@pytest.fixture
def policy(tenant: Tenant) -> ResponseCachePolicy:
    return response_cache_create(policy=ResponseCachePolicy(tenant=tenant, semantic=True))


def bench_of(policy: ResponseCachePolicy) -> str:
    return reverse("admin:caching_responsecachepolicy_compare", args=[policy.pk])


def tried(client: Client, policy: ResponseCachePolicy, second: str, first: str = ASKED) -> Any:
    return client.post(bench_of(policy), {"first": first, "second": second})


def test_what_would_be_given_and_why_other_questions_would_not(
    admin_client: Client, policy: ResponseCachePolicy
) -> None:
    answer = tried(admin_client, policy, "How can I reset my password?")
    assert answer.status_code == 200, answer.headers
    page = answer.content.decode()
    assert "Would be answered from the cache." in page
    assert "Similarity 0.99" in page
    assert "the policy wants 0.950 at least" in page
    for second, reason in (
        ("How do I bake bread?", "They are less alike"),
        ("How do I reset my password in 2026?", "Numbers"),
        ("word " * 300, "too long"),
    ):
        page = tried(admin_client, policy, second).content.decode()
        assert "Would be computed anew." in page, second
        assert reason in page, second
    page = tried(admin_client, policy, "Convert euros to dollars", "Convert dollars to euros").content.decode()
    assert "come in another order" in page


def test_the_bench_is_reached_from_its_policy_and_asks_for_both(
    admin_client: Client, policy: ResponseCachePolicy
) -> None:
    change = reverse("admin:caching_responsecachepolicy_change", args=[policy.pk])
    assert "/try" in admin_client.get(change).content.decode()
    assert "This field is required." in tried(admin_client, policy, "").content.decode()
    gone = bench_of(policy).replace(str(policy.pk), "00000000-0000-0000-0000-000000000000")
    assert admin_client.get(gone).status_code == 404


def test_the_bench_is_for_staff(client: Client, user: User, policy: ResponseCachePolicy) -> None:
    assert client.get(bench_of(policy)).status_code == 302
    client.force_login(user)
    assert client.get(bench_of(policy)).status_code == 302
