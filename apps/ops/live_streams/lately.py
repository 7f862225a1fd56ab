"""What happened beside live streams: what operators did to them and to processes, and what guardrails found in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from apps.guardrails.models import Intervention
from apps.ops.live_streams.presentation import duration_told
from apps.ops.live_streams.selectors import StreamFilter
from apps.tenants.enums import AuditAction
from apps.tenants.models import AuditEvent

MOST = 8
"""Rows of each part; the lists that they are links to have all."""
ACTS_SINCE = timedelta(days=1)
FOUND_SINCE = timedelta(hours=1)
"""So much of a busy installation's findings is looked through every three seconds, and no more."""

_KINDS = (
    *(AuditAction.STREAM_KILLED, AuditAction.STREAM_MIGRATED, AuditAction.WORKER_DRAINED, AuditAction.WORKER_RESUMED),
    AuditAction.GATEWAY_DRAINED,
)


@dataclass(frozen=True, slots=True)
class Happening:
    """One line."""

    ago: str
    what: str
    url: str
    subject: str
    """The stream or the process."""
    more: str


@dataclass(frozen=True, slots=True)
class Part:
    """What one list has of the last time, newest first."""

    name: str
    title: str
    url: str
    nothing: str
    rows: list[Happening]


def lately(wanted: StreamFilter, *, may_see: Sequence[str]) -> list[Part]:
    """Returns what there was of those streams; `may_see` are the admin pages that may be linked. A query for each."""
    now = timezone.now()
    parts = []
    if "tenants_auditevent" in may_see:
        parts.append(_acts(wanted, now))
    if "guardrails_intervention" in may_see and not wanted.worker:  # a finding knows no worker
        parts.append(_found(wanted, now))
    return parts


def _acts(wanted: StreamFilter, now: datetime) -> Part:
    """Returns what operators did within a day; of a worker also what they did to its streams."""
    asked: dict[str, Any] = {}
    if wanted.tenant_id:
        asked["tenant"] = wanted.tenant_id
    if wanted.deployment:
        asked["details__deployment"] = wanted.deployment
    events = AuditEvent.all_tenants.filter(action__in=_KINDS, created_at__gte=now - ACTS_SINCE, **asked)
    if wanted.worker:
        events = events.filter(Q(object_id=wanted.worker) | Q(details__worker=wanted.worker))
    return Part(
        "acts",
        _("What operators did"),
        reverse("admin:tenants_auditevent_changelist"),
        _("Nothing in the last day."),
        [
            Happening(
                duration_told(now - event.created_at),
                event.get_action_display(),
                reverse("admin:tenants_auditevent_change", args=[event.pk]),
                event.object_id,
                ": ".join(filter(None, [event.actor_label, event.details.get("note", "")])),
            )
            for event in events[:MOST]
        ],
    )


def _found(wanted: StreamFilter, now: datetime) -> Part:
    asked: dict[str, Any] = {}
    if wanted.tenant_id:
        asked["tenant"] = wanted.tenant_id
    if wanted.deployment:
        asked["deployment_label"] = wanted.deployment
    found = Intervention.all_tenants.filter(occurred_at__gte=now - FOUND_SINCE, **asked)
    return Part(
        "found",
        _("What guardrails found"),
        reverse("admin:guardrails_intervention_changelist"),
        _("Nothing in the last hour."),
        [
            Happening(
                duration_told(now - row.occurred_at),
                f"{row} ({_('shadow')})" if row.is_shadow else str(row),
                reverse("admin:guardrails_intervention_change", args=[row.pk]),
                row.stream_id,
                f"{row.tenant_label}, {row.deployment_label}",
            )
            for row in found[:MOST]
        ],
    )
