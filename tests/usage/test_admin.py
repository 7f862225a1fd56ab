import csv
import html
import json
import re
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries
from redis import Redis

from apps.accounts.models import ApiKey
from apps.tenants.models import Tenant
from apps.usage import csv_export
from apps.usage.enums import Group
from apps.usage.models import NoticeDelivery, SoftLimitNotice, UsageRecord
from apps.usage.report import SHOWN, usage_report
from apps.usage.services import usage_record
from headrace_wire.api_key import ApiKeyToken

from .events import NOON, event

RECORDS = reverse("admin:usage_usagerecord_changelist")
OVERVIEW = reverse("admin:usage_usagerecord_overview")
EXPORT = reverse("admin:usage_usagerecord_export_sums")
NOTICES = reverse("admin:usage_softlimitnotice_changelist")


def use(tenant: Tenant, first: int, count: int, **values: Any) -> None:
    """Fills the ledger with streams of now."""
    usage_record(
        events=[
            event(f"strm-{number}", tenant_id=tenant.id.hex, admitted_at=timezone.now(), **values)
            for number in range(first, first + count)
        ]
    )


def tell(tenant: Tenant, period: str = "2026-07") -> SoftLimitNotice:
    """A notice whose email arrived and whose webhook did not."""
    notice = SoftLimitNotice.all_tenants.create(
        tenant=tenant,
        quota_ref="q",
        quota_label="Acme",
        period=period,
        spent_micros=10_500_000,
        limit_micros=10_000_000,
        passed_at=NOON,
    )
    NoticeDelivery.objects.create(notice=notice, channel="email", delivered_at=NOON)
    NoticeDelivery.objects.create(notice=notice, channel="webhook", attempts=12, last_error="answered with 500")
    return notice


def rows_of(answer: Any) -> list[dict[str, str]]:
    """Reads an exported file to its end."""

    async def read(chunks: AsyncIterator[bytes]) -> bytes:
        return b"".join([chunk async for chunk in chunks])

    assert answer["Content-Type"].startswith("text/csv")
    text = async_to_sync(read)(answer.streaming_content).decode()
    return list(csv.DictReader(StringIO(text)))


def charts(page: Any) -> list[Any]:
    """Returns the data that the page gives to Chart.js."""
    return [json.loads(html.unescape(found)) for found in re.findall(r'data-value="(.*?)"', page.content.decode())]


