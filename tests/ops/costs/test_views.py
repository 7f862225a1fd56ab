"""The page of costs, its numbers, its tables and their files: for operators who may see them, and nobody else."""

import csv
from datetime import datetime, timedelta
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from apps.accounts.models import User
from apps.deployments.models import ModelDeployment
from apps.ops.costs.asked import STEPS
from apps.ops.costs.panels import PANELS, TILES
from apps.ops.costs.tables import MOST_ROWS, TABLES
from apps.ops.latency.asked import COMPARED
from apps.ops.latency.scopes import floor_to
from apps.tenants.models import Tenant
from apps.usage.services import usage_record
from tests.ops.costs.hours import HOUR, Hour, seed
from tests.usage.events import event

pytestmark = pytest.mark.django_db

PAGE = reverse("admin:ops_fleetcost_changelist")
NUMBERS = reverse("admin:ops_fleetcost_numbers")
TABLES_ALONE = reverse("admin:ops_fleetcost_tables")
EXPORT = reverse("admin:ops_fleetcost_export")
ALL = (PAGE, NUMBERS, TABLES_ALONE, f"{EXPORT}?table=tenants")


def hour_ago(hours: int) -> datetime:
    """Beginning of the full hour so many hours ago."""
    return floor_to(timezone.now(), HOUR) - hours * HOUR


def fill(tenant: Tenant, *, hours: int = 20, deployment: str = "tiny", **hour: Any) -> None:
    """Hours up to now of one worker, and a stream in each of the last two."""
    values: dict[str, Any] = {"tokens": 10.0, "running": 0.5, **hour}
    seed({(deployment, f"{deployment}-w"): [Hour(**values)] * hours}, hour_ago(hours))
    usage_record(
        events=[
            event(f"{deployment}-{number}-{uuid4()}", tenant_id=tenant.pk.hex, deployment=deployment, admitted_at=at)
            for number, at in enumerate((hour_ago(1), hour_ago(2)))
        ]
    )


def price(deployment: ModelDeployment, **costs: float | None) -> None:
    ModelDeployment.objects.filter(pk=deployment.pk).update(**costs)


def told(client: Client, **query: str) -> Any:
    answer = client.get(NUMBERS, {"range": "24h", **query})
    assert answer.status_code == 200, answer.content
    assert "no-store" in answer["Cache-Control"]
    return answer.json()


def file_of(client: Client, table: str, **query: str) -> list[dict[str, str]]:
    answer = client.get(EXPORT, {"table": table, "range": "24h", **query})
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/csv")
    assert f'filename="costs-{table}.csv"' in answer["Content-Disposition"]
    return list(csv.DictReader(StringIO(answer.content.decode())))


# ---- numbers


def test_numbers_are_of_the_hours_that_were_sampled(
    admin_client: Client, tenant: Tenant, deployment: ModelDeployment
) -> None:
    price(deployment, worker_hour_cost=2, kwh_cost=0.5)
    fill(tenant, watts=400.0, has_gpu=True)
    numbers = told(admin_client)
    totals, series = numbers["totals"], numbers["series"]
    assert (totals["hours.all"], totals["hours.busy"], totals["hours.idle"]) == (20, 10, 10)
    assert (totals["share.idle"], totals["use.capacity"], totals["use.places"]) == (0.5, 1.0, 0.0625)
    assert totals["tokens.per_hour"] == totals["tokens.per_gpu_hour"] == 36_000
    assert totals["tokens.per_kwh"] == 90_000
    assert (totals["cost.running"], totals["cost.idle"]) == (20 * 2 + 8 * 0.5, 20)
    assert (totals["count.requests"], totals["cost.charged"]) == (2, 0.000014)
    assert {len(column) for column in series.values()} == {len(numbers["at"])}
    assert sum(value or 0 for value in series["hours.all"]) == 20
    assert series["hours.all"][0] is None, "no worker was there yet"
    assert told(admin_client, deployment="other")["totals"]["hours.all"] is None


def test_what_is_not_measured_is_null_and_told(
    admin_client: Client, tenant: Tenant, deployment: ModelDeployment
) -> None:
    fill(tenant)
    totals = told(admin_client)["totals"]
    unknown = ("tokens.per_kwh", "tokens.per_gpu_hour", "cost.running", "cost.idle")
    assert {name: totals[name] for name in unknown} == dict.fromkeys(unknown)
    text = admin_client.get(PAGE, {"range": "24h"}).content.decode()
    for said in ("Power is not measured here", "not measured here</td>", "no cost given</td>", "no GPU seen</td>"):
        assert said in text
    assert "what they cost is not known here" in text


