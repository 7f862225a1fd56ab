"""Prompt rendering agrees with the worker or is not used."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from apps.deployments.prompt_rendering import PromptRenderer, build_renderer
from headrace_wire.errors import InvalidRequestError
from headrace_wire.fleet import ModelAssets, TemplateProbe
from headrace_wire.messages import ChatTurn

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
TURNS = (ChatTurn("user", "hi"),)


def assets(template: str = TEMPLATE, probe_ids: tuple[int, ...] | None = None) -> ModelAssets:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    text = "<user>hi<assistant>"
    ids = tuple(tokenizer.encode(text).ids) if probe_ids is None else probe_ids
    return ModelAssets("f", tokenizer.to_str().encode(), template, probes=(TemplateProbe(TURNS, ids),))


def test_a_renderer_that_agrees_is_used() -> None:
    renderer = build_renderer(assets())
    assert renderer is not None
    assert len(renderer.render(TURNS)) == len("<user>hi<assistant>")


@pytest.mark.parametrize(
    "wrong",
    [
        assets(probe_ids=(1, 2, 3)),
        assets(template=TEMPLATE + "!"),
        assets(template="{% broken"),
        assets(template="{{ ''.__class__.__mro__ }}"),
        ModelAssets("f", b"", TEMPLATE),
    ],
    ids=["other ids", "other template", "syntax", "sandbox", "no tokenizer"],
)
def test_a_renderer_that_differs_or_fails_is_not_used(wrong: ModelAssets) -> None:
    assert build_renderer(wrong) is None


def test_the_template_may_refuse_a_conversation() -> None:
    with pytest.raises(InvalidRequestError, match="no robots") as error:
        PromptRenderer(assets()).render([ChatTurn("robot", "x")])
    assert error.value.param == "messages"
