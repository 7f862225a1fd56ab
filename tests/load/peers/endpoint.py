"""An OpenAI-compatible streaming endpoint around our simulated engine: what every proxy of the bench stands before.

One process, no framework, frames made beforehand: cheap enough that it is not what is measured. The stepping is the one
that Headrace's simulated worker has, so that every arm gets its tokens at the same pace and in the same steps.

`python -m tests.load.peers.endpoint --port P --ttft-ms T --tpot-ms T --slots N`; with `--kv-tokens N --block-tokens N
--prefill-us T` it has the simulated engine's prefix cache, a byte of the prompt being a token. `GET /served` says what
it has generated.
"""

import argparse
import asyncio
import itertools
import time
from collections.abc import Sequence

import msgspec

from headrace_wire.messages import SamplingParams
from headrace_worker.engine import EngineOutput, EngineRequest
from headrace_worker.simulated_config import CoreConfig
from headrace_worker.simulated_core import SimulatedCore
from headrace_worker.simulated_tokenizer import WORDS

HOST = "127.0.0.1"
MAX_MODEL_LEN = 1_000_000
LISTENING = "endpoint listens"
_HEAD_END = b"\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_ID = f'"id":"chatcmpl-bench","created":{int(time.time())},"model":"bench"'


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Message(msgspec.Struct):
    content: str | list[object] = ""


class _Body(msgspec.Struct):
    messages: list[_Message]
    stream: bool = False
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


_decode_body = msgspec.json.Decoder(_Body).decode


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(choice: str, rest: str = "") -> bytes:
    return _chunk(f'data: {{{_ID},"object":"chat.completion.chunk","choices":[{choice}]{rest}}}\n\n'.encode())


_WORD_EVENTS = [_event(f'{{"index":0,"delta":{{"content":" {word}"}},"finish_reason":null}}') for word in WORDS]
_FIRST_EVENT = _event('{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}')
_LAST_EVENT = _event('{"index":0,"delta":{},"finish_reason":"length"}')
_END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One client's connection, one request at a time."""

    def __init__(self, endpoint: "Endpoint") -> None:
        self._endpoint = endpoint
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._request_id = ""
        self._body = _Body([])
        self._words: list[int] = []
        self._count = 0
        self._cached = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Told by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        """Told by asyncio: the client has gone, and what it asked for with it."""
        self._transport = None
        if self._request_id:
            self._endpoint.abort(self._request_id)

    def data_received(self, data: bytes) -> None:
        """Told by asyncio."""
        self._buffer += data
        head, end, rest = self._buffer.partition(_HEAD_END)
        if not end:
            return
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        if head.startswith(b"GET /served"):
            self._reply(b"%d" % self._endpoint.tokens)
            return
        if head.startswith(b"GET"):
            self._reply(b'{"object":"list","data":[{"id":"bench","object":"model"}]}')
            return
        self._body, self._words, self._count, self._cached = _decode_body(rest[:length]), [], 0, 0
        max_tokens = self._body.max_tokens or self._body.max_completion_tokens or 16
        self._request_id = self._endpoint.submit(self, "".join(str(m.content) for m in self._body.messages), max_tokens)

    def take(self, output: EngineOutput) -> None:
        """Sends what a step gave."""
        if self._transport is None:
            return
        finished = output.finish_reason is not None
        self._cached += output.cached_tokens
        if self._body.stream:
            events = b"".join([_WORD_EVENTS[token] for token in output.token_ids])
            if not self._count:
                events = _STREAM_HEAD + _FIRST_EVENT + events
            if finished:
                events += self._last_events(self._count + len(output.token_ids))
            self._transport.write(events)
        else:
            self._words += output.token_ids
        self._count += len(output.token_ids)
        if finished:
            self._request_id = ""
            if not self._body.stream:
                self._reply(self._whole_answer())

    def _last_events(self, count: int) -> bytes:
        options = self._body.stream_options
        usage = _event("", f',"usage":{self._usage(count)}') if options is not None and options.include_usage else b""
        return _LAST_EVENT + usage + _END

    def _whole_answer(self) -> bytes:
        text = "".join(f" {WORDS[word]}" for word in self._words)
        message = f'{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"finish_reason":"length"}}'
        return f'{{{_ID},"object":"chat.completion","choices":[{message}],"usage":{self._usage(self._count)}}}'.encode()

    def _usage(self, count: int) -> str:
        prompt = sum(len(str(message.content)) for message in self._body.messages)
        details = f'"prompt_tokens_details":{{"cached_tokens":{self._cached}}}'
        total = prompt + count
        return f'{{"prompt_tokens":{prompt},"completion_tokens":{count},"total_tokens":{total},{details}}}'

    def _reply(self, body: bytes) -> None:
        if self._transport is not None:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
            self._transport.write(head + body)


class Endpoint:
    """The engine and who waits for its tokens."""

    def __init__(self, config: CoreConfig) -> None:
        self._core = SimulatedCore(config, self._deliver, lambda: None)
        self._connections: dict[str, Connection] = {}
        self._numbers = itertools.count()
        self.tokens = 0
        """Generated so far."""

    def submit(self, connection: Connection, prompt: str, max_tokens: int) -> str:
        """Begins an answer; returns its name."""
        request_id = str(next(self._numbers))
        self._connections[request_id] = connection
        self._core.submit(EngineRequest(request_id, list(prompt.encode()), SamplingParams(max_tokens=max_tokens), ""))
        return request_id

    def abort(self, request_id: str) -> None:
        """Ends an answer that nobody waits for."""
        self._connections.pop(request_id, None)
        self._core.abort([request_id])

    def _deliver(self, outputs: list[EngineOutput]) -> None:
        for output in outputs:
            self.tokens += len(output.token_ids)
            finished = output.finish_reason is not None
            take = self._connections.pop if finished else self._connections.__getitem__
            take(output.request_id).take(output)


async def _serve(options: argparse.Namespace) -> None:
    config = CoreConfig(
        ttft_seconds=options.ttft_ms / 1000,
        tpot_seconds=options.tpot_ms / 1000,
        answer_tokens=0,
        answer_ids=[],
        alphabet=list(range(len(WORDS))),
        end_id=0,
        max_num_seqs=options.slots,
        max_model_len=MAX_MODEL_LEN,
        kv_tokens=options.kv_tokens or options.slots * MAX_MODEL_LEN,
        block_tokens=options.block_tokens,
        prefill_seconds=options.prefill_us / 1e6,
    )
    endpoint = Endpoint(config)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(endpoint), HOST, options.port, backlog=4096
    )
    print(LISTENING, flush=True)
    await server.serve_forever()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ttft-ms", type=float, required=True)
    parser.add_argument("--tpot-ms", type=float, required=True)
    parser.add_argument("--kv-tokens", type=int, default=0)
    parser.add_argument("--block-tokens", type=int, default=0)
    parser.add_argument("--prefill-us", type=float, default=0.0)
    parser.add_argument("--slots", type=int, required=True)
    asyncio.run(_serve(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
