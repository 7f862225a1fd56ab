"""What is the simulated engine's own; what it shares with vLLM is in test_engine_contract."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from headrace_wire.messages import ChatTurn, FinishReason, SamplingParams
from headrace_worker import simulated_process as process_module
from headrace_worker.engine import (
    EngineDeadError,
    EngineInfo,
    EngineOutput,
    EngineRefusedError,
    EngineRequest,
    RequestRefusedError,
)
from headrace_worker.simulated_engine import SimulatedEngine
from tests.support.snapshots import simulated
from tests.worker.engines import simulated_process, simulated_processes

LIMIT_SECONDS = 60


class Lab:
    """A started engine and everything that it delivered."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self.engine = engine
        self.batches: list[list[EngineOutput]] = []
        self.info: EngineInfo | None = None
        self._delivered = asyncio.Event()

    def deliver(self, outputs: list[EngineOutput]) -> None:
        self.batches.append(outputs)
        self._delivered.set()

    def outputs(self, request_id: str) -> list[EngineOutput]:
        return [output for batch in self.batches for output in batch if output.request_id == request_id]

    async def generate(self, *request_ids: str) -> list[list[int]]:
        """Wait until these requests have finished; return their ids."""
        async with asyncio.timeout(LIMIT_SECONDS):
            while not all(outputs and outputs[-1].finish_reason for outputs in map(self.outputs, request_ids)):
                self._delivered.clear()
                await self._delivered.wait()
        return [[i for output in self.outputs(request_id) for i in output.token_ids] for request_id in request_ids]


@asynccontextmanager
async def started(**settings: Any) -> AsyncIterator[Lab]:
    args = {"ttft_ms": 1, "tpot_ms": 1, **settings.pop("engine_args", {})}
    lab = Lab(SimulatedEngine(simulated("sim", engine_args=args, **settings)))
    try:
        lab.info = await lab.engine.start(lab.deliver)
        yield lab
    finally:
        await lab.engine.shutdown()


def request(request_id: str, prompt: list[int] | None = None, **sampling: Any) -> EngineRequest:
    return EngineRequest(request_id, prompt or [1, 2, 3], SamplingParams(**{"max_tokens": 12, **sampling}), "salt")


@pytest.mark.parametrize("process", [False, True])
async def test_a_token_depends_on_the_prompt_and_its_position_alone(process: bool) -> None:
    async with started(engine_args={"process": process}) as lab:
        for i in range(3):
            await lab.engine.submit(request(f"same-{i}"))
        await lab.engine.submit(request("longer", max_tokens=40))
        await lab.engine.submit(request("other", [9]))
        same, again, third, longer, other = await lab.generate("same-0", "same-1", "same-2", "longer", "other")
    assert same == again == third == longer[:12] == ANSWER
    assert same != other
    assert len(longer) == 40


async def test_text_is_made_of_words() -> None:
    async with started() as lab:
        await lab.engine.submit(request("r", max_tokens=40))
        (ids,) = await lab.generate("r")
        assert lab.info is not None
        text = lab.info.tokenizer.decode(ids)
    assert text.isascii()
    assert len(text.split()) == 40


@pytest.mark.parametrize("process", [False, True])
async def test_all_running_requests_step_together(process: bool) -> None:
    async with started(engine_args={"tpot_ms": 30, "process": process}, max_num_seqs=4) as lab:
        for i in range(6):
            await lab.engine.submit(request(f"r{i}", max_tokens=20))
        stats = await lab.engine.stats()
        assert (stats.num_requests_running, stats.num_requests_waiting) == (4, 2)
        await lab.generate(*(f"r{i}" for i in range(6)))
        assert max(len(batch) for batch in lab.batches) == 4
        assert (await lab.engine.stats()).num_requests_running == 0


async def test_ends() -> None:
    args = {"answer_tokens": 5}
    async with started(engine_args=args, max_model_len=20) as lab:
        await lab.engine.submit(request("ends"))
        await lab.engine.submit(request("goes on", ignore_eos=True))
        await lab.engine.submit(request("context", list(range(15)), ignore_eos=True))
        await lab.engine.submit(request("stop token", stop_token_ids=(ANSWER[0],)))
        ends, goes_on, context, stop = await lab.generate("ends", "goes on", "context", "stop token")
        reasons = [lab.outputs(name)[-1].finish_reason for name in ("ends", "goes on", "context", "stop token")]
    assert [len(ids) for ids in (ends, goes_on, context, stop)] == [6, 12, 5, 1]
    assert reasons == [FinishReason.STOP, FinishReason.LENGTH, FinishReason.LENGTH, FinishReason.STOP]


@pytest.mark.parametrize(("prompt", "code"), [([], "invalid_request_error"), ([1] * 4096, "context_length_exceeded")])
async def test_refused_requests(prompt: list[int], code: str) -> None:
    async with started() as lab:
        with pytest.raises(RequestRefusedError) as refusal:
            await lab.engine.submit(EngineRequest("r", prompt, SamplingParams(max_tokens=1), ""))
    assert refusal.value.code == code


@pytest.mark.parametrize("args", [{"speed": 1}, {"ttft_ms": "soon"}])
async def test_refused_arguments(args: dict[str, Any]) -> None:
    with pytest.raises(EngineRefusedError):
        await SimulatedEngine(simulated("sim", engine_args=args)).start(lambda _: None)


async def test_death_of_the_child_is_told() -> None:
    async with started(engine_args={"process": True}) as lab:
        await lab.engine.submit(request("r", max_tokens=1000))
        simulated_process().kill()
        async with asyncio.timeout(LIMIT_SECONDS):
            assert await lab.engine.wait_death()
        with pytest.raises(EngineDeadError):
            await lab.engine.submit(request("s"))
        with pytest.raises(EngineDeadError):
            await lab.engine.stats()
        await lab.engine.abort(["r"])


async def test_shutdown_ends_the_child() -> None:
    async with started(engine_args={"process": True}):
        child = simulated_process()
    assert not child.is_running()


async def test_a_child_that_does_not_answer_at_its_start_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "START_SECONDS", 0.0)
    with pytest.raises(EngineDeadError):
        await SimulatedEngine(simulated("sim", engine_args={"process": True})).start(lambda _: None)
    assert simulated_processes() == []


async def test_a_models_own_tokenizer_is_used(tiny_model: Path) -> None:
    async with started(model=str(tiny_model)) as lab:
        await lab.engine.submit(request("r", max_tokens=30))
        (ids,) = await lab.generate("r")
        assert lab.info is not None
        rendered = lab.info.renderer.render([ChatTurn("user", "Hello")])
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    assert tokenizer.decode(ids).isprintable()
    assert tokenizer.decode(rendered, skip_special_tokens=False).endswith("<|im_start|>assistant\n")


ANSWER = [269, 262, 309, 276, 308, 260, 266, 304, 281, 294, 278, 262]
"""Written down, so that a change of the rule (which would break answers that are half written) is seen."""
