"""Chat tickets: what the chat's WebSocket shows instead of a session, so that opening one needs no database.

A signed text, good for a minute. It says who it is as the session was a moment ago. It travels as a WebSocket
subprotocol (a query string would end in logs), so it holds only what RFC 9110 calls token characters.
"""

from uuid import UUID

import msgspec
from django.core import signing

from apps.tenants.enums import MemberRole
from apps.tenants.models import Membership

TICKET_SECONDS = 60
_SALT = "headrace.chat-ticket"


class ChatTicket(msgspec.Struct, frozen=True, kw_only=True):
    """Who opens the socket. Ids are UUIDs as 32 hex digits, as in the configuration snapshot."""

    user_id: str
    tenant_id: str
    role: MemberRole


class InvalidTicketError(Exception):
    """Forged, malformed or older than `TICKET_SECONDS`."""


def chat_ticket_create(*, membership: Membership) -> str:
    """Returns a ticket for the member, in token characters."""
    ticket = ChatTicket(
        user_id=membership.user_id.hex, tenant_id=membership.tenant_id.hex, role=MemberRole(membership.role)
    )
    return signing.dumps(msgspec.to_builtins(ticket), salt=_SALT).replace(":", "~")


def chat_ticket_read(text: str, *, max_age_seconds: int = TICKET_SECONDS) -> ChatTicket:
    """Returns what a ticket says. No database, no Redis.

    Raises:
        InvalidTicketError: It is not one of ours, or too old.
    """
    try:
        ticket = msgspec.convert(signing.loads(text.replace("~", ":"), salt=_SALT, max_age=max_age_seconds), ChatTicket)
        UUID(hex=ticket.user_id), UUID(hex=ticket.tenant_id)
    except (signing.BadSignature, msgspec.ValidationError, ValueError) as error:
        raise InvalidTicketError from error
    return ticket
