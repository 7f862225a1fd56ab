"""Engine options on the real engine: what the dry run says of them, and that what it accepts starts and answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.deployments.option_check import deployment_check
from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.checking import judge
from headrace_worker.engine import RequestRefusedError
from tests.worker.conftest import engine_deployment
from tests.worker.desk import Desk
from tests.worker.engines import check_nothing_left, started

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]  # vLLM's own, in this process

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
PROMPT = [5, 6, 7, 8, 9, 10] * 20


@pytest.fixture
def deployment(tiny_model: Path) -> Callable[..., DeploymentConfig]:
    def make(*, quantization: str | None = None, dtype: str = "auto", **engine_args: Any) -> DeploymentConfig:
        arguments = {"num_gpu_blocks_override": 80, **engine_args}
        return engine_deployment(tiny_model, quantization=quantization, dtype=dtype, engine_args=arguments)

    return make


Deployment = Callable[..., DeploymentConfig]


@pytest.mark.parametrize(
    ("options", "reason", "advice"),
    [
        ({"max_num_batched_tokens": 4}, "must be greater than or equal to max_num_seqs", "Raise the tokens per step"),
        ({"block_size": 16}, "No common block size for 16", "on a CPU 32"),
        ({"tensor_parallel_size": 2}, "one process", ""),
        ({"pipeline_parallel_size": 2}, "one process", ""),
        ({"quantization": "awq"}, "Cannot find the config file for awq", "not quantised this way"),
        ({"quantization": "gptq"}, "Cannot find the config file for gptq", "not quantised this way"),
        ({"quantization": "fp8_per_tensor"}, "float32 is not supported", "Set the number format"),
        ({"quantization": "fp8_per_tensor", "dtype": "bfloat16"}, "no FP8 kernels", "empty on CPUs"),
        ({"quantization": "int8_per_channel_weight_only"}, "float32 is not supported", "Set the number format"),
        ({"quantization": "bitsandbytes"}, "Unknown quantization method", "does not have it"),
        ({"speculative_config": {**NGRAM, "method": "unheard-of"}}, "method", ""),
    ],
    ids=str,
)
def test_what_a_cpu_cannot_do_is_refused_in_the_engines_words(
    deployment: Deployment, options: dict[str, Any], reason: str, advice: str
) -> None:
    report = judge(deployment(**options))
    assert not report.is_accepted
    assert reason in report.problem
    assert advice in report.advice


def test_a_model_that_is_not_there_is_said(deployment: Deployment, tmp_path: Path) -> None:
    missing = {"method": "draft_model", "model": str(tmp_path / "missing"), "num_speculative_tokens": 2}
    report = judge(deployment(speculative_config=missing))
    assert not report.is_accepted
    assert "name of the model" in report.advice, report.problem


async def test_the_check_of_the_form_says_what_vllm_makes_of_it(deployment: Deployment) -> None:
    """In the process that the gateway starts."""
    report = await deployment_check(
        deployment(speculative_config=NGRAM, max_num_batched_tokens=1024, gpu_memory_reserve_gib=2.0)
    )
    assert report.is_accepted, report.problem
    assert report.engine.endswith(" on CPU")
    assert report.settings["max_num_batched_tokens"] == "1024"
    assert report.settings["speculative decoding"] == "ngram"
    assert "gpu_memory_reserve_gib" in report.notes[0]


async def test_speculation_changes_no_greedy_answer(deployment: Deployment, engine_desk: Desk) -> None:
    """With blocks and steps of other sizes; also where credit comes in small portions."""
    asked = await engine_desk.admit(PROMPT, deployment="tiny", temperature=0.0, max_tokens=80, ignore_eos=True)
    await engine_desk.answer(asked)
    expected = await engine_desk.log.token_ids(asked)
    options = {"speculative_config": NGRAM, "block_size": 64, "max_num_batched_tokens": 256}
    async with started("vllm", deployment(**options)) as bench:
        assert not bench.info.traits.draws_by_position, "so that nobody takes a seeded answer for exact"
        assert await bench.answer(PROMPT, max_tokens=80) == expected
        with pytest.raises(RequestRefusedError, match="speculative decoding"):
            await bench.submit(PROMPT, temperature=1.0, min_p=0.1)
        request_id = await bench.submit(PROMPT, max_tokens=80, credit=3)
        for credit in (3, 4, 9, 31):
            bench.engine.credit({request_id: credit})
            await bench.have(credit, request_id)
            await bench.held(request_id)
        bench.engine.credit({request_id: 1000})
        assert await bench.finished(request_id) == [expected]
        await check_nothing_left(bench)


async def test_a_small_kv_cache_gives_up_its_exactness(deployment: Deployment) -> None:
    async with started("vllm", deployment(kv_cache_dtype="fp8")) as bench:
        assert len(await bench.answer(PROMPT, max_tokens=20)) == 20
        assert not bench.info.traits.is_batch_invariant
        assert bench.info.traits.draws_by_position, "which speculation alone gives up"
