"""Tickets: signed texts for browsers, which can set no headers where they open a WebSocket or an EventSource.

A chat ticket is what the chat's WebSocket shows instead of a session, so that opening one needs no database. It is good
for a minute and says who it is as the session was a moment ago. It travels as a WebSocket subprotocol (a query string
would end in logs), so it holds only what RFC 9110 calls token characters.

A stream ticket lets its bearer read one stream, for some minutes. An EventSource has nothing but its URL, and comes
back with the same one: the ticket is in the query string, allows nothing else, and ends with the key that asked for it.
"""

import time
from uuid import UUID

import msgspec
from django.core import signing

from apps.tenants.enums import MemberRole
from apps.tenants.models import Membership
from apps.tenants.ui_events import session_group

TICKET_SECONDS = 60
_SALT = "headrace.chat-ticket"

STREAM_TICKET_SECONDS = 600
STREAM_TICKET_MAX_SECONDS = 3600
_STREAM_SALT = "headrace.stream-ticket"


class ChatTicket(msgspec.Struct, frozen=True, kw_only=True):
    """Who opens the socket. Ids are UUIDs as 32 hex digits, as in the configuration snapshot."""

    user_id: str
    tenant_id: str
    role: MemberRole
    session: str = ""
    """Group of the sockets that end with the session (`ui_events.session_group`)."""


class StreamTicket(msgspec.Struct, frozen=True, kw_only=True):
    """Who may read a stream."""

    stream_id: str
    public_id: str
    """Of the API key that asked for it."""
    expires_at: float
    """Unix seconds, UTC."""


class InvalidTicketError(Exception):
    """Forged, malformed, for something else, or too old."""


def chat_ticket_create(*, membership: Membership, session_key: str | None = None) -> str:
    """Returns a ticket for the member, in token characters; its socket ends with the session."""
    ticket = ChatTicket(
        user_id=membership.user_id.hex,
        tenant_id=membership.tenant_id.hex,
        role=MemberRole(membership.role),
        session=session_group(session_key) if session_key else "",
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


def stream_ticket_create(*, stream_id: str, public_id: str, seconds: float = STREAM_TICKET_SECONDS) -> str:
    """Returns a ticket for one stream in the name of an API key, in characters that a query string may hold."""
    ticket = StreamTicket(stream_id=stream_id, public_id=public_id, expires_at=time.time() + seconds)
    return signing.dumps(msgspec.to_builtins(ticket), salt=_STREAM_SALT).replace(":", "~")


def stream_ticket_read(text: str, *, stream_id: str) -> StreamTicket:
    """Returns what a ticket for this stream says. No database, no Redis.

    Raises:
        InvalidTicketError: It is not one of ours, for another stream, or too old.
    """
    try:
        ticket = msgspec.convert(signing.loads(text.replace("~", ":"), salt=_STREAM_SALT), StreamTicket)
    except (signing.BadSignature, msgspec.ValidationError, ValueError) as error:
        raise InvalidTicketError from error
    if ticket.stream_id != stream_id or ticket.expires_at <= time.time():
        raise InvalidTicketError
    return ticket
