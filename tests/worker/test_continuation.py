"""Streams that lose their engine or worker, at every token: the answer is as if they had not. Simulated engine."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from headrace_wire.messages import (
    AnyLogEntry,
    Delta,
    Ended,
    FinishReason,
    Started,
    StreamState,
    Timings,
    Usage,
)
from headrace_wire.request_queue import GivenBack
from headrace_wire.token_log import Append
from headrace_worker.simulated_core import prompt_seed, token_at
from headrace_worker.simulated_tokenizer import answer_alphabet, built_in_tokenizer
from tests.support.snapshots import simulated
from tests.worker.conftest import RunWorker
from tests.worker.desk import Answer, Desk
from tests.worker.mortal_engine import Fate, MortalEngine

FAST = {"ttft_ms": 0.5, "tpot_ms": 0.2}
PROMPT = (1, 2, 3)
TOKENIZER = built_in_tokenizer()


@dataclass
class Case:
    """An answer and the request for it."""

    engine_args: dict[str, Any]
    sampling: dict[str, Any]


CASES = {
    "words": Case({}, {"max_tokens": 12}),
    "characters of several tokens": Case({"answer": "é👩‍👩‍👧🇨🇭สิ"}, {"max_tokens": 100}),
    "cut in mid-character": Case({"answer": "ab👩‍👩‍👧"}, {"max_tokens": 9}),
    "a stop string": Case({"answer": "to the river END of it"}, {"max_tokens": 100, "stop": ("END", "river Ex")}),
    "a stop string that is kept": Case(
        {"answer": "to the river END"}, {"max_tokens": 100, "stop": ("er END",), "include_stop": True}
    ),
    "no stop string before min_tokens": Case(
        {"answer": "END and END"}, {"max_tokens": 100, "stop": ("END",), "min_tokens": 9}
    ),
    "what may become a stop string": Case({"answer": "a EN"}, {"max_tokens": 4, "stop": ("END",)}),
}


def check_equal(answer: Answer, reference: Answer) -> None:
    """Text, end and usage are those of the undisturbed answer."""
    answer.check_order(owners=None)
    assert answer.text == reference.text
    assert (answer.end.state, answer.end.finish_reason) == (reference.end.state, reference.end.finish_reason)
    assert answer.end.stop_reason == reference.end.stop_reason
    assert answer.end.usage == reference.end.usage


@pytest.mark.parametrize("takes_its_last_words", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_engine_dies_at_every_token(
    desk: Desk, run_worker: RunWorker, case: Case, takes_its_last_words: bool
) -> None:
    fate = Fate()
    deployment = simulated("sim", engine_args={**FAST, **case.engine_args})
    async with run_worker(deployment, create=lambda deployment: MortalEngine(deployment, fate)):
        stream_id = await desk.admit(PROMPT, **case.sampling)
        reference, ids = await desk.answer(stream_id), await desk.log.token_ids(stream_id)
        assert len(ids) == reference.end.usage.completion_tokens
        for position in range(1, len(ids)):
            fate.plan([position], takes_its_last_words=takes_its_last_words)
            stream_id = await desk.admit(PROMPT, **case.sampling)
            answer = await desk.answer(stream_id)
            check_equal(answer, reference)
            assert await desk.log.token_ids(stream_id) == ids
            assert len(answer.starts) == 2
        assert fate.deaths == len(ids) - 1


async def test_engine_dies_again_and_again(desk: Desk, run_worker: RunWorker) -> None:
    fate = Fate()
    deployment = simulated("sim", engine_args={**FAST, "answer": "é👩‍👩‍👧 END river"})
    async with run_worker(deployment, create=lambda deployment: MortalEngine(deployment, fate)):
        reference = await desk.answer(await desk.admit(max_tokens=100, stop=("r",)))
        fate.plan(range(1, 30))
        answer = await desk.answer(await desk.admit(max_tokens=100, stop=("r",)))
    check_equal(answer, reference)
    assert len(answer.starts) > 20, "attempts are counted only where nothing came forward"


async def test_many_streams_and_random_deaths(desk: Desk, run_worker: RunWorker) -> None:
    chance = random.Random(3)
    fate = Fate()
    fate.plan([chance.randint(1, 40) for _ in range(25)])
    prompts = [[chance.randrange(256) for _ in range(8)] for _ in range(60)]
    streams = [await desk.admit(prompt, max_tokens=40, stop=("heron",)) for prompt in prompts]
    async with run_worker(  # which finds as many as it can take, so that each death meets many
        simulated("sim", engine_args=FAST, max_num_seqs=16), create=lambda deployment: MortalEngine(deployment, fate)
    ):
        answers = [await desk.answer(stream_id) for stream_id in streams]
        fate.plan([])
        for prompt, answer in zip(prompts, answers, strict=True):
            check_equal(answer, await desk.answer(await desk.admit(prompt, max_tokens=40, stop=("heron",))))
    assert fate.deaths > 10
    assert sum(len(answer.starts) > 1 for answer in answers) > 20


async def test_worker_dies_at_every_token(desk: Desk, run_worker: RunWorker) -> None:
    """The worker is drained without grace; the next one goes on."""
    deployment = simulated("sim", engine_args={"ttft_ms": 1, "tpot_ms": 15})
    async with run_worker(deployment):
        reference = await desk.answer(await desk.admit(max_tokens=15))
    streams = [await desk.admit(max_tokens=15) for _ in range(6)]
    async with asyncio.TaskGroup() as tasks:
        answers = [tasks.create_task(desk.answer(stream_id)) for stream_id in streams]
        while not all(answer.done() for answer in answers):
            async with run_worker(deployment, drain_seconds=0.02):
                await asyncio.wait(answers, timeout=0.05)
    for answer in answers:
        check_equal(answer.result(), reference)
    assert any(len(answer.result().starts) > 1 for answer in answers)


# ---- what an earlier owner left


class Predecessor:
    """An owner that wrote a part of an answer and is gone; it gives the stream back when it is told to."""

    def __init__(self, desk: Desk, name: str = "worker-before") -> None:
        self.desk = desk
        self.name = name

    async def write(self, entries: Sequence[AnyLogEntry], ids: Sequence[int] = ()) -> None:
        appends = []
        for entry in entries:
            at = entry.seq - entry.tokens if isinstance(entry, Delta) else 0
            ttl = 600 if isinstance(entry, Ended) else 0
            appends.append(Append(entry, ids[at : entry.seq] if isinstance(entry, Delta) else (), at, ttl))
        assert set(await self.desk.log.append(appends)) == {1}

    async def serve(self, stream_id: str, tokens: int, *, with_ids: bool = True) -> int:
        """Claim a stream of `PROMPT`, write its first tokens and return the epoch."""
        (claimed,) = await self.desk.queue.claim(self.name, deployment="sim", want=1)
        assert claimed.stream_id == stream_id
        ids = simulated_ids(tokens)
        entries: list[AnyLogEntry] = [Started(stream_id, claimed.epoch, 0, self.name, claimed.attempt, 0.5)]
        entries += [
            Delta(stream_id, claimed.epoch, seq, 1, TOKENIZER.decode(ids[seq - 1 : seq]))
            for seq in range(1, tokens + 1)
        ]
        await self.write(entries, ids if with_ids else ())
        return claimed.epoch

    async def give_back(self, stream_id: str, epoch: int) -> None:
        outcome = await self.desk.queue.requeue(
            stream_id, epoch=epoch, incarnation=self.name, deployment="sim", max_attempts=3
        )
        assert outcome is GivenBack.QUEUED


def simulated_ids(count: int) -> list[int]:
    alphabet = answer_alphabet(TOKENIZER)
    return [token_at(prompt_seed(PROMPT), position, alphabet) for position in range(count)]


@pytest.fixture
async def predecessor(desk: Desk) -> Predecessor:
    before = Predecessor(desk)
    await desk.queue.enlist(before.name, lease_seconds=600, channels=[])
    return before


async def test_an_end_that_nobody_settled_is_settled_and_published_once(
    desk: Desk, run_worker: RunWorker, predecessor: Predecessor
) -> None:
    stream_id = await desk.admit(PROMPT, max_tokens=3)
    epoch = await predecessor.serve(stream_id, 3)
    end = Ended(
        stream_id, epoch, 4, StreamState.FINISHED, FinishReason.LENGTH, None, Usage(3, 3), Timings(0.5, 0.1, 0.2)
    )
    await predecessor.write([end])
    await predecessor.give_back(stream_id, epoch)
    async with run_worker():
        await desk.record_in(stream_id, StreamState.FINISHED)
    answer = await desk.answer(stream_id)
    answer.check_order()
    assert answer.end == end
    assert [entry for entry in await desk.delivered() if isinstance(entry, Ended)] == [end]


async def test_all_tokens_but_no_end(desk: Desk, run_worker: RunWorker, predecessor: Predecessor) -> None:
    stream_id = await desk.admit(PROMPT, max_tokens=5)
    await predecessor.give_back(stream_id, await predecessor.serve(stream_id, 5))
    async with run_worker():
        answer = await desk.answer(stream_id)
    answer.check_order(owners=2)
    assert answer.end.finish_reason is FinishReason.LENGTH
    assert answer.end.usage == Usage(3, 5)
    assert answer.end.timings.queue_time == 0.5, "of the first owner"


async def test_a_whole_stop_string_but_no_end(desk: Desk, run_worker: RunWorker, predecessor: Predecessor) -> None:
    text = TOKENIZER.decode(simulated_ids(5))
    stream_id = await desk.admit(PROMPT, max_tokens=50, stop=(text[-6:],), include_stop=True)
    await predecessor.give_back(stream_id, await predecessor.serve(stream_id, 5))
    async with run_worker():
        answer = await desk.answer(stream_id)
    answer.check_order(owners=2)
    assert (answer.end.finish_reason, answer.end.stop_reason) == (FinishReason.STOP, text[-6:])
    assert answer.text == text


async def test_missing_token_ids_fail_explicitly(desk: Desk, run_worker: RunWorker, predecessor: Predecessor) -> None:
    stream_id = await desk.admit(PROMPT, max_tokens=50)
    await predecessor.give_back(stream_id, await predecessor.serve(stream_id, 5, with_ids=False))
    async with run_worker():
        answer = await desk.answer(stream_id)
    answer.check_order(owners=2)
    assert answer.end.state is StreamState.FAILED
    assert answer.end.usage.completion_tokens == 5


async def test_text_that_its_tokens_do_not_say_fails_explicitly(
    desk: Desk, run_worker: RunWorker, predecessor: Predecessor
) -> None:
    stream_id = await desk.admit(PROMPT, max_tokens=50)
    epoch = await predecessor.serve(stream_id, 2)
    await predecessor.write([Delta(stream_id, epoch, 3, 1, "something else")], [0, 0, 300])
    await predecessor.give_back(stream_id, epoch)
    async with run_worker():
        answer = await desk.answer(stream_id)
    answer.check_order(owners=2)
    assert answer.end.state is StreamState.FAILED


async def test_a_log_that_is_gone_is_not_generated_again(
    desk: Desk, run_worker: RunWorker, predecessor: Predecessor
) -> None:
    stream_id = await desk.admit(PROMPT, max_tokens=50)
    epoch = await predecessor.serve(stream_id, 5)
    await desk.log.discard(stream_id)
    await predecessor.give_back(stream_id, epoch)
    async with run_worker():
        await desk.record_in(stream_id, StreamState.FAILED)
    assert await desk.log.tail(stream_id) is None


@pytest.mark.parametrize("continue_inexactly", [(), ("precision",), ("penalties", "precision", "of a later version")])
async def test_penalties_fail_explicitly_unless_asked_otherwise(
    desk: Desk, run_worker: RunWorker, predecessor: Predecessor, continue_inexactly: tuple[str, ...]
) -> None:
    stream_id = await desk.admit(PROMPT, max_tokens=20, presence_penalty=0.5, continue_inexactly=continue_inexactly)
    await predecessor.give_back(stream_id, await predecessor.serve(stream_id, 5))
    async with run_worker():
        answer = await desk.answer(stream_id)
    answer.check_order(owners=2)
    goes_on = "penalties" in continue_inexactly
    assert answer.end.state is (StreamState.FINISHED if goes_on else StreamState.FAILED)
    assert answer.end.usage.completion_tokens == (20 if goes_on else 5)
    assert not answer.starts[-1].is_exact
    assert goes_on or "penalt" in (answer.end.error.message if answer.end.error else "")


async def test_penalties_without_a_token_yet_start_anew(
    desk: Desk, run_worker: RunWorker, predecessor: Predecessor
) -> None:
    stream_id = await desk.admit(PROMPT, max_tokens=20, presence_penalty=0.5)
    await predecessor.give_back(stream_id, await predecessor.serve(stream_id, 0))
    async with run_worker():
        answer = await desk.answer(stream_id)
    assert answer.end.state is StreamState.FINISHED


async def test_cancelled_while_nobody_had_it(desk: Desk, run_worker: RunWorker, predecessor: Predecessor) -> None:
    """The cancel met the old owner; the new one learns of it and ends the stream after its last token."""
    stream_id = await desk.admit(PROMPT, max_tokens=4000)
    epoch = await predecessor.serve(stream_id, 5)
    await predecessor.give_back(stream_id, epoch)
    await desk.redis.hset(f"{{hr}}:stream:{stream_id}", "cancel", "client")
    async with run_worker():
        answer = await desk.answer(stream_id)
    answer.check_order(owners=2)
    assert answer.end.state is StreamState.CANCELLED
    assert answer.end.usage.completion_tokens >= 5


# ---- what kills engines


@pytest.mark.parametrize("poison_at", [1, 5])
async def test_poison_runs_out_of_attempts_and_its_neighbours_do_not(
    desk: Desk, run_worker: RunWorker, poison_at: int
) -> None:
    arguments = {"ttft_ms": 5, "tpot_ms": 5, "poison_id": 77, "poison_at": poison_at}
    async with run_worker(simulated("sim", engine_args=arguments)):
        reference = await desk.answer(await desk.admit(PROMPT, max_tokens=40))
        before = [await desk.admit(PROMPT, max_tokens=40) for _ in range(4)]
        poison = await desk.admit((1, 77), max_tokens=40)
        after = [await desk.admit(PROMPT, max_tokens=40) for _ in range(4)]
        answers = [await desk.answer(stream_id) for stream_id in before + after]
        killer = await desk.answer(poison)
        assert (await desk.answer(await desk.admit(PROMPT, max_tokens=40))).text == reference.text
    for answer in answers:
        check_equal(answer, reference)
    killer.check_order(owners=None)
    assert killer.end.state is StreamState.FAILED
    assert killer.end.error is not None
    assert killer.end.error.code == "engine_error"
    assert killer.end.usage.completion_tokens == poison_at - 1
    assert max(start.attempt for start in killer.starts) == 3
