from datetime import timedelta

import pytest
from django.db import DatabaseError, connection
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from apps.tenants.models import Tenant
from apps.usage.models import UsageRecord, UsageRollup
from apps.usage.services import usage_expire, usage_record
from apps.usage.upserts import ROWS

from .events import NOON, event


def test_sums_keep_tenants_keys_members_and_deployments_apart(db: None) -> None:
    usage_record(
        events=[
            event("strm-1"),
            event("strm-2", tenant_id="other"),
            event("strm-3", api_key_id="k"),
            event("strm-4", user_id="u"),
            event("strm-5", deployment="large"),
            event("strm-6", deployment_id="d"),
            event("strm-7"),
        ]
    )
    rows = UsageRollup.all_tenants.filter(bucket="day")
    assert sorted(rows.values_list("requests", flat=True)) == [1, 1, 1, 1, 1, 2]


def test_a_stream_counts_where_it_was_admitted_by_the_tenants_clock(tenant: Tenant) -> None:
    Tenant.objects.update(time_zone="Asia/Tokyo")
    evening = NOON.replace(hour=14, minute=59)
    usage_record(
        events=[
            event("strm-1", tenant_id=tenant.id.hex, admitted_at=evening, ended_ms=2_000_000_000_000),
            event("strm-2", tenant_id=tenant.id.hex, admitted_at=evening + timedelta(minutes=1)),
        ]
    )
    days = UsageRollup.objects.for_tenant(tenant).filter(bucket="day").order_by("start_at")
    assert [row.start_at.isoformat() for row in days] == ["2026-06-30T15:00:00+00:00", "2026-07-01T15:00:00+00:00"]


def test_a_batch_takes_a_fixed_number_of_queries(
    tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for first, count in ((0, 2), (10, ROWS // 2), (100, ROWS // 2)):
        events = [
            event(f"strm-{number}", tenant_id=tenant.id.hex, deployment=f"model-{number}")
            for number in range(first, first + count)
        ]
        with django_assert_num_queries(5):  # a savepoint and its end, tenants, a statement of records and one of sums
            usage_record(events=events)


def test_more_than_a_statement_takes_is_all_there(tenant: Tenant) -> None:
    events = [
        event(f"strm-{number}", tenant_id=tenant.id.hex, deployment=f"model-{number % 30}")
        for number in range(3 * ROWS + 1)
    ]
    assert usage_record(events=events) == 3 * ROWS + 1
    assert usage_record(events=[*events, event("strm-last", tenant_id=tenant.id.hex)]) == 1
    assert UsageRecord.all_tenants.count() == 3 * ROWS + 2
    days = UsageRollup.objects.for_tenant(tenant).filter(bucket="day")
    assert sum(days.values_list("requests", flat=True)) == 3 * ROWS + 2


def test_records_end_with_their_tenants_retention_and_sums_stay(tenant: Tenant, other_tenant: Tenant) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(retention_days=7)
    usage_record(
        events=[
            event("strm-1", tenant_id=tenant.id.hex),
            event("strm-2", tenant_id=other_tenant.id.hex),
            event("strm-3", tenant_id="gone"),
        ]
    )
    UsageRecord.all_tenants.update(recorded_at=timezone.now() - timedelta(days=8))
    usage_record(events=[event("strm-4", tenant_id=tenant.id.hex), event("strm-5", tenant_id="gone")])
    assert usage_expire() == 1
    left = UsageRecord.all_tenants.values_list("stream_id", flat=True)
    assert set(left) == {"strm-2", "strm-3", "strm-4", "strm-5"}
    UsageRecord.all_tenants.filter(stream_id="strm-3").update(recorded_at=timezone.now() - timedelta(days=31))
    assert usage_expire() == 1
    assert "strm-3" not in set(left.all())
    assert sum(UsageRollup.all_tenants.filter(bucket="day").values_list("requests", flat=True)) == 5


def test_records_and_sums_are_stored_together_or_not_at_all(db: None) -> None:
    """What were stored without its sum would be known the next time, and never be summed up."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE usage_usagerollup RENAME TO elsewhere")
    with pytest.raises(DatabaseError, match="usage_usagerollup"):
        usage_record(events=[event("strm-1")])
    assert not UsageRecord.all_tenants.exists()


def test_nothing_is_nothing(db: None) -> None:
    assert usage_record(events=[]) == 0


@pytest.mark.parametrize("ref", ["", "not-a-uuid", "0" * 32])
def test_ids_that_name_nobody_are_kept_as_they_are(db: None, ref: str) -> None:
    usage_record(events=[event("strm-1", tenant_id=ref, api_key_id=ref, user_id=ref, deployment_id=ref)])
    record = UsageRecord.all_tenants.get()
    assert (record.tenant, record.api_key, record.user, record.deployment) == (None, None, None, None)
    assert (record.tenant_ref, record.api_key_ref) == (ref, ref)
