"""What the user sends: stored first, with the place where the answer will stand, and only then given to the queue."""

import time
from typing import NamedTuple
from uuid import UUID

import structlog
from asgiref.sync import sync_to_async
from django.db import transaction
from django.utils import timezone

from apps.chat.enums import MessageRole, MessageState
from apps.chat.errors import AnswerInProgressError, ConversationFullError, ConversationNotFoundError
from apps.chat.events import ConversationChange, conversation_changed
from apps.chat.models import Conversation, Message
from apps.chat.queue_deadline import queue_deadline_watch
from apps.chat.selectors import conversation_get, message_get, prompt_build
from apps.chat.services.answers import answer_fail
from apps.chat.services.conversations import title_from
from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from apps.streams.latency_book import Began
from apps.streams.latency_reading import Part, part_of, refusals_counted, series_of
from apps.streams.services import CacheControls, StartedStream, StreamOptions, stream_start
from apps.streams.services.routing import Route, stream_route, try_kept, try_noted
from apps.streams.traces import Trace, trace_begun
from apps.tenants.models import Membership
from headrace_wire.errors import ContextLengthError, DependencyUnavailableError, HeadraceError, InvalidRequestError
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import ChatTurn, SamplingParams
from headrace_wire.snapshot import DeploymentConfig

logger = structlog.get_logger(__name__)

TEXT_LENGTH = 32_000
"""Characters of one message."""

MESSAGE_LIMIT = 2_000
"""Messages of one conversation."""

TEMPERATURE = 0.7
TOP_P = 0.95


class Turn(NamedTuple):
    """What one sending made: or had made already, when it is sent again."""

    question: Message
    answer: Message
    is_new: bool


class AnswerRequest(NamedTuple):
    """Who is to answer, and for whom."""

    gateway: Gateway
    caller: Caller
    deployment: DeploymentConfig


class BegunAnswer(NamedTuple):
    """An answer whose stream waits or runs; or, with a refusal, one that has failed already."""

    answer: Message
    refusal: HeadraceError | None
    question: Message | None = None


def answer_request(*, gateway: Gateway, membership: Membership, model: str) -> AnswerRequest:
    """Returns what it takes to have `model` answer the member.

    Raises:
        DependencyUnavailableError: This gateway has not seen the tenant's configuration yet.
        ModelNotFoundError: The tenant has no such model.
    """
    caller = chat_caller(gateway=gateway, membership=membership)
    return AnswerRequest(gateway, caller, gateway.config.deployment(caller, model))


def chat_caller(*, gateway: Gateway, membership: Membership) -> Caller:
    """Returns who streams for the member run as.

    Raises:
        DependencyUnavailableError: This gateway has not seen the tenant's configuration yet.
    """
    tenant = gateway.config.tenants.get(membership.tenant_id.hex)
    if tenant is None or not tenant.active:
        raise DependencyUnavailableError(
            "Your workspace's configuration has not reached this server yet; try again in a moment.",
            retry_after_seconds=1.0,
        )
    return Caller(tenant, user_id=membership.user_id.hex)


@transaction.atomic
def turn_create(*, membership: Membership, conversation_id: UUID, turn_id: UUID, text: str, model: str) -> Turn:
    """Stores a message and the place for its answer, in a new conversation where there is none of this id.

    Idempotent by `turn_id`, which becomes the message's id: a browser that got no response sends the same again.

    Raises:
        InvalidRequestError: The text is empty or too long.
        AnswerInProgressError: The answer before is still being written.
        ConversationFullError: There is no room for another turn.
        ConversationNotFoundError: The conversation or the turn is somebody else's.
    """
    text = _checked(text)
    known = {"tenant": membership.tenant, "user_id": membership.user_id, "title": title_from(text), "model": model}
    _, is_new = Conversation.all_tenants.get_or_create(id=conversation_id, defaults=known)
    conversation = conversation_get(membership=membership, conversation_id=conversation_id, lock=True)
    if not is_new and (sent := _sent_before(conversation, turn_id)):
        return sent
    position = _next_position(conversation)
    if Message.all_tenants.filter(pk=turn_id).exists():
        raise ConversationNotFoundError("There is no such message in this conversation.")
    question = conversation.messages.create(id=turn_id, position=position, role=MessageRole.USER, content=text)
    answer = conversation.messages.create(
        position=position + 1,
        role=MessageRole.ASSISTANT,
        state=MessageState.STREAMING,
        model=model,
        stream_id=new_stream_id(),
        started_at=timezone.now(),
    )
    _touch(conversation, model)
    return Turn(question, answer, is_new=True)