def test_a_deployment_without_a_cost_is_named(
    admin_client: Client, tenant: Tenant, deployment: ModelDeployment
) -> None:
    price(deployment, worker_hour_cost=2)
    fill(tenant)
    fill(tenant, deployment="free")
    assert "No cost of a worker-hour is given for: free." in admin_client.get(PAGE).content.decode()
    assert told(admin_client)["totals"]["cost.running"] == 40, "of the one of which it is known"


@pytest.mark.parametrize("compare", list(COMPARED))
@pytest.mark.parametrize("length", list(STEPS))
def test_the_time_beside_it_has_the_same_steps(admin_client: Client, tenant: Tenant, length: str, compare: str) -> None:
    numbers = told(admin_client, range=length, compare=compare)
    beside = numbers["before"]
    assert beside["shift"] % numbers["step"] == 0
    assert [at + beside["shift"] for at in beside["at"]][: len(numbers["at"])] == numbers["at"]
    for half in (numbers, beside):
        assert {len(column) for column in half["series"].values()} == {len(half["at"])}


def test_a_time_that_is_past_stays(admin_client: Client, tenant: Tenant, deployment: ModelDeployment) -> None:
    fill(tenant, hours=48)
    end = hour_ago(24)
    numbers = told(admin_client, end=end.isoformat())
    assert (numbers["refresh"], numbers["end"]) == (None, end.timestamp())
    assert (numbers["totals"]["hours.all"], numbers["totals"]["count.requests"]) == (24, 0)
    assert told(admin_client)["refresh"] == 600


def test_every_line_and_figure_is_a_series_that_exists(admin_client: Client, tenant: Tenant) -> None:
    fill(tenant)
    numbers = told(admin_client)
    drawn = {line.series for panel in PANELS for line in panel.lines} | {tile.series for tile in TILES}
    drawn |= {panel.total.series for panel in PANELS if panel.total is not None}
    assert drawn <= set(numbers["series"])
    assert drawn <= set(numbers["totals"])


@pytest.mark.parametrize("query", [{"range": "15m"}, {"compare": "x"}, {"end": "then"}, {"deployment": "d" * 201}])
def test_a_question_that_makes_no_sense(admin_client: Client, query: dict[str, str]) -> None:
    for url in (NUMBERS, TABLES_ALONE):
        answer = admin_client.get(url, query)
        assert answer.status_code == 400
        assert next(iter(query)) in answer.content.decode()
    assert admin_client.get(PAGE, query).status_code == 200, "a page leaves it out"


