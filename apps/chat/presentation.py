"""What the page gets of conversations and messages, as JSON."""

from typing import Any

from apps.chat.enums import MessageRole
from apps.chat.markdown import markdown_to_html
from apps.chat.models import Conversation, Message
from apps.chat.selectors import ConversationPage, MessagePage
from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from headrace_wire.snapshot import EngineKind

Json = dict[str, Any]


def conversation_json(conversation: Conversation) -> Json:
    """Returns a row of the list."""
    return {
        "id": str(conversation.id),
        "title": conversation.title,
        "model": conversation.model,
        "updated_at": conversation.updated_at.isoformat(),
    }


def conversation_page_json(page: ConversationPage) -> Json:
    """Returns a page of the list."""
    return {
        "conversations": [conversation_json(conversation) for conversation in page.conversations],
        "next": str(page.next) if page.next else None,
    }


def message_json(message: Message) -> Json:
    """Returns a message. `html` is safe to insert and only there for an assistant's stored text."""
    is_answer = message.role == MessageRole.ASSISTANT
    return {
        "id": str(message.id),
        "role": message.role,
        "state": message.state,
        "position": message.position,
        "text": message.content,
        "html": markdown_to_html(message.content) if is_answer else "",
        "model": message.model,
        "stream_id": message.stream_id if message.is_streaming else None,
        "finish_reason": message.finish_reason,
        "usage": message.usage,
        "error": {"code": message.error_code, "message": message.error} if message.error_code else None,
        "is_trimmed": message.is_trimmed,
    }


def messages_json(conversation: Conversation, page: MessagePage) -> Json:
    """Returns a conversation with a page of its messages."""
    return {
        "conversation": conversation_json(conversation),
        "messages": [message_json(message) for message in page.messages],
        "has_earlier": page.has_earlier,
    }


def models_json(gateway: Gateway, caller: Caller) -> list[Json]:
    """Returns the models that the member may choose."""
    return [
        {
            "name": deployment.public_name,
            "is_ready": gateway.fleet.ready(deployment.name),
            "is_simulated": deployment.engine is EngineKind.SIMULATED,
        }
        for deployment in gateway.config.deployments(caller)
    ]
