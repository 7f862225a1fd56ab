"""The socket of open pages: it only listens, and is told when something changed (`apps.tenants.ui_events`)."""

from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.contrib.sessions.backends.base import SessionBase

from apps.accounts.models import User
from apps.tenants.selectors import membership_list
from apps.tenants.ui_events import FLEET_GROUP, LATENCY_GROUP, session_group, tenant_group, user_group

UNAUTHENTICATED = 4401


class UiConsumer(AsyncJsonWebsocketConsumer):  # type: ignore[misc]  # channels ships no types
    """Sends `{"type": <event>, "data": {...}}` to a signed-in person: what concerns them, and the fleet to staff."""

    joined: tuple[str, ...] = ()

    async def connect(self) -> None:
        """Joins the groups of whoever is signed in; others are told 4401, after which pages do not come back.

        The groups come before the handshake: a page reads its data when the socket opens, and nothing that happens
        from then on may be missed.
        """
        user = self.scope.get("user")
        if not isinstance(user, User) or not user.is_active:
            await self.accept()
            await self.close(code=UNAUTHENTICATED)
            return
        self.joined = (
            *await groups_of(user),
            *_session_groups(self.scope.get("session")),
            *_asked_groups(self.scope.get("query_string", b"")),
        )
        for group in self.joined:
            await self.channel_layer.group_add(group, self.channel_name)
        await self.accept()

    async def disconnect(self, code: int) -> None:  # noqa: ARG002
        """Leaves the groups."""
        for group in self.joined:
            await self.channel_layer.group_discard(group, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **_: Any) -> None:  # noqa: ANN401
        """Ignores what pages send: there is nothing to say here."""

    async def ui_event(self, message: dict[str, Any]) -> None:
        """Passes an event on."""
        with suppress(ConnectionError):  # it has left, which `disconnect` is told
            await self.send_json({"type": message["event"], "data": message["data"]})

    async def session_ended(self, message: dict[str, Any]) -> None:  # noqa: ARG002
        """Closes: whoever opened the page has signed out."""
        await self.close(code=UNAUTHENTICATED)


def _asked_groups(query: bytes) -> tuple[str, ...]:
    """Returns the groups that a page asks for: what most pages do not want to hear, and anybody may."""
    return (LATENCY_GROUP,) if "latency" in parse_qs(query.decode("latin-1")).get("hear", []) else ()


def _session_groups(session: SessionBase | None) -> tuple[str, ...]:
    session_key = session.session_key if session is not None else None
    return (session_group(session_key),) if session_key else ()


@database_sync_to_async  # type: ignore[untyped-decorator]  # channels ships no types
def groups_of(user: User) -> tuple[str, ...]:
    """Returns the groups whose events concern the user."""
    tenants = [tenant_group(place.tenant_id) for place in membership_list(user=user)]
    return (user_group(user.pk), *tenants, *([FLEET_GROUP] if user.is_staff else []))
