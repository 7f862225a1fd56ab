"""Writes of the ledger: ended streams and their sums, exactly once; and the end of what tenants do not keep."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from django.db import transaction
from django.utils import timezone

from apps.accounts.models import ApiKey, User
from apps.deployments.models import ModelDeployment
from apps.tenants.models import Tenant
from apps.tenants.references import label_of, rows_by_ref
from apps.usage.buckets import bucket_start
from apps.usage.enums import Bucket
from apps.usage.models import Attribution, UsageRecord, UsageRollup
from apps.usage.upserts import SUMMED, rollups_add, rows_insert_new
from headrace_wire.ids import GATEWAY_KIND
from headrace_wire.usage_events import UsageEvent

EXPIRE_BATCH = 5_000
ORPHAN_DAYS = 30
"""How long records are kept whose tenant is gone."""

_ATTRIBUTION = tuple(field.name for field in Attribution._meta.fields)
_GATEWAYS = f"{GATEWAY_KIND}-"
_ONCE = ("tenant_ref", "bucket", "start_at", "api_key_ref", "user_ref", "deployment_ref", "deployment_label")


@transaction.atomic
def usage_record(*, events: Sequence[UsageEvent]) -> int:
    """Stores ended streams and adds them to the sums; returns how many were new.

    What the ledger has already changes nothing, so that events may come twice.

    Raises:
        django.db.Error: Nothing is stored.
    """
    names = _Names(events)
    records = {event.stream_id: names.record(event) for event in reversed(events)}
    if not records:
        return 0
    new = rows_insert_new([records[stream_id] for stream_id in sorted(records)], once="stream_id")
    sums = _sums(records[stream_id] for stream_id in sorted(new))
    if sums:
        rollups_add(sums)
    return len(new)


def usage_expire() -> int:
    """Deletes records that are older than their tenant's retention; returns how many. Sums stay.

    Age counts from when the ledger got them: its memory of a stream is longer than any event's way to it.
    """
    now, deleted = timezone.now(), 0
    for tenant_id, days in [*Tenant.objects.order_by("pk").values_list("pk", "retention_days"), (None, ORPHAN_DAYS)]:
        before = now - timedelta(days=days)
        # What was recorded before had ended before, and that has an index.
        old = UsageRecord.all_tenants.filter(tenant=tenant_id, ended_at__lt=before, recorded_at__lt=before)
        while chosen := list(old.order_by("ended_at").values_list("pk", flat=True)[:EXPIRE_BATCH]):
            deleted += UsageRecord.all_tenants.filter(pk__in=chosen).delete()[0]
    return deleted


class _Names:
    """What the database knows of those whom a batch of events names; four queries."""

    def __init__(self, events: Sequence[UsageEvent]) -> None:
        self.tenants = rows_by_ref(Tenant, {event.tenant_id for event in events})
        self.api_keys = rows_by_ref(ApiKey, {event.api_key_id for event in events})
        self.users = rows_by_ref(User, {event.user_id for event in events})
        self.deployments = rows_by_ref(ModelDeployment, {event.deployment_id for event in events})

    def record(self, event: UsageEvent) -> UsageRecord:
        tenant = self.tenants.get(event.tenant_id)
        api_key = self.api_keys.get(event.api_key_id)
        user = self.users.get(event.user_id)
        return UsageRecord(
            stream_id=event.stream_id,
            tenant=tenant,
            tenant_ref=event.tenant_id,
            tenant_label=label_of(tenant) or event.tenant_id,
            api_key=api_key,
            api_key_ref=event.api_key_id,
            api_key_label=label_of(api_key),
            user=user,
            user_ref=event.user_id,
            user_label=label_of(user),
            deployment=self.deployments.get(event.deployment_id),
            deployment_ref=event.deployment_id,
            deployment_label=event.deployment,
            adapter_label=event.adapter,
            state=event.state.value,
            finish_reason=event.finish_reason.value,
            source=event.source.value,
            worker="" if event.owner.startswith(_GATEWAYS) else event.owner,
            prompt_tokens=event.prompt_tokens,
            cached_tokens=event.cached_tokens,
            completion_tokens=event.completion_tokens,
            cost_micros=event.cost_micros,
            admitted_at=_at(event.admitted_ms),
            ended_at=_at(event.ended_ms),
        )


def _at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _sums(records: Iterable[UsageRecord]) -> list[UsageRollup]:
    """Sums up by hour and by day, where the streams were admitted: budgets count them there as well."""
    sums: dict[tuple[object, ...], UsageRollup] = {}
    for record in records:
        zone = ZoneInfo(record.tenant.time_zone if record.tenant is not None else "UTC")
        for bucket in Bucket:
            row = UsageRollup(
                bucket=bucket,
                start_at=bucket_start(record.admitted_at, bucket=bucket, zone=zone),
                tenant=record.tenant,
                requests=1,
                **{name: getattr(record, name) for name in _ATTRIBUTION},
            )
            once = tuple(getattr(row, name) for name in _ONCE)
            known = sums.setdefault(once, row)
            if known is not row:
                for name in SUMMED:
                    setattr(known, name, getattr(known, name) + getattr(row, name))
    return [sums[once] for once in sorted(sums)]
