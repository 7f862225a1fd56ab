"""Drafts: how soon the first token comes of a prompt that was computed while it was typed, and of one that was not.

From the client's `generate` to its first text, one stream at a time, each of a text of its own:

1. cold: nothing was typed before;
2. drafted: typed in some steps, each computed before the next (people type more slowly than that), then sent with a
   few words more;
3. edited: typed like that, then sent with another beginning, so that nothing of it is of use;
4. edited early: the whole text drafted at once, and sent with another beginning while the engine computes it.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from headrace_wire import codec, redis_keys
from headrace_wire.fleet import WorkerInfo
from headrace_wire.prefix_hashes import BLOCK_TOKENS
from headrace_wire.snapshot import DeploymentConfig, EngineKind
from tests.load.clients import SUBPROTOCOL
from tests.load.placement import Placement
from tests.load.report import Row
from tests.load.stack import HOST, BenchStack, running_stack
from tests.support.metrics import metric
from tests.support.processes import free_port
from tests.support.stream_probe import StreamProbe

TARGET_DRAFTED, TARGET_EDITED = 0.25, 1.05
STEPS = 4
EARLY_SECONDS = 0.1
"""From a draft to the edited prompt that overtakes it."""
FRAME_SECONDS = 120.0
POLL_SECONDS = 0.02

_WORDS = """
    water wheel stone corn mill river bank sluice gate channel dam stream flow turn grind carry lead fall rise deep cold
    old long wide slow quick morning evening summer winter miller farmer boat bridge field grain bread house road hill
"""

Progress = Callable[[str], None]


class DraftLoad(Struct, frozen=True):
    """What is typed."""

    model: Path | None
    """A model's folder: nothing is downloaded. None for the simulated engine."""
    prompt_tokens: int = 1500

    @property
    def words(self) -> int:
        """How many are typed: about a token each, and the template takes some; the simulated tokens are bytes."""
        return self.prompt_tokens - 50 if self.model is not None else self.prompt_tokens // 6

    @property
    def deployment(self) -> DeploymentConfig:
        """The model."""
        name = self.model.name.lower() if self.model is not None else "simulated"
        simulated_args = {"ttft_ms": 1, "tpot_ms": 1, "block_tokens": BLOCK_TOKENS, "prefill_us": 500}
        return DeploymentConfig(
            id=name,
            name=name,
            model=str(self.model),
            engine=EngineKind.VLLM if self.model is not None else EngineKind.SIMULATED,
            engine_args={} if self.model is not None else simulated_args,
            max_model_len=2048,
            max_num_seqs=8,  # of so many, what a report still shows is not yet a busy worker
        )


class Sent(Struct, frozen=True):
    """One prompt."""

    ttft_seconds: float
    prompt_tokens: int
    cached_tokens: int


class DraftRound(Struct, frozen=True):
    """One prompt of each kind."""

    cold: Sent
    drafted: Sent
    edited: Sent
    edited_early: Sent

    def ratio(self, kind: str) -> float:
        """How much of a cold prompt's time another one takes."""
        sent: Sent = getattr(self, kind)
        return sent.ttft_seconds / self.cold.ttft_seconds


class NotComparableError(Exception):
    """A prompt that should be cold was not, or a drafted one was."""


def run_rounds(load: DraftLoad, *, rounds: int, progress: Progress) -> list[DraftRound]:
    """Measures `rounds` prompts of each kind, on one stack."""
    progress(f"drafts: starting {load.deployment.name}")
    metrics_port = free_port()
    variables = {"HEADRACE_METRICS_PORT": str(metrics_port)}
    done = []
    with running_stack(load.deployment, Placement(None, None), variables) as stack:
        typist = _Typist(load, stack, f"http://{HOST}:{metrics_port}")
        asyncio.run(typist.warm_up())
        for number in range(1, rounds + 1):
            progress(f"drafts: {load.prompt_tokens} tokens of {load.deployment.name}, round {number} of {rounds}")
            done.append(asyncio.run(typist.round(number)))
    return done


def table_rows(measured: Sequence[DraftRound]) -> list[Row]:
    """Returns the table's lines."""

    def ttft(label: str, kind: str) -> Row:
        return Row(f"TTFT, {label}, ms", [[getattr(one, kind).ttft_seconds * 1000 for one in measured]])

    def ratio(label: str, kind: str, at_most: float) -> Row:
        return Row(f"ratio, {label}", [[one.ratio(kind) for one in measured]], at_most)

    return [
        ttft("cold", "cold"),
        ttft("drafted", "drafted"),
        ttft("edited at the start", "edited"),
        ttft("edited at the start, early", "edited_early"),
        ratio("drafted", "drafted", TARGET_DRAFTED),
        ratio("edited at the start", "edited", TARGET_EDITED),
        ratio("edited at the start, early", "edited_early", TARGET_EDITED),
        Row("prompt tokens", [[float(one.drafted.prompt_tokens) for one in measured]]),
        Row("of these cached, drafted", [[float(one.drafted.cached_tokens) for one in measured]]),
    ]


