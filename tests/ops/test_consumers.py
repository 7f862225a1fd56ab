from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import AnonymousUser
from pytest_django import Settings

from apps.accounts.models import User
from apps.ops.consumers import UiConsumer, groups_of
from apps.tenants.models import Membership, Tenant
from apps.tenants.ui_events import FLEET_GROUP, LATENCY_GROUP, tenant_group, ui_event_send_async, user_group
from tests.support.processes import PATIENCE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)


class PatientCommunicator(WebsocketCommunicator):  # type: ignore[misc]  # Channels ships no types
    """One that gives the consumer longer than the second that Channels' own does."""

    async def receive_output(self, timeout: float = PATIENCE_SECONDS) -> Any:
        return await super().receive_output(timeout)

    async def receive_json_from(self, timeout: float = PATIENCE_SECONDS) -> Any:
        return await super().receive_json_from(timeout)


@asynccontextmanager
async def page(user: User | AnonymousUser, query: str = "") -> AsyncIterator[Any]:
    """An open page of `user`."""
    communicator = PatientCommunicator(UiConsumer.as_asgi(), f"/ws/ui{query}")
    communicator.scope["user"] = user
    connected, _ = await communicator.connect(PATIENCE_SECONDS)
    assert connected
    yield communicator
    await communicator.disconnect(timeout=PATIENCE_SECONDS)


@pytest.fixture(params=["in memory", "redis"])
def _layer(request: pytest.FixtureRequest, settings: Settings, redis_url: str) -> None:
    if request.param == "redis":
        config = {"hosts": [redis_url], "prefix": "hr:channels"}
        layer = {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": config}
        settings.CHANNEL_LAYERS = {"default": layer}


@pytest.mark.usefixtures("_layer")
async def test_hears_what_concerns_its_user_and_tenants(membership: Membership, other_tenant: Tenant) -> None:
    async with page(membership.user) as socket:
        await ui_event_send_async(tenant_group(other_tenant.pk), "secret.thing")
        await ui_event_send_async(FLEET_GROUP, "worker.changed")
        await ui_event_send_async(tenant_group(membership.tenant_id), "quota.changed", {"n": 1})
        await ui_event_send_async(user_group(membership.user_id), "conversation.changed")
        assert await socket.receive_json_from() == {"type": "quota.changed", "data": {"n": 1}}
        assert await socket.receive_json_from() == {"type": "conversation.changed", "data": {}}
        assert await socket.receive_nothing()


@pytest.mark.usefixtures("_layer")
async def test_staff_hear_of_workers(user: User) -> None:
    user.is_staff = True
    async with page(user) as socket:
        await ui_event_send_async(FLEET_GROUP, "worker.changed", {"workers": {"worker-1": "ready"}})
        assert await socket.receive_json_from() == {
            "type": "worker.changed",
            "data": {"workers": {"worker-1": "ready"}},
        }


async def test_latency_pages_hear_of_new_numbers_and_others_do_not(user: User) -> None:
    async with page(user, "?hear=latency") as socket, page(user, "?hear=fleet") as other:
        await ui_event_send_async(LATENCY_GROUP, "latency.rolled")
        await ui_event_send_async(FLEET_GROUP, "worker.changed")
        await ui_event_send_async(user_group(user.pk), "still.here")
        assert (await socket.receive_json_from())["type"] == "latency.rolled"
        assert (await socket.receive_json_from())["type"] == "still.here"
        assert (await other.receive_json_from())["type"] == "still.here"


async def test_strangers_are_told_not_to_come_back(user: User) -> None:
    user.is_active = False
    for stranger in (AnonymousUser(), user):
        async with page(stranger) as socket:
            assert await socket.receive_output() == {"type": "websocket.close", "code": 4401}


@pytest.mark.parametrize(
    "frame", [{"text": ""}, {"text": "{"}, {"text": "[]"}, {"bytes": b"\xff\x00"}, {"text": '{"type": "ui.event"}'}]
)
async def test_what_a_page_sends_is_ignored(user: User, frame: dict[str, Any]) -> None:
    async with page(user) as socket:
        await socket.send_input({"type": "websocket.receive", **frame})
        await ui_event_send_async(user_group(user.pk), "still.here")
        assert (await socket.receive_json_from())["type"] == "still.here"


async def test_a_former_member_hears_no_more_when_it_connects_again(membership: Membership) -> None:
    user = membership.user
    assert tenant_group(membership.tenant_id) in await groups_of(user)
    await Membership.all_tenants.filter(pk=membership.pk).adelete()
    assert await groups_of(user) == (user_group(user.pk),)


async def test_an_event_is_lost_quietly_while_redis_is_away(settings: Settings) -> None:
    config = {"hosts": ["unix:///nowhere/redis.sock"]}
    settings.CHANNEL_LAYERS = {
        "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": config}
    }
    await ui_event_send_async(FLEET_GROUP, "worker.changed")
