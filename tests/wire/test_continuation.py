"""What is exact and what is not."""

import pytest

from headrace_wire.continuation import EXACT_ENGINE, EngineTraits, Exact, NotExact, exactness
from headrace_wire.messages import Inexact, SamplingParams, StructuredOutput

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)
SAMPLED = SamplingParams(
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
BFLOAT16 = EngineTraits(is_batch_invariant=False)
SPECULATIVE = EngineTraits(draws_by_position=False)


@pytest.mark.parametrize("field", ["presence_penalty", "frequency_penalty"])
def test_penalties_on_generated_tokens_are_not_exact(field: str) -> None:
    answer = exactness(SamplingParams(max_tokens=8, **{field: -0.5}), EXACT_ENGINE)  # type: ignore[arg-type]  # by name
    assert isinstance(answer, NotExact)
    assert field in answer.reason


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_everything_else_is_exact(sampling: SamplingParams) -> None:
    assert isinstance(exactness(sampling, EXACT_ENGINE), Exact)


@pytest.mark.parametrize(
    ("traits", "sampling", "kinds"),
    [
        (BFLOAT16, GREEDY, {Inexact.PRECISION}),
        (BFLOAT16, SAMPLED, {Inexact.PRECISION}),
        (SPECULATIVE, GREEDY, set()),
        (SPECULATIVE, SAMPLED, {Inexact.SAMPLING}),
        (
            EngineTraits(is_batch_invariant=False, draws_by_position=False),
            SAMPLED,
            {Inexact.PRECISION, Inexact.SAMPLING},
        ),
    ],
)
def test_what_the_engine_cannot_is_not_exact(
    traits: EngineTraits, sampling: SamplingParams, kinds: set[Inexact]
) -> None:
    answer = exactness(sampling, traits)
    assert (answer.kinds if isinstance(answer, NotExact) else set()) == kinds
