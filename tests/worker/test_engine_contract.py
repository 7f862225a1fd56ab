"""What every engine promises of credit, holding, slots and continuation: one set of tests for all of them."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from headrace_wire.messages import FinishReason, StructuredOutput
from tests.worker.engines import (
    KV_TOKENS,
    SLOTS,
    EngineBench,
    check_nothing_left,
    contract_deployment,
    engine_processes,
    started,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.filterwarnings("ignore")]

ENGINES = [
    "simulated",
    "simulated-process",
    pytest.param("vllm", marks=pytest.mark.engine),
    pytest.param("vllm-async", marks=pytest.mark.engine),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES)
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[EngineBench]:
    deployment = contract_deployment(request.param, lambda: request.getfixturevalue("tiny_model"))
    async with started(request.param, deployment) as bench:
        yield bench


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def nothing_left(bench: EngineBench) -> AsyncIterator[None]:
    """Every test leaves an engine that holds nothing: no request, no block."""
    yield
    await check_nothing_left(bench)


def prompt(number: int, length: int = 12) -> list[int]:
    return random.Random(number).choices(range(100, 300), k=length)


async def test_generates_up_to_its_credit_and_not_further(bench: EngineBench) -> None:
    whole = await bench.answer(prompt(1))
    request = await bench.submit(prompt(1), credit=7)
    await bench.held(request)
    assert bench.outputs[request] == whole[:7]
    neighbour = await bench.answer(prompt(2))
    assert len(neighbour) == 60
    assert bench.outputs[request] == whole[:7], "many steps later"
    bench.engine.credit({request: 8})
    await bench.have(8, request)
    await bench.held(request)
    bench.engine.credit({request: 1000})
    assert await bench.finished(request) == [whole]
    assert bench.ends[request] is FinishReason.LENGTH


async def test_credit_as_long_as_the_answer_holds_nothing_up(bench: EngineBench) -> None:
    whole = await bench.answer(prompt(3), max_tokens=10)
    request = await bench.submit(prompt(3), max_tokens=10, credit=10)
    assert await bench.finished(request) == [whole]


async def test_credit_in_small_steps_gives_the_same_answer(bench: EngineBench) -> None:
    whole = await bench.answer(prompt(4))
    requests = [await bench.submit(prompt(4), credit=1) for _ in range(SLOTS)]
    for position in range(1, 60):
        await bench.have(position, *requests)
        bench.engine.credit(dict.fromkeys(requests, position + 1))
    assert await bench.finished(*requests) == [whole] * SLOTS


async def test_held_requests_leave_their_slots_to_others(bench: EngineBench) -> None:
    whole = [await bench.answer(prompt(number)) for number in range(10, 10 + 2 * SLOTS)]
    held = [await bench.submit(prompt(number), credit=5) for number in range(10, 10 + SLOTS)]
    stats = await bench.held(*held)
    assert stats.num_requests_running == stats.num_requests_waiting == 0
    assert [request.request_id for request in stats.held] == sorted(held)
    assert all(request.kv_cache_usage > 0 for request in stats.held)
    others = [await bench.submit(prompt(number)) for number in range(10 + SLOTS, 10 + 2 * SLOTS)]
    assert await bench.finished(*others) == whole[SLOTS:]
    bench.engine.credit(dict.fromkeys(held, 1000))
    assert await bench.finished(*held) == whole[:SLOTS]


async def test_resumed_requests_go_before_those_that_wait(bench: EngineBench) -> None:
    held = await bench.submit(prompt(20), credit=3, max_tokens=20)
    await bench.held(held)
    running = [await bench.submit(prompt(21 + i), max_tokens=300) for i in range(SLOTS)]
    waiting = [await bench.submit(prompt(31 + i), max_tokens=100) for i in range(2)]
    await bench.until(lambda: all(bench.outputs[request] for request in running))
    bench.engine.credit({held: 1000})
    await bench.finished(held, *running, *waiting)
    before = bench.order.index(held, bench.order.index(held) + 3)
    assert before < min(bench.order.index(request) for request in waiting)


async def test_aborted_while_held(bench: EngineBench) -> None:
    request = await bench.submit(prompt(40), credit=3)
    await bench.held(request)
    await bench.engine.abort([request])
    stats = await bench.idle()
    assert stats.kv_cache_usage == 0
    bench.engine.credit({request: 10, "never seen": 10})
    assert len(bench.outputs[request]) == 3


SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "seed": 5},
    "top_p": {"temperature": 0.9, "top_p": 0.95, "seed": 2**63 - 1},
    "top_k and top_p": {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "seed": -7},
    "great top_k and top_p": {"temperature": 1.0, "top_k": 2000, "top_p": 0.9, "seed": 8},
    "min_p and repetition_penalty": {"temperature": 1.0, "min_p": 0.02, "repetition_penalty": 1.3, "seed": 9},
    "constrained": {"temperature": 1.0, "seed": 13, "structured": StructuredOutput(regex="[a-z ]{1000,}")},
    "min_tokens and logit_bias": {"temperature": 0.8, "min_tokens": 55, "logit_bias": {150: 4.0}, "seed": 10},
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
async def test_continues_after_generated_tokens(bench: EngineBench, sampling: dict[str, Any]) -> None:
    whole = await bench.answer(prompt(50), **sampling)
    neighbours = [await bench.submit(prompt(52 + i), **sampling) for i in range(2)]
    for cut in (1, 17, 59):
        request = await bench.submit(prompt(50), generated_ids=whole[:cut], ahead=True, credit=cut + 1, **sampling)
        await bench.have(1, request)
        bench.engine.credit({request: 1000})
        assert await bench.finished(request) == [whole[cut:]]
        assert bench.ends[request] is FinishReason.LENGTH
    await bench.finished(*neighbours)


@pytest.mark.parametrize("bench", ENGINES[2:], indirect=True)  # the simulated engine does not sample
async def test_another_seed_gives_another_answer(bench: EngineBench) -> None:
    first, again, other = [await bench.answer(prompt(55), temperature=1.0, top_k=50, seed=seed) for seed in (1, 1, 2)]
    assert first == again != other


async def test_continued_without_credit_it_waits_for_some(bench: EngineBench) -> None:
    whole = await bench.answer(prompt(51))
    request = await bench.submit(prompt(51), generated_ids=whole[:20], credit=20)
    stats = await bench.held(request)
    assert stats.kv_cache_usage == 0
    bench.engine.credit({request: 40})
    await bench.have(20, request)
    bench.engine.credit({request: 60})
    assert await bench.finished(request) == [whole[20:]]


async def test_limit_moves_while_requests_run(bench: EngineBench) -> None:
    whole = [await bench.answer(prompt(number), max_tokens=240) for number in range(60, 60 + SLOTS)]
    requests = [await bench.submit(prompt(number), max_tokens=240) for number in range(60, 60 + SLOTS)]
    await bench.until(lambda: all(bench.outputs[request] for request in requests))
    bench.engine.limit(1)
    stats = await bench.until_stats(lambda stats: stats.num_requests_running == 1)
    assert stats.num_requests_waiting == SLOTS - 1
    await bench.until(lambda: bool(bench.ends))
    bench.engine.limit(1000)
    assert await bench.finished(*requests) == whole


async def test_spilled_under_pressure_they_answer_the_same(bench: EngineBench) -> None:
    length = KV_TOKENS // 5
    whole = [await bench.answer(prompt(number, length)) for number in range(70, 70 + SLOTS)]
    wanted = await bench.answer(prompt(80, 400))
    held = [await bench.submit(prompt(number, length), credit=20) for number in range(70, 70 + SLOTS)]
    stats = await bench.held(*held)
    assert stats.kv_cache_usage >= 0.85
    assert stats.num_requests_spilled == 0
    assert await bench.finished(await bench.submit(prompt(80, 400))) == [wanted]
    stats = await bench.engine.stats()
    assert 1 <= stats.num_requests_spilled < SLOTS
    assert [bool(request.kv_cache_usage) for request in stats.held] == sorted(
        bool(request.kv_cache_usage) for request in stats.held
    ), "the longest-held first"
    bench.engine.credit(dict.fromkeys(held, 1000))
    assert await bench.finished(*held) == whole


async def test_held_requests_give_way_to_one_that_grows(bench: EngineBench) -> None:
    length = KV_TOKENS // 5
    whole = await bench.answer(prompt(90), max_tokens=400)
    held = [await bench.submit(prompt(number, length), credit=20) for number in range(91, 91 + SLOTS)]
    await bench.held(*held)
    assert await bench.answer(prompt(90), max_tokens=400) == whole


async def test_running_requests_that_outgrow_the_kv_cache_are_preempted_and_answer_the_same(bench: EngineBench) -> None:
    length = KV_TOKENS // (SLOTS + 1)
    prompts = [prompt(number, length) for number in range(100, 100 + SLOTS)]
    whole = [await bench.answer(each, max_tokens=length) for each in prompts]
    before = (await bench.engine.stats()).num_preemptions
    requests = [await bench.submit(each, max_tokens=length) for each in prompts]
    assert await bench.finished(*requests) == whole
    assert (await bench.engine.stats()).num_preemptions > before


async def test_a_spilled_request_is_not_preempted(bench: EngineBench) -> None:
    held = [await bench.submit(prompt(number, KV_TOKENS // 5), credit=20) for number in range(120, 120 + SLOTS)]
    before = await bench.held(*held)
    await bench.answer(prompt(130, 400))
    stats = await bench.engine.stats()
    assert stats.num_requests_spilled >= 1
    assert stats.num_preemptions == before.num_preemptions


async def test_nothing_that_is_done_to_a_request_changes_its_answer(bench: EngineBench) -> None:
    """Credit in random steps, a moving limit, KV pressure, aborts that are continued; all at once."""
    chance = random.Random(7)
    prompts = [prompt(200 + number, chance.randint(10, 250)) for number in range(6)]
    whole = [await bench.answer(each, max_tokens=80) for each in prompts]
    open_requests: dict[str, tuple[int, list[int]]] = {}
    for number in [chance.randrange(6) for _ in range(5 * SLOTS)]:
        request = await bench.submit(prompts[number], max_tokens=80, credit=chance.randint(1, 30))
        open_requests[request] = number, []
    while open_requests:
        await bench.until_stats(lambda _: True)
        for request in chance.sample(sorted(open_requests), min(3, len(open_requests))):
            number, before = open_requests[request]
            position = len(before) + len(bench.outputs[request])
            if chance.random() < 0.1:
                await bench.engine.abort([request])
                if request not in bench.ends:
                    del open_requests[request]
                    before = before + bench.outputs[request]
                    again = await bench.submit(
                        prompts[number], max_tokens=80, generated_ids=before, ahead=True, credit=len(before) + 5
                    )
                    open_requests[again] = number, before
            else:
                bench.engine.credit({request: position + chance.randint(0, 30)})
        if chance.random() < 0.1:
            bench.engine.limit(chance.randint(1, SLOTS))
        for request in bench.ends.keys() & open_requests.keys():
            number, before = open_requests.pop(request)
            assert before + bench.outputs[request] == whole[number]
    bench.engine.limit(SLOTS)


async def test_finds_again_what_it_has_computed_for_the_same_salt_alone(bench: EngineBench) -> None:
    """Whole blocks of 32 of the prompt and of the answer; the last token is always computed."""
    first = prompt(200, 100)
    cold = await bench.submit(first, cache_salt="ours")
    (answer,) = await bench.finished(cold)
    warm = await bench.submit(first, cache_salt="ours")
    foreign = await bench.submit(first, cache_salt="another tenant's")
    next_turn = await bench.submit([*first, *answer, *prompt(201)], cache_salt="ours")
    await bench.finished(warm, foreign, next_turn)
    cached = bench.cached_tokens
    assert (cached[cold], cached[warm], cached[foreign]) == (0, 96, 0)
    assert cached[next_turn] == 128, "100 of the prompt, and 28 of the answer"
    assert KV_TOKENS <= bench.info.cache_tokens <= KV_TOKENS + 32


@pytest.mark.parametrize("bench", [ENGINES[2]], indirect=True)
async def test_all_held_costs_no_processor_time(bench: EngineBench) -> None:
    requests = [await bench.submit(prompt(100 + i), credit=4) for i in range(SLOTS)]
    await bench.held(*requests)
    (core,) = engine_processes()
    await asyncio.to_thread(core.cpu_percent, 0.5)  # OpenMP's threads spin for 0.2 s after their last step
    # A loop that polls takes 100 % all the time. What is left is read in ticks of 10 ms, from a machine others use too.
    assert min([await asyncio.to_thread(core.cpu_percent, 0.5) for _ in range(4)]) < 10.0
