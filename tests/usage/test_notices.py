"""Soft budgets are announced once: by email, and to a webhook that a real client verifies."""

import json
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import openai
import pytest
from django.core.mail import EmailMessage
from django.utils import timezone
from pytest_django import Settings
from redis import Redis

from apps.accounts.models import User
from apps.accounts.services import user_create
from apps.quotas.enums import BudgetDuration, QuotaScope
from apps.quotas.models import Quota
from apps.quotas.services import quota_create, quota_delete
from apps.tenants.enums import MemberRole
from apps.tenants.models import Membership, Tenant
from apps.tenants.sealed_text import unseal
from apps.tenants.services import membership_create, tenant_update
from apps.usage import notices
from apps.usage.deliveries import LONGEST_PAUSE, MAX_ATTEMPTS, delivery_claim, delivery_pause
from apps.usage.models import NoticeDelivery, SoftLimitNotice
from apps.usage.notices import notices_retry
from apps.usage.tasks import notices_send_task
from headrace_wire import redis_keys
from tests.support.database_outage import database_down
from tests.support.webhook_receiver import Receiver, running_receiver

from .events import event, write

pytestmark = pytest.mark.django_db


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as server:
        yield server


@pytest.fixture
def quota(membership: Membership) -> Quota:
    budget = {"soft_budget": Decimal(10), "budget_duration": BudgetDuration.MONTH}
    return quota_create(quota=Quota(scope=QuotaScope.TENANT, tenant=membership.tenant, **budget))


def passed(redis: Redis, quota: Quota, period: str = "2026-07") -> None:
    """Writes what settlement writes."""
    fields: Any = {"quota": quota.pk.hex, "period": period, "micros": 10_500_000, "limit": 10_000_000}
    redis.xadd(redis_keys.soft_limits_key(), fields)


def hook(tenant: Tenant, url: str) -> str:
    """Gives the tenant a webhook; returns its secret."""
    tenant.webhook_url = url
    return unseal(tenant_update(tenant=tenant).webhook_secret)


def make_due() -> None:
    """The pause is over."""
    NoticeDelivery.objects.filter(next_attempt_at__isnull=False).update(next_attempt_at=timezone.now())


def test_owners_and_admins_get_one_email(
    live_redis: Redis, quota: Quota, user: User, mailoutbox: list[EmailMessage]
) -> None:
    assert quota.tenant is not None
    for name, role, active in (("admin", "admin", True), ("gone", "owner", False), ("member", "member", True)):
        person = user_create(user=User(email=f"{name}@example.com", is_active=active))
        membership_create(tenant=quota.tenant, user=person, role=MemberRole(role))
    for _ in range(2):
        passed(live_redis, quota)
        notices_send_task()
        make_due()
    (mail,) = mailoutbox
    assert mail.to == ["admin@example.com", user.email]
    assert mail.subject == "[Headrace] Soft budget passed: Acme"
    assert "Spent so far: 10.5\nSoft budget:  10\n" in mail.body
    assert live_redis.xlen(redis_keys.soft_limits_key()) == 0
    passed(live_redis, quota, period="2026-08")
    notices_send_task()
    assert len(mailoutbox) == 2


def test_the_webhook_is_signed_so_that_a_client_can_verify_it(
    live_redis: Redis, quota: Quota, receiver: Receiver, mailoutbox: list[EmailMessage]
) -> None:
    assert quota.tenant is not None
    secret = hook(quota.tenant, receiver.url)
    passed(live_redis, quota)
    assert notices_send_task() == 2
    ((path, headers, body),) = receiver.taken
    client = openai.OpenAI(api_key="unused", webhook_secret=secret)
    client.webhooks.verify_signature(body, headers)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body + b" ", headers)
    told = json.loads(body)
    assert (path, told["type"], told["id"]) == ("/hook", "quota.soft_budget_passed", headers["webhook-id"])
    assert told["data"] == {
        "tenant": "acme",
        "quota_id": quota.pk.hex,
        "quota": "Acme",
        "period": "2026-07",
        "spent_micros": 10_500_000,
        "soft_budget_micros": 10_000_000,
    }
    assert len(mailoutbox) == 1


