"""A request has arrived when it was read, however long it waits for the application after that."""

import asyncio
import json
from contextlib import AsyncExitStack

from websockets.asyncio.client import connect

from tests.server.conftest import Gateway

REQUESTS = 9
BUSY_SECONDS = 0.02


async def test_requests_that_come_together_have_arrived_before_they_take_their_turns(gateway: Gateway) -> None:
    async with AsyncExitStack() as connections:
        clients = [await connections.enter_async_context(gateway.connect()) for _ in range(REQUESTS + 1)]
        for client in clients:
            await client.get("/hello")
            await client.answer()
        first, *others = clients
        await first.get("/times?first=1&busy=1")
        await first.reader.readuntil(b"begun")
        for client in others:
            await client.get(f"/times?busy={BUSY_SECONDS}")
        waited = []
        for client in others:
            _, _, body = await client.answer()
            arrived_at, had_at = json.loads(body)
            waited.append(had_at - arrived_at)
    assert min(waited) >= 0
    assert max(waited) > BUSY_SECONDS * (REQUESTS // 2), "the last ones waited for those before them"


async def test_a_message_has_arrived_before_the_application_asks_for_it(gateway: Gateway, name: str) -> None:
    async with asyncio.timeout(20), connect(f"{gateway.ws_url}/times?name={name}") as client:
        await client.send("now")
        await (await client.ping())
        await gateway.get(f"/release?of={name}")
        received_at, had_at = json.loads(await client.recv())
    assert received_at < had_at