@transaction.atomic
def answer_restart(*, membership: Membership, conversation_id: UUID, message_id: UUID, model: str) -> Message:
    """Empties the conversation's last answer and gives it a new stream.

    Raises:
        ConversationNotFoundError: There is no such message, or it is somebody else's.
        AnswerInProgressError: It is still being written.
        InvalidRequestError: It is not the last one.
    """
    conversation = conversation_get(membership=membership, conversation_id=conversation_id, lock=True)
    answer = message_get(conversation=conversation, message_id=message_id)
    if answer.is_streaming:
        raise AnswerInProgressError("This answer is still being written. Stop it first.")
    is_last = not conversation.messages.filter(position__gt=answer.position).exists()
    if answer.role != MessageRole.ASSISTANT or not is_last:
        raise InvalidRequestError("Only the last answer of a conversation can be written anew.", param="message_id")
    answer.state, answer.stream_id, answer.model = MessageState.STREAMING, new_stream_id(), model
    answer.started_at, answer.ended_at = timezone.now(), None
    answer.content = answer.finish_reason = answer.error = answer.error_code = ""
    answer.usage, answer.is_trimmed = {}, False
    answer.conversation = conversation
    answer.save()
    _touch(conversation, model)
    return answer


async def turn_send(
    *, request: AnswerRequest, membership: Membership, conversation_id: UUID, turn_id: UUID, text: str
) -> BegunAnswer:
    """Stores a turn (see `turn_create`) and has it answered; a turn sent before is only looked up."""
    turn = await sync_to_async(turn_create)(
        membership=membership,
        conversation_id=conversation_id,
        turn_id=turn_id,
        text=text,
        model=request.deployment.public_name,
    )
    if not turn.is_new:
        return BegunAnswer(turn.answer, None, turn.question)
    begun = await _answer_begin(request, turn.answer)
    return begun._replace(question=turn.question)


async def answer_retry(
    *, request: AnswerRequest, membership: Membership, conversation_id: UUID, message_id: UUID
) -> BegunAnswer:
    """Has the last answer written anew (see `answer_restart`)."""
    answer = await sync_to_async(answer_restart)(
        membership=membership,
        conversation_id=conversation_id,
        message_id=message_id,
        model=request.deployment.public_name,
    )
    return await _answer_begin(request, answer, CacheControls(no_cache=True))


async def _answer_begin(
    request: AnswerRequest,
    answer: Message,
    cache: CacheControls = CacheControls(),  # noqa: B008  # frozen
) -> BegunAnswer:
    """Gives a stored answer's stream to the queue; a refused one is marked as failed, with the reason.

    An accepted one goes on without us: the browser reads the stream over its own socket, and `answer_collect` stores
    its end.
    """
    arrived_at = time.perf_counter()
    try:
        conversation = await sync_to_async(prompt_build)(answer=answer)
        route = stream_route(gateway=request.gateway, caller=request.caller, model=request.deployment.public_name)
        key = series_of(request.caller, route.deployment.name)
        trace = _trace(request, route, arrived_at)
        with trace_begun(trace), refusals_counted(request.gateway.latencies, key), try_kept(request.gateway, route):
            options = StreamOptions(
                stream_id=answer.stream_id,
                cache=cache,
                traceparent=trace.traceparent,
                stands_in_for=route.stands_in_for,
                only_kept=route.only_kept,
            )
            started, left_out = await _start(request, route, conversation, options)
    except HeadraceError as error:
        logger.info("chat_answer_refused", stream_id=answer.stream_id, code=error.code)
        return BegunAnswer(await sync_to_async(answer_fail)(answer=answer, error=error), error)
    try_noted(request.gateway, route, started)
    trace.admitted(started.stream_id)
    part = part_of(started)
    began = Began(key, arrived_at, time.perf_counter(), trace, is_kept=part is Part.KEPT)
    request.gateway.latencies.begin(started.stream_id, began)
    if part is Part.OWN:
        request.gateway.unread_ends.expect(started.stream_id, route.deployment)
    queue_deadline_watch(gateway=request.gateway, started=started, tenant=request.caller.tenant)
    if left_out or route.stands_in_for is not None:
        # The conversation stays with the model that was chosen; this answer is a fallback's.
        answer.is_trimmed, answer.model = left_out, route.deployment.public_name
        await answer.asave(update_fields=["is_trimmed", "model"])
    return BegunAnswer(answer, None)