def test_lists_take_a_fixed_number_of_queries(
    admin_client: Client, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    def make(first: int, count: int) -> None:
        use(tenant, first, count)
        for number in range(first, first + count):
            tell(tenant, period=str(number))

    make(0, 1)
    pages = ((RECORDS, 8), (OVERVIEW, 4), (NOTICES, 6))
    for url, queries in pages:
        admin_client.get(url)
        with django_assert_num_queries(queries, info=url):
            assert admin_client.get(url).status_code == 200
    make(1, 30)
    for url, queries in pages:
        with django_assert_num_queries(queries, info=url):
            admin_client.get(url)


def test_streams_are_found_by_tenant_state_day_and_key(
    admin_client: Client, tenant: Tenant, other_tenant: Tenant, issued: tuple[ApiKey, ApiKeyToken]
) -> None:
    key, _ = issued
    use(tenant, 0, 2, api_key_id=key.id.hex)
    use(other_tenant, 2, 1)
    UsageRecord.all_tenants.filter(stream_id="strm-1").update(ended_at=NOON)

    def found(**query: str) -> set[str]:
        page = admin_client.get(RECORDS, query)
        return {record.stream_id for record in page.context["cl"].result_list}

    assert found(tenant__id__exact=str(tenant.pk)) == {"strm-0", "strm-1"}
    assert found(state__exact="failed") == set()
    assert found(ended_at__year="2026", ended_at__month="7", ended_at__day="1") == {"strm-1"}
    assert found(q="strm-2") == {"strm-2"}
    assert found(q=key.public_id) == {"strm-0", "strm-1"}


def test_nothing_is_edited(admin_client: Client, tenant: Tenant) -> None:
    use(tenant, 0, 1)
    record = UsageRecord.objects.for_tenant(tenant).get()
    change = reverse("admin:usage_usagerecord_change", args=[record.pk])
    assert "strm-0" in admin_client.get(change).content.decode()
    assert admin_client.post(change, {"cost_micros": "0"}).status_code == 403
    assert admin_client.get(reverse("admin:usage_usagerecord_add")).status_code == 403
    assert admin_client.get(reverse("admin:usage_usagerecord_delete", args=[record.pk])).status_code == 403


def test_a_tenants_page_shows_its_own_days(admin_client: Client, tenant: Tenant, other_tenant: Tenant) -> None:
    use(tenant, 0, 3, cost_micros=500_000)
    use(tenant, 3, 1, deployment="large", cost_micros=2_000_000)
    use(other_tenant, 9, 5)
    page = admin_client.get(OVERVIEW, {"tenant": str(tenant.pk), "days": "7"})
    text = page.content.decode()
    assert '<p class="font-semibold text-2xl text-important" id="total-requests">4</p>' in text
    assert 'id="total-cost">3.5</p>' in text
    tokens, cost = charts(page)
    assert len(tokens["labels"]) == 7
    assert {row["label"]: row["data"][-1] for row in tokens["datasets"]} == {"tiny": 45, "large": 15}
    assert {row["label"]: row["data"][-1] for row in cost["datasets"]} == {"tiny": 1.5, "large": 2.0}
    assert tokens["datasets"][0]["label"] == "large", "what costs most comes first"


def test_the_page_of_all_splits_by_tenant_with_links(
    admin_client: Client, tenant: Tenant, other_tenant: Tenant
) -> None:
    use(tenant, 0, 1)
    use(other_tenant, 1, 1)
    text = admin_client.get(OVERVIEW, {"by": "tenant"}).content.decode()
    for one in (tenant, other_tenant):
        assert f'href="?tenant={one.id.hex}">{one.name}</a>' in text


@pytest.mark.parametrize("query", [{"tenant": "nobody"}, {"days": "1000000"}, {"by": "password"}, {"days": "x"}])
def test_a_question_that_makes_no_sense_gets_the_usual_page(admin_client: Client, query: dict[str, str]) -> None:
    page = admin_client.get(OVERVIEW, query)
    assert page.status_code == 200
    assert len(charts(page)[0]["labels"]) == 30


def test_names_are_shown_as_text(admin_client: Client, tenant: Tenant) -> None:
    use(tenant, 0, 1, deployment='"><script>alert(1)</script>')
    for url in (OVERVIEW, RECORDS):
        assert "<script>alert(1)" not in admin_client.get(url).content.decode()


def test_more_parts_than_colours_are_summed_up(tenant: Tenant) -> None:
    for number in range(SHOWN + 3):
        use(tenant, number, 1, deployment=f"model-{number:02}")
    report = usage_report(tenant=tenant, days=7, group=Group.DEPLOYMENT, now=timezone.now())
    datasets = report.tokens_chart["datasets"]
    assert len(datasets) == SHOWN + 1
    assert (datasets[-1]["label"], datasets[-1]["data"][-1]) == ("3 others", 45)
    assert len({row["backgroundColor"] for row in datasets}) == SHOWN + 1
    assert len(report.parts) == SHOWN + 3


def test_a_deployment_that_was_made_again_is_one_line_for_each(tenant: Tenant) -> None:
    use(tenant, 0, 1, deployment_id="1" * 32)
    use(tenant, 1, 1, deployment_id="2" * 32)
    report = usage_report(tenant=tenant, days=7, group=Group.DEPLOYMENT, now=timezone.now())
    assert [part.requests for part in report.parts] == [1, 1]


def test_chosen_streams_are_exported(admin_client: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_export, "PAGE", 4)
    use(tenant, 0, 9)
    use(tenant, 9, 1, deployment="=cmd|' /C calc'!A0", cost_micros=1_250_000)
    chosen = [str(pk) for pk in UsageRecord.all_tenants.values_list("pk", flat=True)[:1]]
    form = {"action": "export", "_selected_action": chosen}
    assert len(rows_of(admin_client.post(RECORDS, form))) == 1
    rows = rows_of(admin_client.post(RECORDS, {**form, "select_across": "1"}))
    assert [row["stream_id"] for row in rows] == [f"strm-{number}" for number in range(10)]
    last = rows[-1]
    assert (last["tenant_name"], last["tenant_id"], last["cost"]) == ("Acme", tenant.id.hex, "1.25")
    assert last["deployment_name"].startswith("'="), "a spreadsheet must not run it"
    assert datetime.fromisoformat(last["admitted_at"]) < timezone.now() + timedelta(seconds=1)


@pytest.mark.parametrize("count", [0, 4, 8])
def test_exports_that_end_with_a_page_are_whole(
    admin_client: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(csv_export, "PAGE", 4)
    for number in range(count):
        use(tenant, number, 1, deployment=f"model-{number}")
    rows = rows_of(admin_client.get(EXPORT, {"tenant": str(tenant.pk)}))
    assert [row["deployment_name"] for row in rows] == [f"model-{number}" for number in range(count)]


def test_exported_sums_are_the_tenants_of_the_page(admin_client: Client, tenant: Tenant, other_tenant: Tenant) -> None:
    use(tenant, 0, 2)
    use(other_tenant, 2, 1)
    old = event("strm-9", tenant_id=tenant.id.hex, admitted_at=timezone.now() - timedelta(days=8))
    usage_record(events=[old])
    (row,) = rows_of(admin_client.get(EXPORT, {"tenant": str(tenant.pk), "days": "7"}))
    assert (row["requests"], row["prompt_tokens"], row["bucket"]) == ("2", "20", "day")
    assert len(rows_of(admin_client.get(EXPORT))) == 3


def test_pages_are_for_staff_who_may_see_them(client: Client, user: Any, live_redis: Redis) -> None:
    client.force_login(user)
    for url in (RECORDS, OVERVIEW, EXPORT, NOTICES):
        assert client.get(url).status_code == 302
    user.is_staff = True
    user.save()
    for url in (RECORDS, OVERVIEW, EXPORT, NOTICES):
        assert client.get(url).status_code == 403


def test_what_did_not_arrive_is_sent_again_on_request(admin_client: Client, tenant: Tenant) -> None:
    notice = tell(tenant)
    text = admin_client.get(NOTICES).content.decode()
    assert "Email: delivered, Webhook: given up" in text
    assert "10.5" in text
    change = reverse("admin:usage_softlimitnotice_change", args=[notice.pk])
    assert "answered with 500" in admin_client.get(change).content.decode()
    form = {"action": "send_again", "_selected_action": [str(notice.pk)]}
    assert admin_client.post(NOTICES, form).status_code == 302
    due = NoticeDelivery.objects.filter(next_attempt_at__isnull=False).values_list("channel", "attempts")
    assert list(due) == [("webhook", 0)]


def test_the_side_bar_says_where_one_is(admin_client: Client) -> None:
    for url, name in ((RECORDS, "Ended streams"), (OVERVIEW, "Sums and charts"), (NOTICES, "Notices")):
        groups = admin_client.get(url).context["sidebar_navigation"]
        assert [item["title"] for group in groups for item in group["items"] if item["active"]] == [name]
