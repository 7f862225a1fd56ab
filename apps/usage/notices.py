"""Tells tenants that a soft budget was passed: owners and admins by email, and the tenant's webhook.

Settlement writes an entry in Redis the first time that a period passes its soft budget. Here it becomes a notice, known
by quota and period, and is deleted from Redis after the commit; `deliveries` brings it over each channel.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from uuid import UUID

import structlog
from django.db import InterfaceError, OperationalError, transaction
from django.template.loader import render_to_string
from django.utils import timezone
from redis.exceptions import RedisError

from apps.quotas.models import Quota
from apps.tenants.enums import MemberRole
from apps.tenants.live_state import redis_client
from apps.tenants.models import Membership
from apps.tenants.references import LABEL_LENGTH
from apps.usage.deliveries import NobodyToTellError, deliveries_retry, deliveries_send, email_send, operator_emails
from apps.usage.enums import Channel
from apps.usage.models import NoticeDelivery, SoftLimitNotice
from apps.usage.webhooks import Event, event_post
from headrace_wire import redis_keys
from headrace_wire.functions import Reply

logger = structlog.get_logger(__name__)

BATCH = 100
EVENT_TYPE = "quota.soft_budget_passed"


def notices_collect() -> int:
    """Makes notices of what settlement wrote; returns how many.

    Where the database or Redis is away, it is logged and the next run tries again.
    """
    made = 0
    try:
        redis = redis_client()
        entries: Reply = redis.xrange(redis_keys.soft_limits_key(), count=BATCH)
        for entry_id, fields in entries:
            made += _collect(entry_id, fields)
            redis.xdel(redis_keys.soft_limits_key(), entry_id)
    except (OperationalError, InterfaceError, RedisError) as error:
        logger.warning("notices_wait", error=str(error).strip())
    return made


def notices_send() -> int:
    """Tries what is due; returns how many were delivered."""
    return deliveries_send(NoticeDelivery.objects.select_related("notice__tenant"), _send)


def notices_retry(*, notices: Iterable[SoftLimitNotice]) -> int:
    """Has what was given up tried again, from the first pause on; returns how many deliveries that are."""
    return deliveries_retry(NoticeDelivery.objects.filter(notice__in=list(notices)))


def _collect(entry_id: bytes, fields: dict[bytes, bytes]) -> int:
    try:
        quota_ref, period = fields[b"quota"].decode(), fields[b"period"].decode()
        spent, limit = int(fields[b"micros"]), int(fields[b"limit"])
        quota = Quota.all_tenants.select_related("tenant", "membership__user", "api_key", "deployment").get(
            pk=UUID(quota_ref)
        )
    except (KeyError, ValueError, Quota.DoesNotExist) as error:
        # A quota that was lifted meanwhile, or nonsense: there is nobody to tell.
        logger.warning("notice_dropped", entry=entry_id.decode(), error=f"{type(error).__name__}: {error}")
        return 0
    passed_at = datetime.fromtimestamp(int(entry_id.partition(b"-")[0]) / 1000, UTC)
    with transaction.atomic():
        notice, is_new = SoftLimitNotice.all_tenants.get_or_create(
            quota_ref=quota.pk.hex,
            period=period,
            defaults={
                "tenant": quota.tenant,
                "quota": quota,
                "quota_label": str(quota)[:LABEL_LENGTH],
                "spent_micros": spent,
                "limit_micros": limit,
                "passed_at": passed_at,
            },
        )
        if is_new:
            has_webhook = quota.tenant is not None and bool(quota.tenant.webhook_url)
            channels = [Channel.EMAIL, *([Channel.WEBHOOK] if has_webhook else [])]
            NoticeDelivery.objects.bulk_create(
                NoticeDelivery(notice=notice, channel=channel, next_attempt_at=timezone.now()) for channel in channels
            )
    return int(is_new)


def _send(delivery: NoticeDelivery) -> None:
    send = _email if delivery.channel == Channel.EMAIL else _webhook
    send(delivery.notice)


def _email(notice: SoftLimitNotice) -> None:
    email_send(
        subject=f"Soft budget passed: {notice.quota_label}",
        body=render_to_string("usage/soft_limit_notice.txt", {"notice": notice}),
        recipients=_recipients(notice),
        nobody="There is no active owner or admin.",
    )


def _recipients(notice: SoftLimitNotice) -> list[str]:
    """Owners and admins of the tenant; operators for a budget that tenants share."""
    if notice.tenant is None:
        return operator_emails()
    places = Membership.objects.for_tenant(notice.tenant).filter(
        role__in=[MemberRole.OWNER, MemberRole.ADMIN], user__is_active=True
    )
    return list(places.order_by("user__email").values_list("user__email", flat=True))


def _webhook(notice: SoftLimitNotice) -> None:
    tenant = notice.tenant
    if tenant is None or not tenant.webhook_url or not tenant.webhook_secret:
        raise NobodyToTellError("The tenant has no webhook any more.")
    event = Event(
        id=f"evt_{notice.pk.hex}",
        type=EVENT_TYPE,
        created_at=notice.passed_at,
        data={
            "tenant": tenant.slug,
            "quota_id": notice.quota_ref,
            "quota": notice.quota_label,
            "period": notice.period,
            "spent_micros": notice.spent_micros,
            "soft_budget_micros": notice.limit_micros,
        },
    )
    event_post(event, url=tenant.webhook_url, sealed_secret=tenant.webhook_secret)
