"""The latency pages and their numbers: of operators, and of members, who see their own tenant and nothing else."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings

from apps.accounts.models import ApiKey, User
from apps.accounts.services import api_key_create, user_create
from apps.deployments.enums import EngineKind, WorkerState
from apps.deployments.models import ModelDeployment, Worker
from apps.ops.latency.asked import COMPARED, RANGES
from apps.tenants.models import Membership, Tenant
from apps.tenants.services import membership_create
from apps.usage.services import usage_record
from headrace_wire.latency.summary import SeriesKey
from tests.support.latencies import latencies_file, latencies_seed, summary_of
from tests.usage.events import event

PAGE = reverse("admin:ops_latencyhour_changelist")
NUMBERS = reverse("admin:ops_latencyhour_numbers")
OWN_PAGE = reverse("ops:own_latency")
OWN_NUMBERS = reverse("ops:own_latency_numbers")
NOON, MINUTE = datetime(2026, 11, 30, 12, tzinfo=UTC), timedelta(minutes=1)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("live_redis")]


@pytest.fixture
def member(client: Client, membership: Membership) -> Client:
    client.force_login(membership.user)
    return client


def book(tenant: Tenant, requests: int, **key: str) -> None:
    """Files what happened a minute ago."""
    series = SeriesKey(key.pop("deployment", "tiny"), tenant.pk.hex, **key)
    latencies_file(str(uuid4()), timezone.now() - timedelta(minutes=1), {series: summary_of(requests=requests)})


def requests_of(client: Client, url: str, **query: str) -> int:
    answer = client.get(url, {"range": "15m", **query})
    assert answer.status_code == 200, answer.content
    count: int = answer.json()["totals"]["count.requests"]
    return count


def status_of(client: Client, url: str, **query: str) -> int:
    return int(client.get(url, query).status_code)


# ---- operators


def test_an_operator_chooses_whose_numbers(admin_client: Client, tenant: Tenant, other_tenant: Tenant) -> None:
    key = uuid4().hex
    book(tenant, 1, worker="w1")
    book(tenant, 10, worker="w2", key_id=key)
    book(other_tenant, 100, worker="w1", deployment="large")
    for query, expected in (
        ({}, 111),
        ({"tenant": str(tenant.pk)}, 11),
        ({"tenant": str(tenant.pk), "key": key}, 10),
        ({"tenant": str(tenant.pk), "key": "chat"}, 1),
        ({"worker": "w1"}, 101),
        ({"deployment": "large"}, 100),
        ({"deployment": "tiny", "worker": "w1"}, 1),
        ({"tenant": str(uuid4())}, 0),
    ):
        assert requests_of(admin_client, NUMBERS, **query) == expected, query


def test_the_page_shows_what_was_chosen_also_what_no_list_has(admin_client: Client, tenant: Tenant) -> None:
    text = admin_client.get(PAGE, {"tenant": str(tenant.pk), "range": "24h", "worker": "gone"}).content.decode()
    assert f'<option value="{tenant.pk}" selected>Acme</option>' in text
    assert '<option value="gone" selected>gone</option>' in text
    assert 'name="range" value="24h" checked' in text
    assert "Choose a tenant first" not in text
    assert "Choose a tenant first" in admin_client.get(PAGE).content.decode()


@pytest.mark.parametrize("compare", list(COMPARED))
@pytest.mark.parametrize("length", list(RANGES))
def test_the_time_beside_it_has_the_same_steps(admin_client: Client, tenant: Tenant, length: str, compare: str) -> None:
    told = admin_client.get(NUMBERS, {"range": length, "compare": compare}).json()
    assert told["before"]["shift"] % told["step"] == 0
    beside = told["before"]["at"]
    assert [at + told["before"]["shift"] for at in beside][: len(told["at"])] == told["at"]
    for half in (told, told["before"]):
        assert {len(column) for column in half["series"].values()} == {len(half["at"])}
    assert len(told["at"]) <= 240


def test_a_point_leads_to_the_streams_that_were_there(
    admin_client: Client, tenant: Tenant, deployment: ModelDeployment
) -> None:
    key, worker = uuid4().hex, "worker-1"
    asked = {"tenant": str(tenant.pk), "deployment": deployment.name, "key": key, "worker": worker}
    live, ended = admin_client.get(NUMBERS, asked).json()["links"]
    assert live["within"] == 120
    page = admin_client.get(live["url"])
    assert page.status_code == 200
    assert page.context["filter"].wanted().deployment == deployment.name
    assert ended["within"] is None
    spans = ((0, 1, worker), (2, 1, worker), (2, 9, worker), (6, 1, worker), (9, 1, worker), (6, 1, "worker-2"))
    for number, (admitted, took, owner) in enumerate(spans):
        at = NOON + admitted * MINUTE
        usage_record(
            events=[
                event(
                    f"strm-{number}",
                    tenant_id=tenant.pk.hex,
                    deployment=deployment.name,
                    api_key_id=key,
                    owner=owner,
                    admitted_at=at,
                    ended_ms=int((at + took * MINUTE).timestamp() * 1000),
                )
            ]
        )
    url = ended["url"].replace("{from}", "2026-11-30T12:05:00.000Z").replace("{to}", "2026-11-30T12:07:00.000Z")
    page = admin_client.get(url)
    assert page.status_code == 200
    assert [record.stream_id for record in page.context["cl"].result_list] == ["strm-2", "strm-3"]


def test_a_time_that_is_past_stays(admin_client: Client, tenant: Tenant) -> None:
    end = timezone.now() - timedelta(minutes=30)
    book(tenant, 5)
    told = admin_client.get(NUMBERS, {"range": "15m", "end": end.isoformat()}).json()
    assert told["refresh"] is None
    assert told["totals"]["count.requests"] == 0
    assert 0 <= told["end"] - end.timestamp() < told["step"]
    assert admin_client.get(NUMBERS, {"range": "15m"}).json()["refresh"] == 10


@pytest.mark.parametrize(
    "query",
    [
        *({"tenant": "nobody"}, {"range": "1y"}, {"compare": "x"}, {"key": "K"}, {"worker": "w" * 65}),
        *({"end": end} for end in ("then", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00")),
    ],
)
def test_a_question_that_makes_no_sense(admin_client: Client, member: Client, query: dict[str, str]) -> None:
    for client, page, numbers in ((admin_client, PAGE, NUMBERS), (member, OWN_PAGE, OWN_NUMBERS)):
        answer = client.get(numbers, query)
        assert answer.status_code == 400
        assert next(iter(query)) in answer.json()["problem"]
        assert status_of(client, page, **query) == 200, "a page leaves it out"


def test_a_range_before_the_first_numbers_is_empty(admin_client: Client) -> None:
    assert (
        admin_client.get(NUMBERS, {"range": "90d", "end": "2001-01-01T00:00Z"}).json()["totals"]["count.requests"] == 0
    )


def test_names_are_shown_as_text(admin_client: Client, member: Client, tenant: Tenant) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(name="</script><script>alert(1)</script>")
    for client, url in ((admin_client, PAGE), (member, OWN_PAGE)):
        assert "<script>alert(1)" not in client.get(url, {"worker": "<script>alert(1)</script>"}).content.decode()


def test_a_store_that_is_away_is_told(admin_client: Client, settings: Settings) -> None:
    settings.REDIS_URL = "unix:///nowhere/redis.sock"
    answer = admin_client.get(NUMBERS, {"range": "15m"})
    assert answer.status_code == 503
    assert "no-store" in answer["Cache-Control"]
    assert "cannot be read" in answer.json()["problem"]


def test_pages_are_for_staff_who_may_see_them(client: Client, user: User) -> None:
    client.force_login(user)
    assert [status_of(client, url) for url in (PAGE, NUMBERS)] == [302, 302]
    user.is_staff = True
    user.save()
    assert [status_of(client, url) for url in (PAGE, NUMBERS)] == [403, 403]


# ---- members


def test_a_member_sees_the_own_tenant_alone(member: Client, tenant: Tenant, other_tenant: Tenant) -> None:
    book(tenant, 3)
    book(other_tenant, 50)
    assert requests_of(member, OWN_NUMBERS) == 3
    assert requests_of(member, OWN_NUMBERS, tenant=str(tenant.pk)) == 3
    page = member.get(OWN_PAGE, {"tenant": str(other_tenant.pk)})
    assert page.status_code == 200
    assert "Acme" in page.content.decode()
    assert "Globex" not in page.content.decode()


def test_what_is_not_the_members_is_not_there(
    member: Client, tenant: Tenant, other_tenant: Tenant, deployment: ModelDeployment
) -> None:
    hidden = ModelDeployment.objects.create(name="hidden", model="m", is_restricted=True)
    foreign, _token = api_key_create(api_key=ApiKey(tenant=other_tenant, name="foreign"))
    own, _token = api_key_create(api_key=ApiKey(tenant=tenant, name="own"))
    book(other_tenant, 50, worker="w1", key_id=foreign.pk.hex)
    for query in (
        {"tenant": str(other_tenant.pk)},
        {"tenant": str(uuid4())},
        {"key": foreign.pk.hex},
        {"key": uuid4().hex},
        {"worker": "w1"},
        {"deployment": hidden.name},
        {"deployment": "no such"},
        {"tenant": str(tenant.pk), "key": foreign.pk.hex},
    ):
        answer = member.get(OWN_NUMBERS, query)
        assert (answer.status_code, answer.json()) == (404, {"problem": "There is no such tenant, model or key."}), (
            query
        )
    for known in ({"deployment": deployment.name}, {"key": own.pk.hex}, {"key": "chat"}):
        assert status_of(member, OWN_NUMBERS, **known) == 200


def test_members_choose_among_the_keys_whose_usage_they_may_read(
    client: Client, membership: Membership, tenant: Tenant
) -> None:
    colleague = user_create(user=User(email="bob@example.com"))
    membership_create(tenant=tenant, user=colleague)
    shared, _token = api_key_create(api_key=ApiKey(tenant=tenant, name="service"))
    own, _token = api_key_create(api_key=ApiKey(tenant=tenant, user=colleague, name="laptop"))
    for person, keys in ((membership.user, {shared.pk.hex, own.pk.hex}), (colleague, {own.pk.hex})):
        client.force_login(person)
        offered = client.get(OWN_NUMBERS, {"choices": "1"}).json()["choices"]["key"]
        assert {value for value, _label in offered} == keys | {"", "chat"}
        assert status_of(client, OWN_NUMBERS, key=shared.pk.hex) == (200 if shared.pk.hex in keys else 404)


def test_a_member_of_two_tenants_chooses(member: Client, user: User, tenant: Tenant, other_tenant: Tenant) -> None:
    membership_create(tenant=other_tenant, user=user)
    book(tenant, 3)
    book(other_tenant, 50)
    assert requests_of(member, OWN_NUMBERS, tenant=str(other_tenant.pk)) == 50
    assert requests_of(member, OWN_NUMBERS, tenant=str(tenant.pk)) == 3
    Membership.all_tenants.filter(tenant=other_tenant).delete()
    assert status_of(member, OWN_NUMBERS, tenant=str(other_tenant.pk)) == 404, "no longer"


def test_a_members_page_has_nothing_of_the_fleet(member: Client) -> None:
    page = member.get(OWN_PAGE)
    assert (page.status_code, page["Cache-Control"]) == (200, "no-store")
    assert "script-src 'self'" in page["Content-Security-Policy"]
    assert 'data-panel="ttft"' in page.content.decode()
    assert 'data-panel="kv"' not in page.content.decode()
    told = member.get(OWN_NUMBERS, {"compare": "day", "choices": "1"}).json()
    for half in (told, told["before"]):
        assert not any(name.startswith("fleet.") for name in (*half["series"], *half["totals"]))
    assert told["links"] == []
    assert set(told["choices"]) == {"deployment", "tenant", "key"}


def test_who_is_in_no_tenant_or_signed_out_sees_nothing(client: Client, user: User) -> None:
    assert [status_of(client, url) for url in (OWN_PAGE, OWN_NUMBERS)] == [302, 401]
    client.force_login(user)
    assert [status_of(client, url) for url in (OWN_PAGE, OWN_NUMBERS)] == [403, 404]


# ---- what it costs


def fill(tenant: Tenant, count: int) -> None:
    """So many more tenants, deployments, workers and keys."""
    now, salt = timezone.now(), uuid4().hex[:8]
    Tenant.objects.bulk_create(Tenant(slug=f"t-{salt}-{n}", name=f"Tenant {n}") for n in range(count))
    ModelDeployment.objects.bulk_create(ModelDeployment(name=f"d-{salt}-{n}", model="m") for n in range(count))
    Worker.objects.bulk_create(
        Worker(
            incarnation=f"w-{salt}-{n}",
            deployment_name="tiny",
            engine=EngineKind.SIMULATED,
            state=WorkerState.READY,
            host="h",
            pid=n,
            started_at=now,
            last_seen_at=now,
        )
        for n in range(count)
    )
    for n in range(count):
        api_key_create(api_key=ApiKey(tenant=tenant, name=f"key {n}"))


def test_pages_and_numbers_take_a_fixed_number_of_queries(
    admin_client: Client, member: Client, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    latencies_seed([tenant.pk], now=timezone.now())
    whose = {"tenant": str(tenant.pk), "deployment": "tiny"}
    asked = [
        *((admin_client, PAGE, {"tenant": str(tenant.pk)}, 8), (member, OWN_PAGE, {}, 8)),
        *(
            (admin_client, NUMBERS, {**whose, "range": name, "compare": "before", "choices": "1"}, 25)
            for name in RANGES
        ),
        *((member, OWN_NUMBERS, {"range": name, "compare": "week", "choices": "1"}, 25) for name in RANGES),
    ]
    taken = []
    fill(tenant, 1)
    for client, url, query, most in asked:
        client.get(url, query)
        with CaptureQueriesContext(connection) as queries:
            assert client.get(url, query).status_code == 200
        assert len(queries) <= most, (url, query)
        taken.append(len(queries))
    fill(tenant, 20)
    others = list(Tenant.objects.exclude(pk=tenant.pk).values_list("pk", flat=True))
    for (client, url, query, _most), count in zip(asked, taken, strict=True):
        with django_assert_num_queries(count, info=f"{url} {query}"):
            client.get(url, query)
    assert len(others) > 20
