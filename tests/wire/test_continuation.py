import pytest

from headrace_wire.continuation import Exact, NotExact, exactness
from headrace_wire.messages import SamplingParams, StructuredOutput


@pytest.mark.parametrize("field", ["presence_penalty", "frequency_penalty"])
def test_penalties_on_generated_tokens_are_not_exact(field: str) -> None:
    answer = exactness(SamplingParams(max_tokens=8, **{field: -0.5}))  # type: ignore[arg-type]  # by name
    assert isinstance(answer, NotExact)
    assert field in answer.reason


def test_everything_else_is_exact() -> None:
    sampling = SamplingParams(
        max_tokens=8,
        temperature=0.7,
        top_p=0.9,
        top_k=50,
        min_p=0.1,
        min_tokens=3,
        repetition_penalty=1.2,
        stop=("END",),
        stop_token_ids=(2,),
        seed=5,
        ignore_eos=True,
        logit_bias={1: 2.0},
        structured=StructuredOutput(json_object=True),
    )
    assert isinstance(exactness(sampling), Exact)
