"""Prefix affinity over the whole path: a gateway, two workers with simulated engines, requests as clients send them."""

from collections.abc import Iterator

import httpx
import pytest

from headrace_wire.snapshot import DeploymentConfig
from tests.load.placement import Placement
from tests.load.stack import HOST, BenchStack, running_stack
from tests.support.snapshots import KEY_A, KEY_B, simulated

BLOCK = 32
TURNS = 5
WORDS = ["wheel", "water", "leads", "channel", "mill", "stone", "river", "gate"]

DEPLOYMENT: DeploymentConfig = simulated(
    "pair",
    engine_args={"ttft_ms": 5, "tpot_ms": 1, "block_tokens": BLOCK, "kv_tokens": 100_000, "answer_tokens": 40},
    max_model_len=16_000,
    max_num_seqs=16,
)


@pytest.fixture(scope="module")
def pair() -> Iterator[BenchStack]:
    """Two workers; a stream is left for so long that no busy machine makes it expire."""
    with running_stack(DEPLOYMENT, Placement.of_this_machine(), {"HEADRACE_PREFER_MS": "10000"}, workers=2) as stack:
        yield stack


def ask(stack: BenchStack, messages: list[dict[str, str]], *, key: str = KEY_A.reveal()) -> tuple[str, int, int]:
    """Return an answer, how many tokens its prompt has, and how many of them were cached."""
    answer = httpx.post(
        f"http://{HOST}:{stack.port}/v1/chat/completions",
        json={"model": stack.model, "messages": messages, "max_tokens": 60},
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
    )
    answer.raise_for_status()
    body = answer.json()
    usage = body["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return body["choices"][0]["message"]["content"], usage["prompt_tokens"], cached


def converse(stack: BenchStack) -> list[tuple[int, int, int]]:
    """Hold a conversation; return for each turn the tokens of the prompt, those of the one before, and those cached."""
    messages = [{"role": "system", "content": " ".join(["conversation", *WORDS * 30])}]
    turns, before = [], 0
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"turn {turn}: " + " ".join(WORDS)})
        text, prompt_tokens, cached = ask(stack, messages)
        messages.append({"role": "assistant", "content": text})
        turns.append((prompt_tokens, before, cached))
        before = prompt_tokens
    return turns


def test_turns_come_back_to_the_worker_that_has_computed_the_ones_before(pair: BenchStack) -> None:
    (_, _, nothing), *later = converse(pair)
    assert nothing == 0
    for _, before, cached in later:
        assert cached >= before // BLOCK * BLOCK - BLOCK


def test_another_tenant_finds_nothing(pair: BenchStack) -> None:
    """The same prompt, under another tenant's key: on whichever worker, it is computed anew."""
    messages = [{"role": "user", "content": " ".join(["shared", *WORDS * 30])}]
    assert ask(pair, messages)[2] == 0
    assert ask(pair, messages)[2] > 200
    assert ask(pair, messages, key=KEY_B.reveal())[2] == 0
    assert ask(pair, messages, key=KEY_B.reveal())[2] > 200