@pytest.mark.parametrize(
    "end", ["0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "0001-01-02T00:00:00Z", "9999-12-31T23:59:59-14:00"]
)
@pytest.mark.parametrize("more", [{}, {"range": "90d"}, {"compare": "week", "range": "24h"}])
def test_the_first_and_last_years_are_no_time(admin_client: Client, end: str, more: dict[str, str]) -> None:
    for url in (NUMBERS, TABLES_ALONE):
        answer = admin_client.get(url, {"end": end, **more})
        assert (answer.status_code, "end: Times are from" in answer.content.decode()) == (400, True)
    assert admin_client.get(PAGE, {"end": end, **more}).status_code == 200, "a page leaves it out"


# ---- page and tables


def test_the_page_has_the_tables_and_they_come_alone_too(
    admin_client: Client, tenant: Tenant, deployment: ModelDeployment
) -> None:
    price(deployment, worker_hour_cost=2)
    fill(tenant)
    page = admin_client.get(PAGE, {"range": "24h", "deployment": "tiny"}).content.decode()
    alone = admin_client.get(TABLES_ALONE, {"range": "24h", "deployment": "tiny"}).content.decode()
    for text in (page, alone):
        for name in ("deployments", "workers", "tenants"):
            assert f'data-table="{name}"' in text
        assert "?table=workers&amp;range=24h&amp;deployment=tiny" in text
        assert "There are samples of 20 of these 24 hours" in text
    assert 'data-panel="hours"' in page
    assert '<option value="tiny" selected>tiny</option>' in page
    assert "<html" not in alone
    assert "No cheaper deployment is known" in alone


def test_a_long_table_is_cut_and_its_file_is_not(admin_client: Client, tenant: Tenant) -> None:
    seed({("tiny", f"w{number}"): [Hour()] for number in range(MOST_ROWS + 2)}, hour_ago(1))
    assert "The file has 2 rows more." in admin_client.get(TABLES_ALONE, {"range": "24h"}).content.decode()
    assert len(file_of(admin_client, "workers")) == MOST_ROWS + 2


def test_names_are_shown_as_text(admin_client: Client, tenant: Tenant) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(name="<script>alert(1)</script>")
    fill(tenant, deployment="<b>")
    text = admin_client.get(PAGE, {"deployment": "<b>"}).content.decode()
    assert "<script>alert(1)" not in text
    assert "<b></td>" not in text


# ---- files


def test_files_have_numbers_and_leave_empty_what_is_not_known(
    admin_client: Client, tenant: Tenant, deployment: ModelDeployment
) -> None:
    price(deployment, worker_hour_cost=2)
    Tenant.objects.filter(pk=tenant.pk).update(name="=1+1")
    fill(tenant)
    (row,) = file_of(admin_client, "deployments")
    assert (row["deployment"], row["worker_hours"], row["idle_share"], row["cost"]) == ("tiny", "20.0", "0.5", "40.0")
    assert (row["kwh"], row["tokens_per_kwh"], row["requests"], row["charged"]) == ("", "", "2", "0.000014")
    (row,) = file_of(admin_client, "workers")
    assert (row["incarnation"], row["ready_share"], row["tokens"]) == ("tiny-w", "1.0", "720000.0")
    (row,) = file_of(admin_client, "tenants")
    assert row["tenant"] == "'=1+1", "no formula for a spreadsheet"
    assert float(row["cost_share"]) == 40
    assert file_of(admin_client, "tenants", deployment="other") == []


def test_every_table_has_a_file(admin_client: Client) -> None:
    for name in TABLES:
        assert file_of(admin_client, name) == []
    assert admin_client.get(EXPORT, {"table": "secrets"}).status_code == 404


# ---- who may


def test_a_member_and_staff_without_the_permission_see_nothing(client: Client, user: User, tenant: Tenant) -> None:
    assert [client.get(url).status_code for url in ALL] == [302] * 4
    client.force_login(user)
    assert [client.get(url).status_code for url in ALL] == [302] * 4, "a member is sent to sign in as somebody else"
    user.is_staff = True
    user.save()
    assert [client.get(url).status_code for url in ALL] == [403] * 4
    user.user_permissions.add(Permission.objects.get(codename="view_fleetcost"))
    assert [client.get(url).status_code for url in ALL] == [200] * 4


# ---- what it costs


def test_page_numbers_tables_and_files_take_a_fixed_number_of_queries(
    admin_client: Client, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    def more(first: int, count: int) -> None:
        for number in range(first, first + count):
            name = f"d{number}"
            row = ModelDeployment.objects.create(name=name, model="m", worker_hour_cost=1, is_restricted=True)
            row.visible_tenants.add(tenant)
            fill(tenant, deployment=name)

    asked = [(PAGE, {}, 13), (NUMBERS, {"compare": "before"}, 10), (TABLES_ALONE, {}, 12), (ALL[3], {}, 12)]
    more(0, 1)
    taken = []
    for url, query, most in asked:
        admin_client.get(url, query)
        with CaptureQueriesContext(connection) as queries:
            assert admin_client.get(url, query).status_code == 200
        assert len(queries) <= most, (url, [one["sql"] for one in queries.captured_queries])
        taken.append(len(queries))
    more(1, 12)
    for (url, query, _most), count in zip(asked, taken, strict=True):
        with django_assert_num_queries(count, info=url):
            admin_client.get(url, query)


def test_a_range_of_90_days_reads_days_of_the_ledger(admin_client: Client, tenant: Tenant) -> None:
    seed({("tiny", "w"): [Hour()]}, hour_ago(24 * 80))
    at = timezone.now() - timedelta(days=80)
    usage_record(events=[event("old", tenant_id=tenant.pk.hex, admitted_at=at)])
    totals = told(admin_client, range="90d")["totals"]
    assert (totals["hours.all"], totals["count.requests"]) == (1, 1)
    assert told(admin_client, range="30d")["totals"]["count.requests"] == 0
