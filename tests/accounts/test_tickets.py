import time

import pytest
from django.core import signing
from pytest_django import DjangoAssertNumQueries

from apps.accounts import tickets
from apps.tenants.enums import MemberRole
from apps.tenants.models import Membership


def test_says_who_it_is(membership: Membership) -> None:
    ticket = tickets.chat_ticket_read(tickets.chat_ticket_create(membership=membership))
    assert ticket == tickets.ChatTicket(
        user_id=membership.user_id.hex, tenant_id=membership.tenant_id.hex, role=MemberRole.OWNER
    )


def test_needs_no_database_to_be_read(
    membership: Membership, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    text = tickets.chat_ticket_create(membership=membership)
    with django_assert_num_queries(0):
        tickets.chat_ticket_read(text)


def test_ends_after_a_minute(membership: Membership, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    text = tickets.chat_ticket_create(membership=membership)
    monkeypatch.setattr(time, "time", lambda: now + tickets.TICKET_SECONDS - 2)
    tickets.chat_ticket_read(text)
    monkeypatch.setattr(time, "time", lambda: now + tickets.TICKET_SECONDS + 2)
    with pytest.raises(tickets.InvalidTicketError):
        tickets.chat_ticket_read(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "a:b:c",
        "\x00",
        "é",
        signing.dumps({"user_id": "x", "tenant_id": "y", "role": "owner"}),
        signing.dumps({"user_id": "x", "tenant_id": "y", "role": "owner"}, salt="headrace.chat-ticket"),
        signing.dumps({"user_id": "0" * 32, "tenant_id": "0" * 32, "role": "king"}, salt="headrace.chat-ticket"),
        signing.dumps(["0" * 32], salt="headrace.chat-ticket"),
        signing.dumps(None, salt="headrace.chat-ticket"),
    ],
    ids=[f"text{number}" for number in range(10)],  # tickets differ between the processes of pytest-xdist
)
def test_refuses_what_is_not_ours(text: str) -> None:
    with pytest.raises(tickets.InvalidTicketError):
        tickets.chat_ticket_read(text)


def test_refuses_a_changed_one(membership: Membership) -> None:
    text = tickets.chat_ticket_create(membership=membership)
    body, _, signature = text.rpartition(":")
    with pytest.raises(tickets.InvalidTicketError):
        tickets.chat_ticket_read(f"{body}x:{signature}")


STREAM = "strm-000000000000000000000000"


def test_a_stream_ticket_is_for_one_stream() -> None:
    text = tickets.stream_ticket_create(stream_id=STREAM, public_id="k")
    assert tickets.stream_ticket_read(text, stream_id=STREAM).public_id == "k"
    assert not set(text) & set(":+/=&?# "), "a query string holds it as it is"
    with pytest.raises(tickets.InvalidTicketError):
        tickets.stream_ticket_read(text, stream_id=STREAM[:-1] + "1")


def test_a_stream_ticket_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    text = tickets.stream_ticket_create(stream_id=STREAM, public_id="k", seconds=30)
    monkeypatch.setattr(time, "time", lambda: now + 29)
    tickets.stream_ticket_read(text, stream_id=STREAM)
    monkeypatch.setattr(time, "time", lambda: now + 31)
    with pytest.raises(tickets.InvalidTicketError):
        tickets.stream_ticket_read(text, stream_id=STREAM)


def test_a_chat_ticket_reads_no_stream_and_the_other_way_round(membership: Membership) -> None:
    with pytest.raises(tickets.InvalidTicketError):
        tickets.stream_ticket_read(tickets.chat_ticket_create(membership=membership), stream_id=STREAM)
    with pytest.raises(tickets.InvalidTicketError):
        tickets.chat_ticket_read(tickets.stream_ticket_create(stream_id=STREAM, public_id="k"))
