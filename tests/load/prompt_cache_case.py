"""Prompt caches: the first token with a pinned prefix and without, and what another tenant can tell of it.

From a request to the gateway until its first token over SSE. A cold prompt is as long as the pinned one, and says what
was never said before. Nothing is pinned to cores: engine, servers and client share them.

The other tenant asks in turn with a prefix that the first one has just had computed, and with one that nobody had: what
it can tell apart by its times is the share of pairs in which the first was the faster, 0.5 where there is nothing.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
from msgspec import Struct, json
from msgspec.structs import replace

from headrace_wire.cache_salt import cache_salt
from headrace_wire.messages import ChatTurn
from headrace_wire.prompt_caches import PromptCacheConfig
from headrace_wire.snapshot import DeploymentConfig
from tests.load.checkpoint_case import CheckpointLoad
from tests.load.placement import Placement
from tests.load.report import Row
from tests.load.stack import HOST, SECRET_KEY, BenchStack, running_stack
from tests.support.snapshots import KEY_A, KEY_B, TENANT_A

TARGET_RATIO = 8.0
CACHE = "pinned"
WARM_REQUESTS = 5

_WORDS = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which"
    " one you were all her she there would their we him been has when who will no more if out so what up said its about"
    " than into them can only other time new some could these two may first then do any like my now over such our man"
)

Progress = Callable[[str], None]


class PromptCacheLoad(Struct, frozen=True):
    """What is asked."""

    model: Path
    """A model's folder: nothing is downloaded."""
    prefix_words: int = 2000
    """A word of these is a token."""
    probe_words: int = 256
    probes: int = 30
    """Of another tenant, in all rounds together."""

    @property
    def deployment(self) -> DeploymentConfig:
        """The model, with room for a few such prompts."""
        return replace(CheckpointLoad(self.model).deployment, max_model_len=4096)


class PromptCacheRound(Struct, frozen=True):
    """One round's figures. Times are seconds to the first token."""

    cold: float
    warm: float
    """Median of some requests."""
    cached_tokens: int
    """Of the warm requests' prompts."""
    other_hits: int
    """Requests of the other tenant that found a block."""
    other_told_apart: float
    other_ratio: float
    """Its median time for prefixes that are warm for somebody else, over that for prefixes that nobody had."""

    @property
    def ratio(self) -> float:
        """How many times sooner."""
        return self.cold / self.warm


class _Seen(Struct, frozen=True):
    seconds: float
    cached_tokens: int


def run_rounds(load: PromptCacheLoad, *, rounds: int, progress: Progress) -> list[PromptCacheRound]:
    """Measures all rounds on one stack."""
    progress(f"prompt caches: starting {load.model.name}")
    with running_stack(load.deployment, Placement(None, None), prompt_caches=[_pinned(load)]) as stack:
        asking = _Asking(stack)
        done = []
        for number in range(1, rounds + 1):
            progress(f"prompt caches: {load.prefix_words} words of {load.model.name}, round {number} of {rounds}")
            done.append(_measure(load, asking, number, probes=-(-load.probes // rounds)))
        return done


def table_rows(measured: Sequence[PromptCacheRound]) -> list[Row]:
    """Returns the table's lines."""
    return [
        Row("TTFT, cold, s", [[one.cold for one in measured]]),
        Row("TTFT, pinned, s", [[one.warm for one in measured]]),
        Row("times sooner", [[one.ratio for one in measured]], at_least=TARGET_RATIO),
        Row("tokens found", [[float(one.cached_tokens) for one in measured]]),
        Row("another tenant's requests that found any", [[float(one.other_hits) for one in measured]], at_most=0.0),
        Row("its TTFT, warm for others / for nobody", [[one.other_ratio for one in measured]]),
        Row("its pairs with the warm one faster, share", [[one.other_told_apart for one in measured]]),
    ]


class _Asking:
    def __init__(self, stack: BenchStack) -> None:
        self._url = f"http://{HOST}:{stack.port}/v1/chat/completions"
        self._model = stack.model

    def ask(self, key: str, text: str | None, *, cache: str | None = None) -> _Seen:
        """Asks with a system message or a prompt cache's; returns when the first token came, and what was found."""
        messages = [] if text is None else [{"role": "system", "content": text}]
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [*messages, {"role": "user", "content": "What is it?"}],
            "max_tokens": 2,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if cache is not None:
            body["prompt_cache"] = cache
        began = time.perf_counter()
        first, cached = 0.0, -1
        headers = {"authorization": f"Bearer {key}"}
        with httpx.stream("POST", self._url, json=body, headers=headers, timeout=120) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.decode(line.removeprefix("data: "))
                if not first and any(choice["delta"].get("content") for choice in chunk.get("choices", ())):
                    first = time.perf_counter() - began
                if chunk.get("usage"):
                    cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
        if not first or cached < 0:
            raise RuntimeError(f"no answer: {answer.status_code}")
        return _Seen(first, cached)


def _measure(load: PromptCacheLoad, asking: _Asking, number: int, *, probes: int) -> PromptCacheRound:
    ours, theirs = KEY_A.reveal(), KEY_B.reveal()
    cold = asking.ask(ours, _text(load.prefix_words, f"cold {number}"))
    warm = [asking.ask(ours, None, cache=CACHE) for _ in range(WARM_REQUESTS)]
    hits = int(asking.ask(theirs, _text(load.prefix_words, CACHE)).cached_tokens > 0) if number == 1 else 0
    with_warm: list[_Seen] = []
    with_nobodys: list[_Seen] = []
    for probe in range(probes):
        known, unknown = (_text(load.probe_words, f"{word} {number} {probe}") for word in ("known", "unknown"))
        asking.ask(ours, known)
        pair = [(known, with_warm), (unknown, with_nobodys)]
        for text, seen in pair if probe % 2 else reversed(pair):
            seen.append(asking.ask(theirs, text))
    faster = sum(one.seconds < other.seconds for one, other in zip(with_warm, with_nobodys, strict=True))
    medians = [statistics.median(one.seconds for one in seen) for seen in (with_warm, with_nobodys)]
    return PromptCacheRound(
        cold.seconds,
        statistics.median(one.seconds for one in warm),
        min(one.cached_tokens for one in warm),
        hits + sum(one.cached_tokens > 0 for one in [*with_warm, *with_nobodys]),
        faster / probes,
        medians[0] / medians[1],
    )


def _pinned(load: PromptCacheLoad) -> PromptCacheConfig:
    return PromptCacheConfig(
        id=CACHE,
        tenant_id=TENANT_A,
        deployment=load.deployment.name,
        name=CACHE,
        version=1,
        messages=(ChatTurn("system", _text(load.prefix_words, CACHE)),),
        pinned=True,
        cache_salt=cache_salt(SECRET_KEY.encode(), TENANT_A),
    )


def _text(words: int, seed: str) -> str:
    return " ".join(random.Random(seed).choices(_WORDS.split(), k=words))
