"""The simulated engine's prefix cache: what a real one would find again."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from headrace_worker.simulated_cache import SimulatedCache
from tests.support.snapshots import simulated
from tests.worker.engines import EngineBench, started

PROMPT = list(range(1000, 1100))


def test_whole_blocks_are_found_again_but_for_the_last_token() -> None:
    cache = SimulatedCache(16, capacity=100)
    assert cache.find("salt", PROMPT) == 0
    cache.store("salt", PROMPT)
    assert cache.find("salt", PROMPT) == 96
    assert cache.find("salt", PROMPT[:96]) == 80, "the last token is computed, and its block with it"
    assert cache.find("salt", [*PROMPT[:40], *PROMPT]) == 32
    assert cache.find("salt", PROMPT[1:]) == 0
    assert cache.find("other salt", PROMPT) == 0


def test_the_least_recently_used_go_first_and_ends_before_beginnings() -> None:
    cache = SimulatedCache(16, capacity=6)
    one, other = PROMPT[:65], list(range(65))
    cache.store("salt", one)
    cache.store("salt", other)
    assert (cache.find("salt", other), cache.find("salt", one)) == (64, 32)
    cache.store("salt", one)
    assert (cache.find("salt", one), cache.find("salt", other)) == (64, 32)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5), st.integers(1, 200)), max_size=30))
def test_never_more_than_fits_and_nothing_of_another_salt(prompts: list[tuple[str, int, int]]) -> None:
    cache = SimulatedCache(16, capacity=8)
    computed: set[tuple[str, int]] = set()
    for salt, token, length in prompts:
        if (salt, token) not in computed:
            assert cache.find(salt, [token] * length) == 0
        cache.store(salt, [token] * length)
        computed.add((salt, token))
        assert len(cache) <= 8


async def _ttft(bench: EngineBench, prompt: list[int], salt: str) -> tuple[float, int]:
    loop = asyncio.get_running_loop()
    began = loop.time()
    request = await bench.submit(prompt, cache_salt=salt, max_tokens=2)
    await bench.until(lambda: bool(bench.outputs[request]))
    return loop.time() - began, bench.cached_tokens[request]


async def test_what_is_not_found_takes_its_time() -> None:
    """500 us for each of 100 tokens: never less than 50 ms where nothing is found."""
    arguments = {"ttft_ms": 1, "tpot_ms": 1, "kv_tokens": 4096, "block_tokens": 16, "prefill_us": 500}
    async with started("simulated", simulated("sim", engine_args=arguments)) as bench:
        assert bench.info.cache_tokens == 4096
        cold, nothing = await _ttft(bench, PROMPT, "salt")
        _, found = await _ttft(bench, PROMPT, "salt")
        foreign, foreign_found = await _ttft(bench, PROMPT, "other salt")
        assert (nothing, found, foreign_found) == (0, 96, 0)
        assert min(cold, foreign) >= 0.05


async def test_the_next_turn_finds_the_answer() -> None:
    arguments = {"ttft_ms": 1, "tpot_ms": 1, "kv_tokens": 4096, "block_tokens": 16}
    async with started("simulated", simulated("sim", engine_args=arguments)) as bench:
        first = await bench.submit(PROMPT, max_tokens=61)
        (answer,) = await bench.finished(first)
        second = await bench.submit([*PROMPT, *answer, 7], max_tokens=1)
        await bench.finished(second)
        assert bench.cached_tokens[second] == 160, "100 tokens of the prompt, 60 of the answer"
