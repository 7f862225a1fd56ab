"""A kept answer in the chat: the gateway that gives it knows that no worker computes it."""

import asyncio
from uuid import uuid4

from asgiref.sync import sync_to_async
from django.test import AsyncClient

from apps.caching.models import ResponseCachePolicy
from apps.caching.response_services import response_cache_create
from apps.streams.gateway import Gateway
from apps.tenants.models import Tenant
from apps.tenants.snapshots import snapshot_publish
from tests.chat.conftest import HandWorker

PATIENCE = 30.0


async def ask(client: AsyncClient) -> str:
    """Ask the same in a new conversation; return the answer's stream."""
    body = {"turn_id": str(uuid4()), "text": "What leads the wheel?", "model": "tiny"}
    path = f"/chat/conversations/{uuid4()}/turns"
    response = await client.post(path, data=body, content_type="application/json")
    assert response.status_code == 200
    return str(response.json()["answer"]["stream_id"])


async def test_what_was_kept_is_told_from_what_is_computed(
    member_client: AsyncClient, gateway: Gateway, worker: HandWorker, tenant: Tenant
) -> None:
    policy = ResponseCachePolicy(tenant=tenant, include_chat=True)
    await sync_to_async(response_cache_create)(policy=policy)
    await sync_to_async(snapshot_publish)()
    await gateway.config_reader.refresh()
    computed = await ask(member_client)
    claimed = await worker.claim()
    await worker.end(claimed, await worker.write(claimed, ["Water."]))
    async with asyncio.timeout(PATIENCE):
        while not gateway.recorder.dealt_with:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.02)
    kept = await ask(member_client)
    began = [gateway.latencies.claim(stream_id) for stream_id in (computed, kept)]
    assert [one is not None and one.is_kept for one in began] == [False, True]
    assert None not in began
