"""The page and its JSON, from sending to the stored answer, on a real Redis with the test as the worker."""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID, uuid4

import pytest
from asgiref.sync import sync_to_async
from django.test import AsyncClient, Client
from django.utils import timezone

from apps.accounts.models import User
from apps.accounts.tickets import chat_ticket_read
from apps.chat.enums import MessageState
from apps.chat.models import Conversation, Message
from apps.chat.requests import BODY_LIMIT
from apps.chat.services.answers import ADMISSION_GRACE
from apps.chat.services.turns import turn_create
from apps.chat.tasks import answers_collect
from apps.deployments.models import ModelDeployment
from apps.deployments.services import deployment_create, deployment_update
from apps.streams.gateway import Gateway
from apps.streams.services import stream_cancel
from apps.tenants.models import Membership, Tenant
from apps.tenants.snapshots import snapshot_publish
from headrace_wire import redis_keys
from headrace_wire.messages import FinishReason, StreamError, StreamState
from tests.chat.conftest import HandWorker, wait_for_end

AssertQueries = Callable[[int], AbstractContextManager[Any]]


async def post(client: AsyncClient, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    data = json.dumps(body) if body is not None else ""
    response = await client.post(path, data=data, content_type="application/json")
    return response.status_code, json.loads(response.content)


async def get(client: AsyncClient, path: str) -> tuple[int, dict[str, Any]]:
    response = await client.get(path)
    return response.status_code, json.loads(response.content)


async def send(
    client: AsyncClient, text: str = "Hello", *, conversation_id: UUID | None = None, model: str = "tiny"
) -> tuple[int, dict[str, Any]]:
    path = f"/chat/conversations/{conversation_id or uuid4()}/turns"
    return await post(client, path, {"turn_id": str(uuid4()), "text": text, "model": model})


def path_of(sent: dict[str, Any], what: str) -> str:
    return f"/chat/conversations/{sent['conversation']['id']}/messages/{sent['answer']['id']}/{what}"


# ---- a turn and its answer


async def test_turn_becomes_a_stream_and_its_end_is_stored(member_client: AsyncClient, worker: HandWorker) -> None:
    status, sent = await send(member_client, "What is it?")
    assert status == 200
    claimed = await worker.claim()
    assert claimed.stream_id == sent["answer"]["stream_id"]
    assert [(turn.role, turn.content) for turn in claimed.request.conversation] == [("user", "What is it?")]
    seq = await worker.write(claimed, ["It is **", "water", "** 🌊."])
    _, early = await post(member_client, path_of(sent, "collect"))
    assert early["answer"]["state"] == "streaming"
    await worker.end(claimed, seq)
    status, collected = await post(member_client, path_of(sent, "collect"))
    answer = collected["answer"]
    assert (status, answer["state"], answer["text"]) == (200, "complete", "It is **water** 🌊.")
    assert answer["html"] == "<p>It is <strong>water</strong> 🌊.</p>\n"
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["stream_id"] is None


async def test_next_turn_carries_the_stored_history(member_client: AsyncClient, worker: HandWorker) -> None:
    _, sent = await send(member_client, "one")
    claimed = await worker.claim()
    await worker.end(claimed, await worker.write(claimed, ["1"]))
    await post(member_client, path_of(sent, "collect"))
    await send(member_client, "two", conversation_id=UUID(sent["conversation"]["id"]))
    claimed = await worker.claim()
    assert [(turn.role, turn.content) for turn in claimed.request.conversation] == [
        ("user", "one"),
        ("assistant", "1"),
        ("user", "two"),
    ]


async def test_a_fallback_answers_and_the_conversation_keeps_its_model(
    member_client: AsyncClient, gateway: Gateway, deployment: ModelDeployment
) -> None:
    spare = await sync_to_async(deployment_create)(deployment=ModelDeployment(name="spare", model="models/spare"))
    deployment.is_breaker_on, deployment.fallback = True, spare
    await sync_to_async(deployment_update)(deployment=deployment)
    await sync_to_async(snapshot_publish)()
    await gateway.config_reader.refresh()
    opened: dict[Any, Any] = {"state": "open", "reason": "errors", "since": str(int(time.time() * 1000))}
    await gateway.redis.hset(redis_keys.breaker_key(deployment.pk.hex), mapping=opened)
    await gateway.breakers.look(gateway.config.with_breaker)
    status, sent = await send(member_client)
    assert (status, sent["answer"]["model"], sent["conversation"]["model"]) == (200, "spare", "tiny")
    claimed = await HandWorker(gateway, "spare").claim()
    assert claimed.stream_id == sent["answer"]["stream_id"]
    stored = await Message.all_tenants.aget(stream_id=claimed.stream_id)
    assert stored.model == "spare"


async def test_turn_sent_again_starts_no_second_stream(member_client: AsyncClient, worker: HandWorker) -> None:
    path, body = f"/chat/conversations/{uuid4()}/turns", {"turn_id": str(uuid4()), "text": "x", "model": "tiny"}
    first = await post(member_client, path, body)
    assert await post(member_client, path, body) == first
    await worker.claim()  # exactly one


@pytest.mark.parametrize(
    ("state", "reason", "error", "shown"),
    [
        (StreamState.CANCELLED, FinishReason.ABORT, None, "stopped"),
        (StreamState.FAILED, FinishReason.ERROR, StreamError("engine_error", "The engine broke."), "failed"),
        (StreamState.FINISHED, FinishReason.LENGTH, None, "complete"),
    ],
)
async def test_every_end_is_told_apart(
    member_client: AsyncClient,
    worker: HandWorker,
    state: StreamState,
    reason: FinishReason,
    error: StreamError | None,
    shown: str,
) -> None:
    _, sent = await send(member_client)
    claimed = await worker.claim()
    seq = await worker.write(claimed, ["par", "tial"])
    await worker.end(claimed, seq, state=state, reason=reason, error=error)
    _, collected = await post(member_client, path_of(sent, "collect"))
    answer = collected["answer"]
    assert (answer["state"], answer["text"], answer["finish_reason"]) == (shown, "partial", reason.value)
    assert answer["error"] == ({"code": error.code, "message": error.message} if error else None)


async def test_stop_without_a_socket_reaches_the_stream(
    member_client: AsyncClient, worker: HandWorker, gateway: Gateway
) -> None:
    _, sent = await send(member_client)
    status, _ = await post(member_client, path_of(sent, "stop"))
    assert status == 202
    # It waited in the queue, so that the gateway itself has ended it.
    _, collected = await post(member_client, path_of(sent, "collect"))
    assert collected["answer"]["state"] == "stopped"


async def test_stream_that_nobody_takes_fails_at_the_queues_deadline(
    member_client: AsyncClient, gateway: Gateway, deployment: ModelDeployment
) -> None:
    deployment.queue_timeout_seconds = 0.05
    await sync_to_async(_save_and_publish)(deployment)
    await gateway.config_reader.refresh()
    _, sent = await send(member_client)
    await wait_for_end(gateway, sent["answer"]["stream_id"])
    _, collected = await post(member_client, path_of(sent, "collect"))
    assert collected["answer"]["state"] == "failed"
    assert collected["answer"]["error"]["code"] == "server_overloaded"


def _save_and_publish(deployment: ModelDeployment) -> None:
    deployment.save()
    snapshot_publish()


# ---- refusals: the text is never lost


async def test_refused_stream_keeps_the_text_and_can_be_tried_again(
    member_client: AsyncClient, gateway: Gateway, worker: HandWorker
) -> None:
    gateway.draining = True
    status, sent = await send(member_client, "keep me")
    assert (status, sent["error"]["code"]) == (503, "draining")
    assert sent["answer"]["state"] == "failed"
    assert sent["question"]["text"] == "keep me"
    gateway.draining = False
    status, again = await post(member_client, path_of(sent, "retry"), {"model": "tiny"})
    assert (status, again["answer"]["state"]) == (200, "streaming")
    claimed = await worker.claim()
    assert [turn.content for turn in claimed.request.conversation] == ["keep me"]


async def test_unknown_model_stores_nothing(member_client: AsyncClient) -> None:
    status, body = await send(member_client, model="none")
    assert (status, body["error"]["code"]) == (404, "model_not_found")
    assert not await Conversation.all_tenants.aexists()


async def test_second_turn_while_an_answer_is_written_is_refused(member_client: AsyncClient) -> None:
    _, sent = await send(member_client)
    status, body = await send(member_client, conversation_id=UUID(sent["conversation"]["id"]))
    assert (status, body["error"]["code"]) == (400, "answer_in_progress")


@pytest.mark.parametrize(
    "body", ["", "{", "[]", '{"text": "x"}', '{"turn_id": "x", "text": "x", "model": "tiny"}', '{"text": 1}', "\xff"]
)
async def test_malformed_bodies_are_refused(member_client: AsyncClient, body: str) -> None:
    response = await member_client.post(
        f"/chat/conversations/{uuid4()}/turns", data=body.encode("latin-1"), content_type="application/json"
    )
    assert response.status_code == 400
    assert json.loads(response.content)["error"]["code"] == "invalid_request_error"


async def test_body_over_the_limit_is_refused(member_client: AsyncClient) -> None:
    status, body = await send(member_client, "x" * BODY_LIMIT)
    assert (status, body["error"]["code"]) == (413, "payload_too_large")


# ---- answers stored without a browser


async def test_task_stores_what_ended_and_leaves_the_rest(member_client: AsyncClient, worker: HandWorker) -> None:
    _, running = await send(member_client)
    await worker.write(await worker.claim(), ["still "])
    _, done = await send(member_client)
    claimed = await worker.claim()
    await worker.end(claimed, await worker.write(claimed, ["done"]))
    assert await sync_to_async(answers_collect)() == 1
    assert await sync_to_async(answers_collect)() == 0
    stored = await Message.all_tenants.aget(pk=done["answer"]["id"])
    assert (stored.state, stored.content) == (MessageState.COMPLETE, "done")
    assert (await Message.all_tenants.aget(pk=running["answer"]["id"])).is_streaming


async def test_browser_and_task_may_come_together(member_client: AsyncClient, worker: HandWorker) -> None:
    _, sent = await send(member_client)
    claimed = await worker.claim()
    await worker.end(claimed, await worker.write(claimed, ["once"]))
    await sync_to_async(answers_collect)()
    first = await Message.all_tenants.aget(pk=sent["answer"]["id"])
    _, collected = await post(member_client, path_of(sent, "collect"))
    assert collected["answer"]["text"] == "once"
    assert (await Message.all_tenants.aget(pk=first.pk)).ended_at == first.ended_at


async def test_expired_log_is_a_failure_with_a_reason(member_client: AsyncClient, gateway: Gateway) -> None:
    _, sent = await send(member_client)
    await gateway.redis.delete(redis_keys.log_key(sent["answer"]["stream_id"]))
    await sync_to_async(answers_collect)()
    message = await Message.all_tenants.aget(pk=sent["answer"]["id"])
    assert message.is_streaming  # it may be on its way into the queue
    await Message.all_tenants.aupdate(started_at=timezone.now() - 2 * ADMISSION_GRACE)
    await sync_to_async(answers_collect)()
    await message.arefresh_from_db()
    assert (message.state, message.error_code) == (MessageState.FAILED, "stream_expired")


# ---- isolation


async def test_strangers_are_told_that_there_is_nothing(
    member_client: AsyncClient,
    published: Membership,
    other_membership: Membership,
    foreign_membership: Membership,
    gateway: Gateway,
) -> None:
    await sync_to_async(snapshot_publish)()
    await gateway.config_reader.refresh()
    _, sent = await send(member_client, "secret")
    conversation = f"/chat/conversations/{sent['conversation']['id']}"
    for stranger in (other_membership, foreign_membership):
        client = AsyncClient()
        await client.aforce_login(stranger.user)
        answers = [
            await get(client, conversation),
            await post(client, path_of(sent, "collect")),
            await post(client, path_of(sent, "stop")),
            await post(client, path_of(sent, "retry"), {"model": "tiny"}),
            await send(client, conversation_id=UUID(sent["conversation"]["id"])),
        ]
        assert {(status, body["error"]["code"]) for status, body in answers} == {(404, "conversation_not_found")}
        assert (await client.delete(conversation)).status_code == 404
        page = await client.get(f"/c/{sent['conversation']['id']}")
        assert page.status_code == 404
        assert b"secret" not in page.content
        assert (await get(client, "/chat/conversations"))[1]["conversations"] == []
    assert await Message.all_tenants.filter(state=MessageState.STREAMING).acount() == 1


async def test_signed_out_is_told_so() -> None:
    status, body = await get(AsyncClient(), "/chat/conversations")
    assert (status, body["error"]["code"]) == (401, "signed_out")


@pytest.mark.django_db
def test_page_asks_to_sign_in(client: Client) -> None:
    response = client.get("/c/7a0f6f2e-5f8e-4d3a-9a51-0d8b0a3f9a10")
    assert response.status_code == 302
    assert response.headers["Location"].startswith("/accounts/login/?next=/c/")


@pytest.mark.django_db
def test_user_without_a_workspace_is_told_what_to_do(client: Client, user: User) -> None:
    client.force_login(user)
    response = client.get("/")
    assert response.status_code == 403
    assert "Ask an administrator" in response.content.decode()
    assert client.get("/chat/conversations").json()["error"]["code"] == "no_tenant"


async def test_writes_need_the_csrf_token(published: Membership, gateway: Gateway) -> None:
    client = AsyncClient(enforce_csrf_checks=True)
    await client.aforce_login(published.user)
    response = await client.post(f"/chat/conversations/{uuid4()}/turns", data="{}", content_type="application/json")
    assert response.status_code == 403


# ---- page, list, ticket


async def test_page_carries_list_history_and_the_stream_to_resume(
    member_client: AsyncClient, worker: HandWorker
) -> None:
    _, sent = await send(member_client, "</script><script>alert(1)</script>")
    page = await member_client.get(f"/c/{sent['conversation']['id']}")
    text = page.content.decode()
    assert page.status_code == 200
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    assert "<script>alert(1)" not in text
    data = json.loads(text.split('<script id="page-data" type="application/json">')[1].split("</script>")[0])
    assert [row["id"] for row in data["list"]["conversations"]] == [sent["conversation"]["id"]]
    assert [m["stream_id"] for m in data["opened"]["messages"]] == [None, sent["answer"]["stream_id"]]
    assert data["models"] == [{"name": "tiny", "is_ready": False, "is_simulated": False}]


async def test_page_opens_while_streams_cannot_be_served(
    member_client: AsyncClient, published: Membership, gateway: Gateway
) -> None:
    await Tenant.objects.filter(pk=published.tenant_id).aupdate(is_active=True)
    gateway.config.tenants.clear()
    page = await member_client.get("/")
    assert page.status_code == 200
    assert '"models": []' in page.content.decode()


def test_list_page_has_a_fixed_number_of_queries(
    client: Client, membership: Membership, django_assert_num_queries: AssertQueries
) -> None:
    client.force_login(membership.user)
    counts = []
    for _ in range(2):
        for _ in range(7):
            turn_create(membership=membership, conversation_id=uuid4(), turn_id=uuid4(), text="x", model="tiny")
        with django_assert_num_queries(4):  # session, user, membership, conversations
            response = client.get("/chat/conversations")
        counts.append(len(json.loads(response.content)["conversations"]))
    assert counts == [7, 14]


def test_conversation_has_a_fixed_number_of_queries(
    client: Client, membership: Membership, django_assert_num_queries: AssertQueries
) -> None:
    client.force_login(membership.user)
    turn = turn_create(membership=membership, conversation_id=uuid4(), turn_id=uuid4(), text="x", model="tiny")
    conversation = turn.answer.conversation
    for position in (2, 10):
        for i in range(position, position * 2):
            conversation.messages.create(position=i, role="user", content="x")
        with django_assert_num_queries(5):  # session, user, membership, conversation, messages
            client.get(f"/chat/conversations/{conversation.pk}")


@pytest.mark.parametrize("query", ["before=x", "before=2026-01-01_1"])
def test_list_refuses_a_cursor_that_is_none(client: Client, membership: Membership, query: str) -> None:
    client.force_login(membership.user)
    assert client.get(f"/chat/conversations?{query}").status_code == 400


def test_ticket_names_the_member(client: Client, membership: Membership) -> None:
    client.force_login(membership.user)
    response = client.get("/chat/ticket")
    ticket = chat_ticket_read(response.json()["ticket"])
    assert (ticket.user_id, ticket.tenant_id) == (membership.user_id.hex, membership.tenant_id.hex)
    assert response.headers["Cache-Control"] == "no-store"


async def test_rename_and_delete(member_client: AsyncClient, gateway: Gateway, worker: HandWorker) -> None:
    _, sent = await send(member_client)
    path = f"/chat/conversations/{sent['conversation']['id']}"
    response = await member_client.patch(path, data='{"title": " New  name "}', content_type="application/json")
    assert json.loads(response.content)["conversation"]["title"] == "New name"
    claimed = await worker.claim()
    assert (await member_client.delete(path)).status_code == 204
    assert not await Message.all_tenants.aexists()
    # Nobody wants the answer any more: its worker has been told.
    told = str(await gateway.redis.xrange(redis_keys.control_key("worker-test")))
    assert claimed.stream_id in told
    outcome = await stream_cancel(
        gateway=gateway, tenant_id=claimed.request.tenant_id, stream_id=claimed.stream_id, reason="again"
    )
    assert outcome.value == "running"
