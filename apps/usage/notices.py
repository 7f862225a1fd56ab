"""Tells tenants that a soft budget was passed: owners and admins by email, and the tenant's webhook.

Settlement writes an entry in Redis the first time that a period passes its soft budget. Here it becomes a notice, known
by quota and period, and is deleted from Redis after the commit. Each channel is tried until it took the notice, with
growing pauses, and then never again. A process that dies between the sending and the note of it sends once more.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import structlog
from django.conf import settings
from django.core.mail import EmailMessage
from django.db import InterfaceError, OperationalError, transaction
from django.template.loader import render_to_string
from django.utils import timezone
from redis.exceptions import RedisError

from apps.accounts.models import User
from apps.quotas.models import Quota
from apps.tenants.enums import MemberRole
from apps.tenants.live_state import redis_client
from apps.tenants.models import Membership
from apps.tenants.references import LABEL_LENGTH
from apps.tenants.sealed_text import UnreadableTextError, unseal
from apps.usage.enums import Channel
from apps.usage.metrics import NOTICES_FAILED, NOTICES_SENT
from apps.usage.models import NoticeDelivery, SoftLimitNotice
from apps.usage.webhooks import WebhookError, webhook_headers, webhook_post
from headrace_wire import redis_keys
from headrace_wire.functions import Reply

logger = structlog.get_logger(__name__)

BATCH = 100
SEND_SECONDS = 45.0
"""Of one run; the next run goes on. A try may take the longest time of mail and webhook on top."""
FIRST_PAUSE = timedelta(seconds=30)
LONGEST_PAUSE = timedelta(hours=6)
MAX_ATTEMPTS = 12
"""About a day and a half."""
EVENT_TYPE = "quota.soft_budget_passed"


class NobodyToTellError(Exception):
    """There is no address; trying again would not find one soon."""


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
    delivered, ends_at = 0, timezone.now() + timedelta(seconds=SEND_SECONDS)
    due = NoticeDelivery.objects.filter(next_attempt_at__lte=timezone.now()).order_by("next_attempt_at", "pk")
    try:
        for delivery in due.select_related("notice__tenant")[:BATCH]:
            if timezone.now() >= ends_at:
                break
            if _claim(delivery):
                delivered += _try(delivery)
    except (OperationalError, InterfaceError) as error:
        logger.warning("notices_wait", error=str(error).strip())
    return delivered


def notices_retry(*, notices: Iterable[SoftLimitNotice]) -> int:
    """Has what was given up tried again, from the first pause on; returns how many deliveries that are."""
    left = NoticeDelivery.objects.filter(notice__in=list(notices), delivered_at__isnull=True)
    return left.update(next_attempt_at=timezone.now(), attempts=0)


def notice_pause(attempts: int) -> timedelta:
    """Returns how long to wait after that many tries."""
    doubled: int = 2 ** (attempts - 1)
    return min(FIRST_PAUSE * doubled, LONGEST_PAUSE)


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


def _claim(delivery: NoticeDelivery) -> bool:
    """Takes a delivery for this process: its next try moves on before this one begins."""
    seen, attempts = delivery.next_attempt_at, delivery.attempts + 1
    delivery.attempts, delivery.next_attempt_at = attempts, timezone.now() + notice_pause(attempts)
    mine = NoticeDelivery.objects.filter(pk=delivery.pk, next_attempt_at=seen)
    return mine.update(attempts=attempts, next_attempt_at=delivery.next_attempt_at) == 1


def _try(delivery: NoticeDelivery) -> bool:
    send = _email if delivery.channel == Channel.EMAIL else _webhook
    try:
        send(delivery.notice)
    except NobodyToTellError as error:
        _failed(delivery, str(error), is_last=True)
    except (OSError, WebhookError) as error:  # SMTPException is an OSError
        _failed(delivery, str(error), is_last=delivery.attempts >= MAX_ATTEMPTS)
    else:
        delivery.delivered_at, delivery.next_attempt_at, delivery.last_error = timezone.now(), None, ""
        delivery.save()
        NOTICES_SENT.labels(channel=delivery.channel).inc()
        logger.info("notice_sent", notice=delivery.notice_id.hex, channel=delivery.channel)
        return True
    return False


def _failed(delivery: NoticeDelivery, error: str, *, is_last: bool) -> None:
    delivery.last_error = error[:500]
    if is_last:
        delivery.next_attempt_at = None
    delivery.save()
    NOTICES_FAILED.labels(channel=delivery.channel).inc()
    log = logger.error if is_last else logger.warning
    log("notice_not_sent", notice=delivery.notice_id.hex, channel=delivery.channel, error=error, given_up=is_last)


def _email(notice: SoftLimitNotice) -> None:
    recipients = _recipients(notice)
    if not recipients:
        raise NobodyToTellError("There is no active owner or admin.")
    subject = f"{settings.EMAIL_SUBJECT_PREFIX}Soft budget passed: {notice.quota_label}"
    body = render_to_string("usage/soft_limit_notice.txt", {"notice": notice})
    EmailMessage(subject=" ".join(subject.split()), body=body, to=recipients).send()


def _recipients(notice: SoftLimitNotice) -> list[str]:
    """Owners and admins of the tenant; operators for a budget that tenants share."""
    if notice.tenant is None:
        people = User.objects.filter(is_superuser=True, is_active=True)
        return list(people.order_by("email").values_list("email", flat=True))
    places = Membership.objects.for_tenant(notice.tenant).filter(
        role__in=[MemberRole.OWNER, MemberRole.ADMIN], user__is_active=True
    )
    return list(places.order_by("user__email").values_list("user__email", flat=True))


def _webhook(notice: SoftLimitNotice) -> None:
    tenant = notice.tenant
    if tenant is None or not tenant.webhook_url or not tenant.webhook_secret:
        raise NobodyToTellError("The tenant has no webhook any more.")
    body = msgspec.json.encode(
        {
            "id": f"evt_{notice.pk.hex}",
            "object": "event",
            "type": EVENT_TYPE,
            "created_at": int(notice.passed_at.timestamp()),
            "data": {
                "tenant": tenant.slug,
                "quota_id": notice.quota_ref,
                "quota": notice.quota_label,
                "period": notice.period,
                "spent_micros": notice.spent_micros,
                "soft_budget_micros": notice.limit_micros,
            },
        }
    )
    try:
        secret = unseal(tenant.webhook_secret)
    except UnreadableTextError as error:
        raise NobodyToTellError("The webhook's secret cannot be read any more: SECRET_KEY was changed.") from error
    headers = webhook_headers(
        secret=secret,
        event_id=f"evt_{notice.pk.hex}",
        timestamp=int(timezone.now().timestamp()),
        body=body,
    )
    webhook_post(url=tenant.webhook_url, headers=headers, body=body)
