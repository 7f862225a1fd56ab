"""Whose conversation a draft goes on from."""

import uuid

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.utils import timezone

from apps.api.conversations import conversation_turns
from apps.chat.drafts import draft_turns
from apps.chat.enums import MessageRole, MessageState
from apps.chat.errors import ConversationNotFoundError
from apps.chat.models import Conversation
from apps.chat.selectors import prompt_build
from apps.chat.services.turns import turn_create
from apps.streams.config_view import Caller
from apps.tenants.models import Membership
from apps.tenants.services import membership_delete
from headrace_wire.errors import HeadraceError, InvalidRequestError, PermissionDeniedError
from headrace_wire.messages import ChatTurn
from headrace_wire.snapshot import ApiKeyConfig, TenantConfig
from tests.support.snapshots import KEY_A

pytestmark = pytest.mark.django_db(transaction=True)


def caller_of(membership: Membership) -> Caller:
    tenant = TenantConfig(id=membership.tenant_id.hex, slug="t")
    return Caller(tenant, user_id=membership.user_id.hex)


def make_conversation(membership: Membership) -> Conversation:
    conversation = Conversation.all_tenants.create(
        tenant=membership.tenant, user_id=membership.user_id, title="T", model="tiny"
    )
    conversation.messages.create(position=0, role=MessageRole.USER, content="one")
    conversation.messages.create(position=1, role=MessageRole.ASSISTANT, content="1", model="tiny")
    return conversation


@pytest.fixture
def conversation(membership: Membership) -> Conversation:
    return make_conversation(membership)


async def test_a_draft_is_the_prompt_that_the_turn_will_be(membership: Membership, conversation: Conversation) -> None:
    typed = " \r\n two\r\n\x00three"
    drafted = await draft_turns(caller_of(membership), str(conversation.pk), typed)
    assert drafted == [ChatTurn("user", "one"), ChatTurn("assistant", "1"), ChatTurn("user", "two\nthree")]

    def send() -> list[ChatTurn]:
        turn = turn_create(
            membership=membership, conversation_id=conversation.pk, turn_id=uuid.uuid4(), text=typed, model="tiny"
        )
        return prompt_build(answer=turn.answer)

    assert await sync_to_async(send)() == drafted
    assert await draft_turns(caller_of(membership), "", typed) == [ChatTurn("user", "two\nthree")]


async def test_nothing_is_said_while_an_answer_is_written(membership: Membership, conversation: Conversation) -> None:
    await conversation.messages.filter(position=1).aupdate(
        state=MessageState.STREAMING, content="", stream_id="strm-x", started_at=timezone.now()
    )
    assert await draft_turns(caller_of(membership), str(conversation.pk), "two") is None


async def test_somebody_elses_conversation_is_none(
    membership: Membership,
    other_membership: Membership,
    foreign_membership: Membership,
    conversation: Conversation,
) -> None:
    for stranger in (other_membership, foreign_membership):
        with pytest.raises(ConversationNotFoundError):
            await draft_turns(caller_of(stranger), str(conversation.pk), "two")
    mixed = Caller(TenantConfig(id=foreign_membership.tenant_id.hex, slug="t"), user_id=membership.user_id.hex)
    with pytest.raises(PermissionDeniedError):
        await draft_turns(mixed, str(conversation.pk), "two")


def test_a_member_who_was_removed_has_none(membership: Membership, conversation: Conversation) -> None:

    caller = caller_of(membership)
    membership_delete(membership=membership)
    with pytest.raises(PermissionDeniedError):
        async_to_sync(draft_turns)(caller, str(conversation.pk), "two")


@pytest.mark.parametrize("name", ["x", "0" * 33, "'; --"])
async def test_what_is_no_id_is_refused(membership: Membership, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        await draft_turns(caller_of(membership), name, "two")


async def test_a_key_has_no_conversations(membership: Membership, conversation: Conversation) -> None:
    key = ApiKeyConfig(id="k", public_id="k", secret_sha256=KEY_A.secret_sha256, tenant_id=membership.tenant_id.hex)
    tenant = TenantConfig(id=membership.tenant_id.hex, slug="t")
    caller = Caller(tenant, api_key=key, user_id=membership.user_id.hex)
    with pytest.raises(HeadraceError, match="send `messages`"):
        await conversation_turns(caller, str(conversation.pk), "two")
