"""Operators see whose conversations there are and how long, and not what was said."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from uuid import uuid4

from django.test import Client

from apps.accounts.models import User
from apps.chat.models import Conversation
from apps.chat.services.turns import turn_create
from apps.tenants.models import Membership

AssertQueries = Callable[[int], AbstractContextManager[Any]]


def test_list_shows_no_text_and_needs_a_fixed_number_of_queries(
    admin_user: User, client: Client, membership: Membership, django_assert_num_queries: AssertQueries
) -> None:
    client.force_login(admin_user)
    for _ in range(2):
        for _ in range(3):
            turn_create(membership=membership, conversation_id=uuid4(), turn_id=uuid4(), text="private", model="tiny")
        with django_assert_num_queries(9):
            page = client.get("/admin/chat/conversation/").content.decode()
    assert page.count(str(membership.user)) >= 6
    assert "private" not in page
    conversation = Conversation.all_tenants.latest("created_at")
    assert "private" not in client.get(f"/admin/chat/conversation/{conversation.pk}/change/").content.decode()
    assert client.get("/admin/chat/conversation/add/").status_code == 403
