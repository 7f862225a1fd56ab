"""Operators act on 200 running streams from the admin: engines are freed, clients informed, nothing lost or doubled."""

import asyncio
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import connect

from headrace_wire import codec, redis_keys
from headrace_wire.fleet import GatewayInfo, WorkerInfo
from headrace_wire.messages import FinishReason, Started, StreamState
from tests.support.live_stack import LiveStack, running_stack
from tests.support.processes import PATIENCE_SECONDS, Process, free_port
from tests.support.signing_in import sign_in
from tests.support.stream_probe import StreamProbe

STREAMS = 200
TOKENS = 200  # forty seconds, so that they are under way when the operator acts
ACKNOWLEDGED_EVERY = 50
WEBSOCKETS = 20  # the others read SSE
ENDLESS = 4000
DEPLOYMENT = {
    "slow": {
        "engine_args": {"ttft_ms": 50, "tpot_ms": 200},
        "max_num_seqs": STREAMS,
        "max_model_len": 8192,
        "default_max_tokens": 512,
    }
}
"""One worker has room for all, so that a drained one's streams find a place."""

ASK: Any = [{"role": "user", "content": "Say something."}]


@pytest.fixture(scope="module")
def stack() -> Iterator[LiveStack]:
    """Two workers of one deployment; tests that end one start another."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-live-") as folder,
        running_stack(Path(folder), DEPLOYMENT, tenant={"max_connections": 1000}) as stack,
    ):
        stack.start_worker("slow")
        yield stack


@pytest.fixture
def probe(stack: LiveStack) -> StreamProbe:
    return StreamProbe(stack.redis_url)


@pytest.fixture
def operator(stack: LiveStack) -> Iterator["Operator"]:
    with httpx.Client(base_url=stack.base_url, timeout=60, follow_redirects=True) as http:
        sign_in(http, stack, stack.admin)
        yield Operator(http)


class Operator:
    """Somebody with the admin's pages before him."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def streams(self) -> list[str]:
        """Return all streams that the list shows, page by page."""
        found: list[str] = []
        for number in range(1, 100):
            answer = self._http.get("/admin/ops/livestream/live/", params={"page": number})
            assert answer.status_code == 200, answer.text
            page = answer.text
            found += re.findall(r'name="stream" value="(strm-[0-9a-f]+)"', page)
            shown = re.search(r"Page (\d+) of (\d+)", page)
            # Streams end meanwhile: there may be fewer pages than there were, and the last one is shown again.
            if shown is None or int(shown[2]) <= number:
                return found
        raise AssertionError("the list has no end")

    def act(self, verb: str, streams: list[str]) -> str:
        """Choose, confirm, and return what is said."""
        chosen = {"verb": verb, "stream": streams}
        asked = self._post("/admin/ops/livestream/act/", chosen)
        assert f"{len(streams)} stream" in asked
        return self._post("/admin/ops/livestream/act/", {**chosen, "confirmed": "yes"})

    def drain(self, process: str, **fields: str) -> str:
        """Drain, and return the page."""
        return self._post(f"/admin/ops/livestream/process/{process}/", {"drain": "yes", "note": "e2e", **fields})

    def process(self, process: str) -> str:
        """Return what its page says."""
        return self._http.get(f"/admin/ops/livestream/process/{process}/").text

    def _post(self, address: str, fields: dict[str, Any]) -> str:
        answer = self._http.post(address, data=fields)
        assert answer.status_code == 200, answer.text
        return re.sub(r"\s+", " ", answer.text)


