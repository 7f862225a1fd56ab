"""Our sampler inside vLLM's own, on logits made up here: what it draws, and what is left to vLLM."""

from typing import Any

import pytest

from headrace_worker.engine_core.positional_draw import draw, position_key
from headrace_worker.engine_core.request_fields import SEED, TOP_K, TOP_P

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore"),  # vLLM's own, in this process
]

VOCABULARY = 2_000
PROMPT = [1, 2, 3]
GREEDY: dict[str, Any] = {"temperature": 0.0}
FOREIGN: dict[str, Any] = {"temperature": 0.7}
OURS: list[dict[str, Any]] = [
    {"temperature": 1.0, "extra_args": {SEED: 7, TOP_K: 0, TOP_P: 1.0}},
    {"temperature": 0.6, "extra_args": {SEED: 8, TOP_K: 40, TOP_P: 1.0}},
    {"temperature": 1.3, "extra_args": {SEED: 9, TOP_K: 0, TOP_P: 0.8}},
]


def sample(rows: list[dict[str, Any]], outputs: list[list[int]], *, logprobs_mode: str = "raw_logprobs") -> list[int]:
    """Return what vLLM's sampler gives for rows of a batch whose answers so far are `outputs`."""
    import torch  # noqa: PLC0415
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors  # noqa: PLC0415
    from vllm.v1.sample.metadata import SamplingMetadata  # noqa: PLC0415
    from vllm.v1.sample.sampler import Sampler  # noqa: PLC0415

    from headrace_worker.engine_core.sampler import PositionalSampler  # noqa: PLC0415

    ours = PositionalSampler(None, torch.device("cpu"), False)
    added = [(i, SamplingParams(**row), PROMPT, outputs[i]) for i, row in enumerate(rows)]
    ours.update_state(BatchUpdate(len(rows), removed=[], added=added, moved=[]))
    temperature = torch.tensor([row["temperature"] for row in rows])
    unused = dict.fromkeys(["top_p", "top_k", "max_num_logprobs", "prompt_token_ids", "allowed_token_ids_mask"])
    penalties = {f"{name}_penalties": torch.empty(0) for name in ("frequency", "presence", "repetition")}
    metadata = SamplingMetadata(
        temperature=temperature,
        all_greedy=bool((temperature == 0).all()),
        all_random=bool((temperature > 0).all()),
        generators={},
        no_penalties=True,
        output_token_ids=outputs,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors([ours]),
        **unused,
        **penalties,
    )
    sampler = Sampler(logprobs_mode=logprobs_mode)
    return [int(token) for token in sampler(logits(len(rows)), metadata).sampled_token_ids.flatten()]


def logits(rows: int) -> Any:
    import torch  # noqa: PLC0415

    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 3


def expected(rows: list[dict[str, Any]], outputs: list[list[int]]) -> list[int | None]:
    """Return each row's token; None for one that vLLM draws."""
    tokens: list[int | None] = []
    for row, output, values in zip(rows, outputs, logits(len(rows)), strict=True):
        if row["temperature"] == 0:
            tokens.append(int(values.argmax()))
        elif extra := row.get("extra_args"):
            scaled = values.div(row["temperature"]).numpy()
            key = position_key(extra[SEED], len(PROMPT) + len(output))
            tokens.append(draw(scaled, key, top_k=extra[TOP_K], top_p=extra[TOP_P]))
        else:
            tokens.append(None)
    return tokens


@pytest.mark.parametrize(
    "rows",
    [OURS, [GREEDY, *OURS], [OURS[0], GREEDY, GREEDY, OURS[1]], [GREEDY], [FOREIGN, *OURS], [OURS[2], FOREIGN, GREEDY]],
    ids=["ours", "greedy first", "greedy between", "greedy alone", "foreign first", "foreign and greedy"],
)
@pytest.mark.parametrize("logprobs_mode", ["raw_logprobs", "processed_logprobs"])
def test_every_row_gets_its_token(rows: list[dict[str, Any]], logprobs_mode: str) -> None:
    """Also beside rows that vLLM has to draw for, and where vLLM is to say what it drew from."""
    outputs = [[5] * i for i in range(len(rows))]
    found, wanted = sample(rows, outputs, logprobs_mode=logprobs_mode), expected(rows, outputs)
    assert [token for token, want in zip(found, wanted, strict=True) if want is not None] == [
        want for want in wanted if want is not None
    ]


def test_vllm_draws_for_nobody_where_every_draw_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler  # noqa: PLC0415

    drawn = []

    def note(self: Any, values: Any, *_: Any) -> tuple[Any, None]:
        drawn.append(len(values))
        return values.argmax(-1), None

    monkeypatch.setattr(TopKTopPSampler, "forward_cpu", note)
    monkeypatch.setattr(TopKTopPSampler, "forward_native", note)
    for rows in (OURS, [GREEDY, *OURS]):
        sample(rows, [[] for _ in rows])
    assert drawn == []
    sample([FOREIGN, *OURS], [[] for _ in range(4)])
    assert drawn == [4]
