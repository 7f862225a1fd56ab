"""The page of live streams: what it shows, what it does, what it refuses and how it says so."""

import re
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries, Settings
from redis import Redis

from apps.accounts.models import User
from apps.deployments.models import ModelDeployment
from apps.tenants.enums import AuditAction
from apps.tenants.models import AuditEvent, Tenant
from headrace_wire import redis_keys
from headrace_wire.fleet import WorkerState
from headrace_wire.messages import Cancel, Drain, Migrate, Resume, StreamState

from .conftest import GATEWAY, OTHER_GATEWAY, PaperFleet

PAGE = reverse("admin:ops_livestream_changelist")
LIVE = reverse("admin:ops_livestream_live")
ACT = reverse("admin:ops_livestream_act")


def process_page(incarnation: str) -> str:
    return reverse("admin:ops_livestream_process", args=[incarnation])


def text_of(answer: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


@pytest.fixture
def staff(user: User, client: Client) -> Client:
    """Somebody of the staff who may only look."""
    user.is_staff = True
    user.save()
    user.user_permissions.add(Permission.objects.get(codename="view_livestream"))
    client.force_login(user)
    return client


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On paper nobody acknowledges: nobody waits for it."""
    monkeypatch.setattr("apps.ops.admin.live_streams.ACKNOWLEDGED_SECONDS", 0.2)


# ---- looking


def test_it_shows_who_runs_where(
    admin_client: Client,
    paper: PaperFleet,
    tenant: Tenant,
    deployment: ModelDeployment,
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    paper.worker("worker-1", deployment.name, num_streams=1)
    paper.gateway()
    paper.admit(3, tenant_id=tenant.pk.hex)
    (stream_id, *_) = paper.claim("worker-1", 1, tokens=7)
    for streams in (3, 40):
        paper.admit(streams - 3, tenant_id=tenant.pk.hex)
        with django_assert_num_queries(7):
            answer = admin_client.get(PAGE)
    said = text_of(answer)
    assert "40 streams" in said
    assert "gateway-1" in said
    assert "Viewers" in said
    assert tenant.name in said
    row = next(line for line in answer.content.decode().split("<tr") if f'data-key="{stream_id}"' in line)
    assert ">decode<" in row
    assert ">7<" in row
    assert "data-viewers>1<" in row
    assert f"/admin/usage/usagerecord/?q={stream_id}" in row
    assert f"/admin/guardrails/intervention/?q={stream_id}" in row
    assert f"/admin/tenants/auditevent/?q={stream_id}" in row
    assert "secret words" not in said, "what is generated is the tenant's"
    assert f'data-key="{stream_id}"' in admin_client.get(LIVE).content.decode()


def test_filters_and_pages(
    admin_client: Client, paper: PaperFleet, tenant: Tenant, deployment: ModelDeployment
) -> None:
    paper.admit(60, tenant_id=tenant.pk.hex, deployment=deployment.name)
    answer = admin_client.get(PAGE, {"tenant": str(tenant.pk), "state": "queued"})
    assert "Page 1 of 2" in text_of(answer)
    assert answer.content.decode().count('name="stream"') == 50
    second = admin_client.get(PAGE, {"tenant": str(tenant.pk), "state": "queued", "page": "2"})
    assert second.content.decode().count('name="stream"') == 10
    assert "No stream is alive that fits" in text_of(admin_client.get(PAGE, {"state": "held"}))


@pytest.mark.parametrize(
    "query", [{"page": "x"}, {"page": "-1"}, {"state": "nonsense"}, {"tenant": "no id"}, {"worker": "\x00'"}]
)
def test_a_forged_address_is_no_error(admin_client: Client, paper: PaperFleet, query: dict[str, str]) -> None:
    paper.worker("worker-1")
    assert admin_client.get(LIVE, query).status_code == 200


def test_who_may_look_may_not_act(staff: Client, paper: PaperFleet) -> None:
    paper.worker("worker-1")
    (stream_id,) = paper.admit()
    page = staff.get(PAGE).content.decode()
    assert stream_id in page
    assert 'name="verb"' not in page
    for verb in ("kill", "migrate"):
        assert staff.post(ACT, {"verb": verb, "stream": stream_id, "confirmed": "yes"}).status_code == 403
    assert staff.post(process_page("worker-1"), {"deadline_seconds": "1"}).status_code == 403
    assert "Drain it" not in staff.get(process_page("worker-1")).content.decode()
    assert not AuditEvent.all_tenants.filter(action=AuditAction.STREAM_KILLED).exists()
    assert paper.orders("worker-1") == []


def test_others_see_nothing(client: Client, user: User, paper: PaperFleet) -> None:
    user.is_staff = True
    user.save()
    client.force_login(user)
    for address in (PAGE, LIVE, process_page("worker-1")):
        assert client.get(address).status_code == 403


def test_without_redis_it_says_so(admin_client: Client, settings: Settings) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    for address in (PAGE, LIVE, process_page("worker-1")):
        assert "stream store does not answer" in text_of(admin_client.get(address))
    answer = admin_client.post(ACT, {"verb": "kill", "stream": "strm-" + "0" * 24, "confirmed": "yes"})
    assert "stream store does not answer" in text_of(answer)


# ---- ending


def test_a_waiting_stream_is_ended_at_once(admin_client: Client, paper: PaperFleet, tenant: Tenant) -> None:
    (stream_id,) = paper.admit(tenant_id=tenant.pk.hex)
    asked = admin_client.post(ACT, {"verb": "kill", "stream": stream_id})
    assert "1 stream is chosen" in text_of(asked)
    assert paper.ended(stream_id) is None, "only asked"
    done = admin_client.post(
        ACT, {"verb": "kill", "stream": stream_id, "confirmed": "yes", "note": "runs wild"}, follow=True
    )
    assert "Done with 1 stream. Ended" in text_of(done)
    ended = paper.ended(stream_id)
    assert ended is not None
    assert ended.error is not None
    assert (ended.state, ended.error.code) == (StreamState.CANCELLED, "stream_cancelled")
    row = AuditEvent.objects.for_tenant(tenant).get(action=AuditAction.STREAM_KILLED)
    assert (row.object_id, row.details["note"], row.details["state"]) == (stream_id, "runs wild", "queued")


def test_what_no_engine_has_acknowledged_is_told(admin_client: Client, paper: PaperFleet) -> None:
    paper.worker("worker-1")
    paper.admit()
    (stream_id,) = paper.claim("worker-1", 1, tokens=1)
    answer = admin_client.post(ACT, {"verb": "kill", "stream": stream_id, "confirmed": "yes"})
    assert "has not answered yet" in text_of(answer)
    assert [type(order) for order in paper.orders("worker-1")] == [Cancel]


@pytest.mark.parametrize(
    ("streams", "said"),
    [
        ([], "No stream was chosen"),
        (["strm-" + "0" * 24], "have ended meanwhile"),
        (["strm-" + "0" * 24] * 501, "At most 500 streams at once"),
    ],
)
def test_wrong_choices_are_explained(admin_client: Client, paper: PaperFleet, streams: list[str], said: str) -> None:
    answer = admin_client.post(ACT, {"verb": "kill", "stream": streams, "confirmed": "yes"})
    assert answer.status_code == 200
    assert said in text_of(answer)
    assert not AuditEvent.all_tenants.filter(action=AuditAction.STREAM_KILLED).exists()


def test_there_are_no_other_acts(admin_client: Client, paper: PaperFleet) -> None:
    assert admin_client.get(ACT).status_code == 405
    assert admin_client.post(ACT, {"verb": "pause"}).status_code == 404


# ---- moving


def test_a_stream_is_moved_by_its_worker(admin_client: Client, paper: PaperFleet) -> None:
    paper.worker("worker-1")
    paper.admit()
    (stream_id,) = paper.claim("worker-1", 1, tokens=1)
    form = {"verb": "migrate", "stream": stream_id, "confirmed": "yes"}
    assert "No other worker of tiny is ready" in text_of(admin_client.post(ACT, form))
    assert paper.orders("worker-1") == []
    paper.worker("worker-2")
    assert "stays: its worker keeps" in text_of(admin_client.post(ACT, form)), "this one does nothing"
    assert paper.orders("worker-1") == [Migrate(stream_id, "")]
    assert AuditEvent.all_tenants.filter(action=AuditAction.STREAM_MIGRATED, object_id=stream_id).count() == 1


def test_what_waits_is_not_moved(admin_client: Client, paper: PaperFleet) -> None:
    (stream_id,) = paper.admit()
    answer = admin_client.post(ACT, {"verb": "migrate", "stream": stream_id, "confirmed": "yes"})
    assert "is at no worker (queued)" in text_of(answer)


# ---- draining


def test_a_worker_is_drained_and_resumed(admin_client: Client, paper: PaperFleet) -> None:
    paper.worker("worker-1", num_streams=12)
    page = text_of(admin_client.get(process_page("worker-1")))
    assert "nothing is answered" in page, "there is no other one"
    form = {"deadline_seconds": "90", "note": "new kernel"}
    assert "takes nothing more" in text_of(admin_client.post(process_page("worker-1"), form, follow=True))
    assert paper.orders("worker-1") == [Drain("new kernel", 90.0, leave=False)]
    paper.worker("worker-1", state=WorkerState.DRAINING, num_streams=12, drain_until=4e9, drain_reason="new kernel")
    page = text_of(admin_client.get(process_page("worker-1")))
    assert "12 streams left" in page
    assert "(new kernel)" in page
    admin_client.post(process_page("worker-1"), {"resume": "yes"})
    assert paper.orders("worker-1")[1:] == [Resume()]
    assert [event.action for event in AuditEvent.all_tenants.filter(object_id="worker-1").order_by("pk")] == [
        AuditAction.WORKER_DRAINED,
        AuditAction.WORKER_RESUMED,
    ]


def test_a_quarantined_worker_is_told_to_try_again(admin_client: Client, paper: PaperFleet) -> None:
    paper.worker("worker-1", state=WorkerState.BROKEN, quarantined_at=1.0, last_error="Quarantined: there is no GPU.")
    page = text_of(admin_client.get(process_page("worker-1")))
    assert "quarantined" in page
    assert "there is no GPU" in page
    assert "Start its engine again" in page
    answer = text_of(admin_client.post(process_page("worker-1"), {"resume": "yes"}, follow=True))
    assert "It starts its engine again" in answer
    assert paper.orders("worker-1") == [Resume()]
    event = AuditEvent.all_tenants.get(object_id="worker-1")
    assert (event.action, event.details["quarantined"]) == (AuditAction.WORKER_RESUMED, True)


@pytest.mark.parametrize(
    ("fields", "form", "said"),
    [
        ({"state": WorkerState.BROKEN}, {"resume": "yes"}, "is not drained"),
        ({}, {"resume": "yes"}, "is not drained"),
        ({}, {"deadline_seconds": "-1"}, "greater than or equal to 0"),
        ({}, {"deadline_seconds": "soon"}, "Enter a number"),
        ({"state": WorkerState.DRAINING, "is_leaving": True}, {"resume": "yes"}, "start another one"),
        ({"state": WorkerState.DRAINING, "is_leaving": True}, {"deadline_seconds": "1"}, "ending already"),
    ],
)
def test_wrong_orders_to_workers_are_explained(
    admin_client: Client, paper: PaperFleet, fields: dict[str, Any], form: dict[str, str], said: str
) -> None:
    paper.worker("worker-1", **fields)
    assert said in text_of(admin_client.post(process_page("worker-1"), form, follow=True))
    assert paper.orders("worker-1") == []
    assert not AuditEvent.all_tenants.filter(object_id="worker-1").exists()


def test_the_last_gateway_is_not_drained(admin_client: Client, paper: PaperFleet) -> None:
    paper.gateway()
    address = process_page(GATEWAY)
    assert "Start another one first" in text_of(admin_client.post(address, {"note": ""}, follow=True))
    assert paper.orders(GATEWAY) == []
    paper.gateway(OTHER_GATEWAY)
    admin_client.post(address, {"note": "move house"})
    assert paper.orders(GATEWAY) == [Drain("move house", 0.0, leave=True)]
    assert AuditEvent.all_tenants.get(object_id=GATEWAY).action == AuditAction.GATEWAY_DRAINED
    paper.gateway(state=WorkerState.DRAINING, streams=4)
    assert "4 streams, 5 connections left" in text_of(admin_client.get(address))
    assert "draining already" in text_of(admin_client.post(address, {"note": ""}, follow=True))


@pytest.mark.parametrize("name", ["nope", "worker-", "worker-nope", "operator-0123456789ab", "worker-1 "])
def test_what_no_process_is_called_is_not_found(admin_client: Client, paper: PaperFleet, name: str) -> None:
    assert admin_client.get(process_page(name)).status_code == 404
    assert admin_client.post(process_page(name), {"deadline_seconds": "1"}).status_code == 404


def test_a_process_that_has_ended(admin_client: Client, paper: PaperFleet, live_redis: Redis) -> None:
    assert "It has ended, or there never was" in text_of(admin_client.get(process_page("worker-9")))
    answer = admin_client.post(process_page("worker-9"), {"deadline_seconds": "1"}, follow=True)
    assert "has ended, or lost its lease" in text_of(answer)
    paper.worker("worker-1")
    live_redis.delete(redis_keys.control_key("worker-1"))  # it goes between the look and the order
    answer = admin_client.post(process_page("worker-1"), {"deadline_seconds": "1"}, follow=True)
    assert "has ended, or lost its lease" in text_of(answer)
    assert not AuditEvent.all_tenants.filter(object_id="worker-1").exists()
