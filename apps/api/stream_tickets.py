"""`/v1/streams/{id}/ticket`: a link with which a browser's EventSource may follow one stream, for some minutes."""

import time
from urllib.parse import parse_qs

import msgspec

from apps.accounts.tickets import (
    STREAM_TICKET_MAX_SECONDS,
    STREAM_TICKET_SECONDS,
    InvalidTicketError,
    stream_ticket_create,
    stream_ticket_read,
)
from apps.api.http import Exchange
from apps.api.requests import invalid_field
from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from headrace_wire.api_key import ApiKeyScope
from headrace_wire.errors import InvalidApiKeyError, InvalidRequestError, StreamNotFoundError
from headrace_wire.ids import is_stream_id


class TicketRequest(msgspec.Struct):
    """The body; it may be empty."""

    expires_in: int = STREAM_TICKET_SECONDS
    """Seconds."""


async def stream_ticket(exchange: Exchange, gateway: Gateway, stream_id: str) -> None:
    """Answer with a ticket and the URL that carries it.

    Raises:
        HeadraceError: not allowed, unknown stream, or a bad body.
    """
    caller = gateway.authenticate(exchange.bearer())
    gateway.config.require_scope(caller, ApiKeyScope.INFERENCE)
    seconds = _parsed(await exchange.body()).expires_in
    if not 1 <= seconds <= STREAM_TICKET_MAX_SECONDS:
        raise InvalidRequestError(f"`expires_in` is 1 to {STREAM_TICKET_MAX_SECONDS} seconds.", param="expires_in")
    record = await gateway.queue.record(stream_id) if is_stream_id(stream_id) else None
    if record is None or record.tenant_id != caller.tenant.id or caller.api_key is None:
        raise StreamNotFoundError(f"There is no stream `{stream_id[:64]}`.", param="stream_id")
    ticket = stream_ticket_create(stream_id=stream_id, public_id=caller.api_key.public_id, seconds=seconds)
    body = {
        "id": stream_id,
        "object": "stream.ticket",
        "ticket": ticket,
        "expires_at": int(time.time()) + seconds,
        "url": f"/v1/streams/{stream_id}/events?ticket={ticket}",
    }
    await exchange.answer_json(200, msgspec.json.encode(body))


def reader_of(exchange: Exchange, gateway: Gateway, stream_id: str) -> Caller:
    """Return who follows a stream: the bearer of a key, or of a ticket for just this stream.

    With a ticket, pages of any origin may read the answer: whoever has the URL has the stream.

    Raises:
        HeadraceError: neither is good.
    """
    tickets = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1")).get("ticket")
    if not tickets:
        caller = gateway.authenticate(exchange.bearer())
    else:
        exchange.headers.append((b"access-control-allow-origin", b"*"))
        try:
            ticket = stream_ticket_read(tickets[0], stream_id=stream_id)
        except InvalidTicketError as error:
            raise InvalidApiKeyError(
                "The ticket is not valid for this stream any more; ask for another one."
            ) from error
        caller = gateway.config.bearer_of(ticket.public_id)
    gateway.config.require_scope(caller, ApiKeyScope.INFERENCE)
    return caller


def _parsed(body: bytes) -> TicketRequest:
    try:
        return msgspec.json.decode(body or b"{}", type=TicketRequest)
    except msgspec.ValidationError as error:
        raise invalid_field(error) from error
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"The body is not valid JSON: {error}.") from error
