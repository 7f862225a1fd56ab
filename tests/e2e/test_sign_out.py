"""Who signs out leaves nothing open: the sockets of that sign-in close, those of the same person elsewhere stay."""

import asyncio
import json
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect

from headrace_wire.messages import StreamState
from tests.support.live_stack import LiveStack
from tests.support.signing_in import sign_in
from tests.support.slow_clients import HEAR_SECONDS
from tests.support.stream_probe import StreamProbe

SIGNED_OUT = 4401


class SignIn:
    """One browser, and the two sockets of its open chat page."""

    def __init__(self, stack: LiveStack) -> None:
        self._stack = stack
        self.http = httpx.Client(base_url=stack.base_url, follow_redirects=True, timeout=HEAR_SECONDS)
        sign_in(self.http, stack)

    def sign_out(self) -> None:
        assert self.http.post("/accounts/logout/").status_code == 200

    async def chat_socket(self) -> ClientConnection:
        ticket = self.http.get("/chat/ticket").json()["ticket"]
        protocols: Any = ["headrace.v1", f"headrace.ticket.{ticket}"]
        return await connect(self._stack.ws_url, subprotocols=protocols, origin=self._origin, open_timeout=HEAR_SECONDS)

    async def page_socket(self) -> ClientConnection:
        cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in self.http.cookies.jar)
        url = self._stack.ws_url.replace("/v1/ws", "/ws/ui")
        headers = {"cookie": cookies}
        return await connect(url, additional_headers=headers, origin=self._origin, open_timeout=HEAR_SECONDS)

    @property
    def _origin(self) -> Any:
        return self._stack.base_url


async def close_code(socket: ClientConnection) -> int | None:
    await asyncio.wait_for(socket.wait_closed(), HEAR_SECONDS)
    return socket.close_code


async def test_signing_out_closes_the_sockets_of_that_sign_in(live_stack: LiveStack) -> None:
    here, elsewhere = await asyncio.to_thread(SignIn, live_stack), await asyncio.to_thread(SignIn, live_stack)
    closing = [await here.chat_socket(), await here.chat_socket(), await here.page_socket()]
    staying = [await elsewhere.chat_socket(), await elsewhere.page_socket()]
    ask = {"type": "generate", "model": "slow", "messages": [{"role": "user", "content": "x"}], "max_tokens": 60}
    await closing[0].send(json.dumps(ask))
    stream_id = json.loads(await closing[0].recv())["stream_id"]

    await asyncio.to_thread(here.sign_out)
    assert [await close_code(socket) for socket in closing] == [SIGNED_OUT] * 3
    for socket in staying:
        await asyncio.wait_for(await socket.ping(), HEAR_SECONDS)
        await socket.close()
    ended = await asyncio.to_thread(StreamProbe(live_stack.redis_url).wait_for_end, stream_id)
    assert ended.state is StreamState.FINISHED, "an answer that was asked for is there for the next sign-in"
    for each in (here, elsewhere):
        each.http.close()
