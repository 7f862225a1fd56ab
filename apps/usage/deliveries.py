"""Deliveries: each is tried until its receiver took it, with growing pauses, and then never again.

A process that dies between the sending and the note of it sends once more. What is given up after the last try stays
as a row that says why.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import structlog
from django.conf import settings
from django.core.mail import EmailMessage
from django.db import InterfaceError, OperationalError
from django.db.models import QuerySet
from django.utils import timezone

from apps.accounts.models import User
from apps.usage.metrics import NOTICES_FAILED, NOTICES_SENT
from apps.usage.models import Delivery
from apps.usage.webhooks import UnsignableError, WebhookError

logger = structlog.get_logger(__name__)

D = TypeVar("D", bound=Delivery)

BATCH = 100
SEND_SECONDS = 45.0
"""Of one run; the next run goes on. A try may take the longest time of mail and webhook on top."""
FIRST_PAUSE = timedelta(seconds=30)
LONGEST_PAUSE = timedelta(hours=6)
MAX_ATTEMPTS = 12
"""About a day and a half."""


class NobodyToTellError(Exception):
    """There is no address; trying again would not find one soon."""


def deliveries_send(deliveries: QuerySet[D], send: Callable[[D], None]) -> int:
    """Tries those that are due; returns how many were delivered. Where the database is away, the next run goes on.

    `send` raises `NobodyToTellError` where there is no use in another try, `OSError` or `WebhookError` otherwise.
    """
    delivered, ends_at = 0, timezone.now() + timedelta(seconds=SEND_SECONDS)
    due = deliveries.filter(next_attempt_at__lte=timezone.now()).order_by("next_attempt_at", "pk")
    try:
        for delivery in due[:BATCH]:
            if timezone.now() >= ends_at:
                break
            if delivery_claim(delivery):
                delivered += _try(delivery, send)
    except (OperationalError, InterfaceError) as error:
        logger.warning("deliveries_wait", error=str(error).strip())
    return delivered


def deliveries_retry(deliveries: QuerySet[D]) -> int:
    """Has what was given up or waits tried again, from the first pause on; returns how many deliveries that are."""
    return deliveries.filter(delivered_at__isnull=True).update(next_attempt_at=timezone.now(), attempts=0)


def delivery_pause(attempts: int) -> timedelta:
    """Returns how long to wait after that many tries."""
    doubled: int = 2 ** (attempts - 1)
    return min(FIRST_PAUSE * doubled, LONGEST_PAUSE)


def delivery_claim(delivery: Delivery) -> bool:
    """Takes a delivery for this process: its next try moves on before this one begins."""
    seen, attempts = delivery.next_attempt_at, delivery.attempts + 1
    delivery.attempts, delivery.next_attempt_at = attempts, timezone.now() + delivery_pause(attempts)
    mine = type(delivery)._default_manager.filter(pk=delivery.pk, next_attempt_at=seen)
    return mine.update(attempts=attempts, next_attempt_at=delivery.next_attempt_at) == 1


def email_send(*, subject: str, body: str, recipients: list[str], nobody: str) -> None:
    """Sends one email to all; without recipients it says `nobody`.

    Raises:
        NobodyToTellError: There are no recipients.
        OSError: The mail server did not take it (`SMTPException` is one).
    """
    if not recipients:
        raise NobodyToTellError(nobody)
    subject = " ".join(f"{settings.EMAIL_SUBJECT_PREFIX}{subject}".split())
    EmailMessage(subject=subject, body=body, to=recipients).send()


def operator_emails() -> list[str]:
    """Returns the addresses of active operators."""
    people = User.objects.filter(is_superuser=True, is_active=True)
    return list(people.order_by("email").values_list("email", flat=True))


def _try(delivery: D, send: Callable[[D], None]) -> bool:
    try:
        send(delivery)
    except (NobodyToTellError, UnsignableError) as error:
        _failed(delivery, str(error), is_last=True)
    except (OSError, WebhookError) as error:
        _failed(delivery, str(error), is_last=delivery.attempts >= MAX_ATTEMPTS)
    else:
        delivery.delivered_at, delivery.next_attempt_at, delivery.last_error = timezone.now(), None, ""
        delivery.save()
        NOTICES_SENT.labels(channel=delivery.channel).inc()
        logger.info("notice_sent", delivery=str(delivery))
        return True
    return False


def _failed(delivery: Delivery, error: str, *, is_last: bool) -> None:
    delivery.last_error = error[:500]
    if is_last:
        delivery.next_attempt_at = None
    delivery.save()
    NOTICES_FAILED.labels(channel=delivery.channel).inc()
    log = logger.error if is_last else logger.warning
    log("notice_not_sent", delivery=str(delivery), error=error, given_up=is_last)
