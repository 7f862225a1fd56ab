"""The chat page and the JSON it lives on. Streams themselves go over `/v1/ws`."""

from uuid import UUID

import structlog
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_safe
from msgspec import Struct

from apps.accounts.tickets import TICKET_SECONDS, chat_ticket_create
from apps.api.error_rendering import error_object
from apps.chat.errors import ConversationNotFoundError
from apps.chat.models import Conversation, Message
from apps.chat.presentation import (
    Json,
    conversation_json,
    conversation_page_json,
    message_json,
    messages_json,
    models_json,
)
from apps.chat.requests import body_of, carry_out, error_response, member_view, membership_of, signed_in_user
from apps.chat.selectors import Cursor, conversation_get, conversation_list, message_get, message_list
from apps.chat.services import answers
from apps.chat.services import conversations as conversation_services
from apps.chat.services import turns as turn_services
from apps.streams.runtime import current_gateway
from apps.streams.services import stream_cancel
from apps.tenants.models import Membership
from headrace_wire.errors import HeadraceError, InvalidRequestError, StreamNotFoundError

logger = structlog.get_logger(__name__)

# A model's text ends on this page: nothing may run or load that is not ours.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class TurnBody(Struct):
    """What the user sends. `turn_id` is drawn by the browser, once per message."""

    turn_id: UUID
    text: str
    model: str


class RetryBody(Struct):
    """Who is to answer this time."""

    model: str


class TitleBody(Struct):
    """A new title."""

    title: str


# ---- the page