class _Typist:
    def __init__(self, load: DraftLoad, stack: BenchStack, worker_url: str) -> None:
        self._load, self._stack, self._worker_url = load, stack, worker_url
        self._probe = StreamProbe(stack.redis_url)

    async def warm_up(self) -> None:
        """The engine's first long prompt takes longer, and the gateway has the model's tokenizer to read."""
        async with self._connected() as connection:
            await self._send(connection, self._text(0, 0))
        await asyncio.to_thread(self._wait_until_quiet)

    def _connected(self) -> connect:
        return connect(
            f"ws://{HOST}:{self._stack.port}/v1/ws",
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            additional_headers={"Authorization": f"Bearer {self._stack.api_key}"},
        )

    async def round(self, number: int) -> DraftRound:
        texts = [self._text(number, kind) for kind in range(4)]
        async with self._connected() as connection:
            sent: dict[str, Sent] = {}
            kinds = ["cold", "drafted", "edited", "edited_early"]
            for kind in kinds if number % 2 else reversed(kinds):
                text = texts[kinds.index(kind)]
                sent[kind] = await self._one(connection, kind, text)
                await asyncio.to_thread(self._wait_until_quiet)
        return _checked(DraftRound(**sent))

    async def _one(self, connection: ClientConnection, kind: str, text: str) -> Sent:
        if kind == "edited_early":
            await self._draft(connection, text)
            await asyncio.sleep(EARLY_SECONDS)
        elif kind != "cold":
            for step in range(1, STEPS + 1):
                before = self._done()
                await self._draft(connection, text[: len(text) * step // STEPS])
                await asyncio.to_thread(self._wait_for_draft, before)
        beginning = "No: " if kind.startswith("edited") else ""
        return await self._send(connection, f"{beginning}{text} and so it goes on.")

    async def _draft(self, connection: ClientConnection, text: str) -> None:
        frame = {"type": "draft", "model": self._stack.model, "messages": [], "text": text, "ref": "draft"}
        await connection.send(json.dumps(frame))

    async def _send(self, connection: ClientConnection, text: str) -> Sent:
        messages = [{"role": "user", "content": text}]
        frame = {"type": "generate", "model": self._stack.model, "messages": messages, "max_tokens": 2}
        began = time.perf_counter()
        await connection.send(json.dumps({**frame, "temperature": 0, "ignore_eos": True}))
        ttft = 0.0
        while True:
            heard: dict[str, Any] = json.loads(await asyncio.wait_for(connection.recv(), FRAME_SECONDS))
            if heard["type"] in {"error", "draft_off"}:
                raise NotComparableError(str(heard))
            if heard["type"] == "delta" and not ttft:
                ttft = time.perf_counter() - began
            if heard["type"] == "end":
                return Sent(ttft, heard["usage"]["prompt_tokens"], heard["usage"]["cached_tokens"])

    def _done(self) -> float:
        return metric(self._worker_url, "headrace_worker_prefills_ended_total", outcome="done")

    def _wait_for_draft(self, before: float) -> None:
        deadline = time.monotonic() + FRAME_SECONDS
        while self._done() <= before:
            if time.monotonic() > deadline:
                raise NotComparableError("a draft was not computed in time")
            time.sleep(POLL_SECONDS)

    def _wait_until_quiet(self) -> None:
        """A draft that was taken back may have a step to end."""
        begun, ended = "headrace_worker_prefills_begun_total", "headrace_worker_prefills_ended_total"
        while metric(self._worker_url, begun) > metric(self._worker_url, ended):
            time.sleep(POLL_SECONDS)
        # A worker says every second how busy it is, and one that is gets no drafts.
        while not self._is_idle():
            time.sleep(POLL_SECONDS)

    def _is_idle(self) -> bool:
        """Whether the worker has reported that its engine runs nothing."""
        rows: Any = self._probe.redis.hvals(redis_keys.workers_key())
        infos = [codec.decode(row, WorkerInfo) for row in rows]
        return bool(infos) and not any(info.num_requests_running or info.num_requests_waiting for info in infos)

    def _text(self, number: int, kind: int) -> str:
        words = random.Random(4 * number + kind)
        listed = _WORDS.split()
        return " ".join(words.choice(listed) for _ in range(self._load.words))


def _checked(one: DraftRound) -> DraftRound:
    if one.drafted.cached_tokens < 0.9 * one.drafted.prompt_tokens:
        raise NotComparableError(f"of a drafted prompt {one.drafted.cached_tokens} tokens were cached")
    if one.cold.cached_tokens > 64 or one.edited.cached_tokens > 64:
        raise NotComparableError(
            f"cached tokens: {one.cold.cached_tokens} of a cold prompt, {one.edited.cached_tokens}"
        )
    return one