def _trace(request: AnswerRequest, route: Route, arrived_at: float) -> Trace:
    """Begins the request's trace, which ends with the stream that the page reads."""
    return request.gateway.traces.begin(
        {},
        model=route.deployment.name,
        tenant_id=request.caller.tenant.id,
        sampling=_sampling(route.deployment.default_max_tokens),
        arrived_at=arrived_at,
    )


def _sampling(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=TEMPERATURE, top_p=TOP_P, seed=-1)


async def _start(
    request: AnswerRequest, route: Route, conversation: list[ChatTurn], options: StreamOptions
) -> tuple[StartedStream, bool]:
    """Starts with as much of the conversation as fits; returns also whether some of it had to be left out."""
    kept = conversation
    while True:
        # Room for a whole answer where possible; for the last message alone, whatever room there is.
        max_tokens = route.deployment.default_max_tokens if len(kept) > 1 else 0
        try:
            started = await stream_start(
                gateway=request.gateway,
                caller=request.caller,
                deployment=route.deployment,
                conversation=kept,
                sampling=_sampling(max_tokens),
                options=options,
            )
        except ContextLengthError:
            if len(kept) <= 1:
                raise
            kept = _later_half(kept)
        else:
            return started, len(kept) < len(conversation)


def _later_half(conversation: list[ChatTurn]) -> list[ChatTurn]:
    """Drops the older half, in whole turns, so that a user's message comes first."""
    drop = (len(conversation) // 2 + 1) // 2 * 2
    return conversation[drop:] or conversation[-1:]


def text_normalise(text: str) -> str:
    """Returns a text as it is stored: with one kind of line ends, and without NUL, which PostgreSQL cannot keep."""
    return text.replace("\r\n", "\n").replace("\x00", "")


def _checked(text: str) -> str:
    text = text_normalise(text).strip()
    if not text:
        raise InvalidRequestError("Write something first.", param="text")
    if len(text) > TEXT_LENGTH:
        raise InvalidRequestError(
            f"The message has {len(text):,} characters; {TEXT_LENGTH:,} are possible. Shorten it.", param="text"
        )
    return text


def _sent_before(conversation: Conversation, turn_id: UUID) -> Turn | None:
    question = conversation.messages.filter(pk=turn_id, role=MessageRole.USER).first()
    if question is None:
        return None
    answer = conversation.messages.select_related("conversation").get(position=question.position + 1)
    return Turn(question, answer, is_new=False)


def _next_position(conversation: Conversation) -> int:
    last = conversation.messages.order_by("-position").first()
    if last is None:
        return 0
    if last.is_streaming:
        raise AnswerInProgressError("The answer before is still being written. Wait for it, or stop it.")
    if last.position + 1 >= MESSAGE_LIMIT:
        raise ConversationFullError("This conversation is as long as one may be. Start a new one.")
    return last.position + 1


def _touch(conversation: Conversation, model: str) -> None:
    conversation.model, conversation.updated_at = model, timezone.now()
    conversation.save(update_fields=["model", "updated_at"])
    conversation_changed(conversation, ConversationChange.TURN)