class Readers:
    """Clients of all streams, by WebSocket and by SSE, and what each was told."""

    def __init__(self, stack: LiveStack, *, max_tokens: int, port: int | None = None, only_sse: bool = False) -> None:
        self.started = asyncio.Semaphore(0)
        self._stack, self._max_tokens = stack, max_tokens
        self._only_sse = only_sse
        self._doors = asyncio.Semaphore(8)
        """Who opens a WebSocket: more handshakes at once than this are too slow for the gateway on a busy machine."""
        self.started_count = 0
        self._client = httpx.AsyncClient(timeout=PATIENCE_SECONDS, limits=httpx.Limits(max_connections=None))
        self._port = port or urlsplit(stack.base_url).port

    def follow(self) -> "asyncio.Future[list[tuple[str, str, str]]]":
        """Return (stream id, text, code of the error that ended it or "") of each, when all have ended."""
        return asyncio.ensure_future(self._follow())

    async def _follow(self) -> list[tuple[str, str, str]]:
        websockets = 0 if self._only_sse else WEBSOCKETS
        async with self._client:
            return await asyncio.gather(
                *[self._ws() if number < websockets else self._sse() for number in range(STREAMS)]
            )

    async def all_started(self, everybody: "asyncio.Future[Any]") -> None:
        """Return when all have text; raise what one of them met instead."""
        waiting = asyncio.ensure_future(self._all_started())
        done, _ = await asyncio.wait(
            [waiting, everybody], timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        waiting.cancel()
        if everybody in done:
            raise AssertionError(f"they have ended too early: {everybody.result()[:3]}")
        assert waiting in done, f"{self.started_count} of {STREAMS} have begun"

    async def _all_started(self) -> None:
        for self.started_count in range(STREAMS):
            await self.started.acquire()

    async def _ws(self) -> tuple[str, str, str]:
        text, seq, acknowledged, stream_id = "", 0, 0, ""
        headers = {"Authorization": f"Bearer {self._stack.api_key}"}
        frame = {"type": "generate", "model": "slow", "messages": ASK, **self._options()}
        url = f"ws://127.0.0.1:{self._port}/v1/ws"
        async with self._doors:
            opened = await connect(url, subprotocols=["headrace.v1"], additional_headers=headers, open_timeout=60)  # type: ignore[list-item]
        async with opened as socket:
            await socket.send(json.dumps(frame))
            async for message in socket:
                heard = json.loads(message)
                stream_id = heard.get("stream_id", stream_id)
                if heard["type"] == "delta":
                    if not seq:
                        self.started.release()
                    assert heard["seq"] > seq
                    text, seq = text + heard["text"], heard["seq"]
                    if seq - acknowledged >= ACKNOWLEDGED_EVERY:
                        acknowledged = seq
                        await socket.send(json.dumps({"type": "ack", "stream_id": stream_id, "seq": seq}))
                elif heard["type"] == "end":
                    return stream_id, text, ""
                elif heard["type"] == "error":
                    return stream_id, text, heard["error"]["code"]
        raise AssertionError(f"{stream_id} did not end")

    async def _sse(self) -> tuple[str, str, str]:
        body = {"model": "slow", "messages": ASK, "stream": True, **self._options()}
        headers = {"authorization": f"Bearer {self._stack.api_key}"}
        url = f"http://127.0.0.1:{self._port}/v1/chat/completions"
        text, code, done = "", "", False
        async with self._client.stream("POST", url, json=body, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        code = event["error"]["code"]
                        continue
                    more = event["choices"][0]["delta"].get("content", "") if event["choices"] else ""
                    if more and not text:
                        self.started.release()
                    text += more
                done = done or line == "data: [DONE]"
        assert done or code
        return answer.headers["x-headrace-stream-id"], text, code

    def _options(self) -> dict[str, Any]:
        return {"max_tokens": self._max_tokens, "ignore_eos": True}


def check_whole(probe: StreamProbe, stream_id: str, text: str, *, tokens: int) -> None:
    """Every token once and in order, whoever generated it; the reader has what the log has, and so has the ledger."""
    position = 0
    for delta in probe.deltas(stream_id):
        position += delta.tokens
        assert delta.seq == position
    assert position == probe.token_count(stream_id) == tokens
    assert text == probe.text(stream_id)
    assert probe.wait_for_end(stream_id).usage.completion_tokens == tokens


def workers(probe: StreamProbe) -> list[WorkerInfo]:
    found: dict[str, WorkerInfo] = {}

    def note(info: WorkerInfo) -> bool:
        found[info.incarnation] = info
        return len(found) == 2

    probe.wait_for_worker("slow", note)
    return list(found.values())


async def test_a_kill_frees_the_engines_and_tells_the_clients(
    stack: LiveStack, probe: StreamProbe, operator: Operator
) -> None:
    readers = Readers(stack, max_tokens=ENDLESS)
    everybody = readers.follow()
    await readers.all_started(everybody)
    streams = await asyncio.to_thread(operator.streams)
    assert len(streams) == len(set(streams)) == STREAMS
    said = await asyncio.to_thread(operator.act, "kill", streams)
    assert f"Done with all {STREAMS} streams. Ended; its engine has let it go." in said
    for stream_id in streams:
        assert probe.state(stream_id) == "cancelled", "acknowledged means that it is over"
    answers = await asyncio.wait_for(everybody, PATIENCE_SECONDS)
    assert [code for _, _, code in answers] == ["stream_cancelled"] * STREAMS
    for stream_id, text, _ in answers:
        ended = probe.wait_for_end(stream_id)
        assert (ended.state, ended.finish_reason) == (StreamState.CANCELLED, FinishReason.ABORT)
        check_whole(probe, stream_id, text, tokens=ended.usage.completion_tokens)
    idle: set[str] = set()

    def both_are_idle(info: WorkerInfo) -> bool:
        (idle.discard if info.num_requests_running else idle.add)(info.incarnation)
        return len(idle) == 2

    await asyncio.to_thread(probe.wait_for_worker, "slow", both_are_idle)
    assert await asyncio.to_thread(operator.streams) == []


async def test_a_drained_worker_hands_its_streams_over(
    stack: LiveStack, probe: StreamProbe, operator: Operator
) -> None:
    readers = Readers(stack, max_tokens=TOKENS)
    everybody = readers.follow()
    await readers.all_started(everybody)
    drained = max(await asyncio.to_thread(workers, probe), key=lambda info: info.num_streams)
    process = _process_of(stack, drained)
    page = await asyncio.to_thread(operator.drain, drained.incarnation, deadline_seconds="0", leave="on")
    assert "takes nothing more" in page
    assert await asyncio.to_thread(process.wait) == 0
    assert "It has ended" in await asyncio.to_thread(operator.process, drained.incarnation)
    answers = await asyncio.wait_for(everybody, PATIENCE_SECONDS)
    moved = 0
    for stream_id, text, code in answers:
        assert code == "", "nobody noticed"
        check_whole(probe, stream_id, text, tokens=TOKENS)
        owners = [entry.owner for entry in probe.entries(stream_id) if isinstance(entry, Started)]
        assert owners[-1] != drained.incarnation
        moved += len(owners) > 1
    assert moved > STREAMS / 10, "it had its share"
    texts = {text for _, text, _ in answers}
    assert len(texts) == 1, "the same prompt: moved or not, the same answer"
    stack.start_worker("slow")


async def test_streams_are_moved_one_by_one(stack: LiveStack, probe: StreamProbe, operator: Operator) -> None:
    readers = Readers(stack, max_tokens=TOKENS)
    everybody = readers.follow()
    await readers.all_started(everybody)
    streams = (await asyncio.to_thread(operator.streams))[-20:]  # the youngest
    said = await asyncio.to_thread(operator.act, "migrate", streams)
    assert "Done with all 20 streams. Goes on at worker-" in said, said
    answers = await asyncio.wait_for(everybody, PATIENCE_SECONDS)
    for stream_id, text, code in answers:
        assert code == ""
        check_whole(probe, stream_id, text, tokens=TOKENS)
        owners = [entry.owner for entry in probe.entries(stream_id) if isinstance(entry, Started)]
        assert len(owners) == (2 if stream_id in streams else 1)
        assert len(set(owners)) == len(owners), "it went elsewhere"


async def test_a_drained_gateway_ends_and_its_clients_are_told(
    stack: LiveStack, probe: StreamProbe, operator: Operator
) -> None:
    port = free_port()
    gateway = stack.start_gateway(port, "--drain-deadline-seconds", "120")
    readers = Readers(stack, max_tokens=80, port=port, only_sse=True)
    everybody = readers.follow()
    await readers.all_started(everybody)
    incarnation = _gateway_of(probe, gateway.pid)
    page = await asyncio.to_thread(operator.drain, incarnation)
    assert "takes nothing more and ends" in page
    answers = await asyncio.wait_for(everybody, PATIENCE_SECONDS)
    assert await asyncio.to_thread(gateway.wait) == 0
    for stream_id, text, code in answers:
        assert code == ""
        check_whole(probe, stream_id, text, tokens=80)
    assert "It has ended" in await asyncio.to_thread(operator.process, incarnation)


def _process_of(stack: LiveStack, worker: WorkerInfo) -> Process:
    return next(process for process in stack.processes if process.pid == worker.pid)


def _gateway_of(probe: StreamProbe, pid: int) -> str:
    rows: Any = probe.redis.hgetall(redis_keys.gateways_key())
    infos = [codec.decode(raw, GatewayInfo) for raw in rows.values()]
    return next(info.incarnation for info in infos if info.pid == pid)