@pytest.mark.parametrize("status", [500, 404, 302])
def test_a_webhook_that_does_not_take_it_is_tried_again_alone(
    live_redis: Redis, quota: Quota, receiver: Receiver, mailoutbox: list[EmailMessage], status: int
) -> None:
    assert quota.tenant is not None
    hook(quota.tenant, receiver.url)
    receiver.statuses = [status]
    passed(live_redis, quota)
    assert notices_send_task() == 1
    delivery = NoticeDelivery.objects.get(channel="webhook")
    assert (delivery.attempts, delivery.last_error) == (1, f"answered with {status}")
    assert notices_send_task() == 0, "not before the pause is over"
    make_due()
    assert notices_send_task() == 1
    assert [path for path, _, _ in receiver.taken] == ["/hook", "/hook"], "a redirect is not followed"
    first, second = (headers["webhook-id"] for _, headers, _ in receiver.taken)
    assert first == second
    make_due()
    assert notices_send_task() == 0
    assert (len(receiver.taken), len(mailoutbox)) == (2, 1)


def test_mail_that_cannot_be_sent_waits_for_its_server(
    live_redis: Redis, quota: Quota, settings: Settings, mailoutbox: list[EmailMessage]
) -> None:
    passed(live_redis, quota)
    working = settings.EMAIL_BACKEND
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    assert notices_send_task() == 0
    settings.EMAIL_BACKEND = working
    make_due()
    assert notices_send_task() == 1
    assert len(mailoutbox) == 1


def test_it_is_given_up_in_the_end_and_can_be_asked_for_again(
    live_redis: Redis, quota: Quota, receiver: Receiver
) -> None:
    assert quota.tenant is not None
    hook(quota.tenant, receiver.url)
    receiver.statuses = [503] * MAX_ATTEMPTS
    passed(live_redis, quota)
    for _ in range(MAX_ATTEMPTS + 3):
        notices_send_task()
        make_due()
    assert len(receiver.taken) == MAX_ATTEMPTS
    delivery = NoticeDelivery.objects.get(channel="webhook")
    assert (delivery.next_attempt_at, delivery.delivered_at) == (None, None)
    assert notices_retry(notices=SoftLimitNotice.all_tenants.all()) == 1
    assert notices_send_task() == 1


def test_of_two_who_found_the_same_delivery_one_sends_it(live_redis: Redis, quota: Quota) -> None:
    passed(live_redis, quota)
    notices.notices_collect()
    first, second = NoticeDelivery.objects.get(), NoticeDelivery.objects.get()
    assert delivery_claim(first)
    assert not delivery_claim(second)


def test_pauses_grow_to_a_limit() -> None:
    pauses = [delivery_pause(attempts) for attempts in range(1, MAX_ATTEMPTS + 1)]
    assert pauses[:3] == [timedelta(seconds=30), timedelta(seconds=60), timedelta(seconds=120)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE
    assert sum(pauses, timedelta()) > timedelta(hours=20)


def test_a_webhook_that_nobody_has_any_more_is_not_tried(live_redis: Redis, quota: Quota, receiver: Receiver) -> None:
    assert quota.tenant is not None
    hook(quota.tenant, receiver.url)
    receiver.statuses = [500]
    passed(live_redis, quota)
    notices_send_task()
    hook(quota.tenant, "")
    make_due()
    assert notices_send_task() == 0
    assert len(receiver.taken) == 1
    assert NoticeDelivery.objects.get(channel="webhook").next_attempt_at is None


def test_a_budget_that_tenants_share_is_told_to_operators(
    live_redis: Redis, admin_user: User, membership: Membership, mailoutbox: list[EmailMessage]
) -> None:
    budget: dict[str, Any] = {"soft_budget": Decimal(1), "budget_duration": BudgetDuration.DAY}
    passed(live_redis, quota_create(quota=Quota(scope=QuotaScope.GLOBAL, **budget)))
    assert notices_send_task() == 1
    assert mailoutbox[0].to == [admin_user.email]


def test_what_tells_nobody_anything_is_dropped_and_stops_nothing(
    live_redis: Redis, quota: Quota, tenant: Tenant, mailoutbox: list[EmailMessage]
) -> None:
    lifted = quota_create(
        quota=Quota(scope=QuotaScope.GLOBAL, tenant=None, soft_budget=Decimal(1), budget_duration=BudgetDuration.DAY)
    )
    passed(live_redis, lifted)
    quota_delete(quota=lifted)
    live_redis.xadd(redis_keys.soft_limits_key(), {"hello": "world"})
    passed(live_redis, quota)
    assert notices_send_task() == 1
    assert live_redis.xlen(redis_keys.soft_limits_key()) == 0


@pytest.mark.django_db(transaction=True)
def test_a_database_that_is_away_loses_no_notice(
    live_redis: Redis, quota: Quota, mailoutbox: list[EmailMessage]
) -> None:
    passed(live_redis, quota)
    with database_down():
        assert notices_send_task() == 0
    write(live_redis, event("strm-1"))
    assert notices_send_task() == 1
    assert len(mailoutbox) == 1