@require_safe
@ensure_csrf_cookie
async def page(request: HttpRequest, conversation_id: UUID | None = None) -> HttpResponse:
    """The chat, empty or with a conversation open."""
    user = await signed_in_user(request)
    if user is None:
        return redirect_to_login(request.get_full_path(), settings.LOGIN_URL)
    membership = await membership_of(request, user)
    if membership is None:
        return await sync_to_async(render)(request, "chat/no_tenant.html", {"person": user}, status=403)
    data = await _page_data(membership, conversation_id)
    context = {
        "person": user,
        "tenant": membership.tenant,
        "data": data,
        "csrf_cookie_name": settings.CSRF_COOKIE_NAME,
        "text_length": turn_services.TEXT_LENGTH,
    }
    response = await sync_to_async(render)(request, "chat/page.html", context, status=404 if data["error"] else 200)
    response["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    response["Cache-Control"] = "no-store"
    return response


async def _page_data(membership: Membership, conversation_id: UUID | None) -> Json:
    opened, error = None, None
    if conversation_id is not None:
        try:
            opened = await sync_to_async(_opened)(membership, conversation_id)
        except ConversationNotFoundError as not_found:
            error = error_object(not_found)
    rows = await sync_to_async(conversation_list)(membership=membership)
    return {"list": conversation_page_json(rows), "opened": opened, "models": await _models(membership), "error": error}


def _opened(membership: Membership, conversation_id: UUID, before: int | None = None) -> Json:
    conversation = conversation_get(membership=membership, conversation_id=conversation_id)
    return messages_json(conversation, message_list(conversation=conversation, before=before))


async def _models(membership: Membership) -> list[Json]:
    """Returns the models, or none while this gateway cannot tell: the page asks again."""
    try:
        gateway = await current_gateway()
        return models_json(gateway, turn_services.chat_caller(gateway=gateway, membership=membership))
    except HeadraceError as error:
        logger.info("chat_without_models", code=error.code)
        return []


# ---- JSON


@member_view("GET")
async def ticket(request: HttpRequest, membership: Membership) -> HttpResponse:
    """A ticket for the socket."""
    made = chat_ticket_create(membership=membership, session_key=request.session.session_key)
    return JsonResponse({"ticket": made, "expires_in_seconds": TICKET_SECONDS})


@member_view("GET")
async def models(request: HttpRequest, membership: Membership) -> HttpResponse:  # noqa: ARG001
    """The models that the member may choose, and whether they are up."""
    gateway = await current_gateway()
    caller = turn_services.chat_caller(gateway=gateway, membership=membership)
    return JsonResponse({"models": models_json(gateway, caller)})


@member_view("GET")
async def conversations(request: HttpRequest, membership: Membership) -> HttpResponse:
    """A page of the list; `before` is the `next` of the page above."""
    before = request.GET.get("before")
    cursor = Cursor.parse(before) if before else None
    rows = await sync_to_async(conversation_list)(membership=membership, before=cursor)
    return JsonResponse(conversation_page_json(rows))


@member_view("GET", "PATCH", "DELETE")
async def conversation(request: HttpRequest, membership: Membership, conversation_id: UUID) -> HttpResponse:
    """One conversation: read a page of its messages, give it a title, delete it."""
    if request.method == "DELETE":
        return await _delete(membership, conversation_id)
    if request.method == "PATCH":
        renamed = await sync_to_async(conversation_services.conversation_rename)(
            membership=membership, conversation_id=conversation_id, title=body_of(request, TitleBody).title
        )
        return JsonResponse({"conversation": conversation_json(renamed)})
    before = request.GET.get("before")
    if before is not None and not (before.isascii() and before.isdigit() and len(before) < 10):
        raise InvalidRequestError("`before` is a message's position.", param="before")
    found = await sync_to_async(_opened)(membership, conversation_id, int(before) if before else None)
    return JsonResponse(found)


async def _delete(membership: Membership, conversation_id: UUID) -> HttpResponse:
    streams = await sync_to_async(conversation_services.conversation_delete)(
        membership=membership, conversation_id=conversation_id
    )
    for stream_id in streams:
        try:
            await _cancel(membership, stream_id)
        except HeadraceError as error:
            # The conversation is gone all the same; the answer ends by itself and is dropped.
            logger.warning("chat_stream_not_cancelled", stream_id=stream_id, code=error.code)
    return HttpResponse(status=204)


@member_view("POST")
async def turns(request: HttpRequest, membership: Membership, conversation_id: UUID) -> HttpResponse:
    """Send a message; the response names the stream of its answer."""
    body = body_of(request, TurnBody)
    gateway = await current_gateway()
    wanted = turn_services.answer_request(gateway=gateway, membership=membership, model=body.model)
    sending = turn_services.turn_send(
        request=wanted,
        membership=membership,
        conversation_id=conversation_id,
        turn_id=body.turn_id,
        text=body.text,
    )
    return await _begun_response(await carry_out(sending))


@member_view("POST")
async def retry(request: HttpRequest, membership: Membership, conversation_id: UUID, message_id: UUID) -> HttpResponse:
    """Have the last answer written anew."""
    body = body_of(request, RetryBody)
    gateway = await current_gateway()
    wanted = turn_services.answer_request(gateway=gateway, membership=membership, model=body.model)
    trying = turn_services.answer_retry(
        request=wanted, membership=membership, conversation_id=conversation_id, message_id=message_id
    )
    return await _begun_response(await carry_out(trying))


@member_view("POST")
async def collect(
    request: HttpRequest,  # noqa: ARG001
    membership: Membership,
    conversation_id: UUID,
    message_id: UUID,
) -> HttpResponse:
    """Store an answer that has ended; returns it as it is now."""
    answer = await sync_to_async(_message)(membership, conversation_id, message_id)
    if answer.is_streaming:
        gateway = await current_gateway()
        answer = await answers.answer_collect(token_log=gateway.token_log, message=answer)
    return JsonResponse({"answer": await sync_to_async(message_json)(answer)})


@member_view("POST")
async def stop(
    request: HttpRequest,  # noqa: ARG001
    membership: Membership,
    conversation_id: UUID,
    message_id: UUID,
) -> HttpResponse:
    """Stop an answer: the way where the page's socket is down. Its end shows in the log, as ever."""
    answer = await sync_to_async(_message)(membership, conversation_id, message_id)
    if answer.is_streaming and answer.stream_id:
        await _cancel(membership, answer.stream_id)
    return JsonResponse({"answer": await sync_to_async(message_json)(answer)}, status=202)


def _message(membership: Membership, conversation_id: UUID, message_id: UUID) -> Message:
    found: Conversation = conversation_get(membership=membership, conversation_id=conversation_id)
    return message_get(conversation=found, message_id=message_id)


async def _cancel(membership: Membership, stream_id: str) -> None:
    gateway = await current_gateway()
    try:
        await stream_cancel(gateway=gateway, tenant_id=membership.tenant_id.hex, stream_id=stream_id, reason="client")
    except StreamNotFoundError:
        logger.info("chat_nothing_to_cancel", stream_id=stream_id)


async def _begun_response(begun: turn_services.BegunAnswer) -> HttpResponse:
    shown = {
        "conversation": conversation_json(begun.answer.conversation),
        "question": message_json(begun.question) if begun.question else None,
        "answer": await sync_to_async(message_json)(begun.answer),
    }
    return error_response(begun.refusal, **shown) if begun.refusal is not None else JsonResponse(shown)
