"""What is certain of a prompt whose last message goes on: with a real tokenizer, whatever is typed next."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from apps.deployments.prompt_rendering import OPEN_END, PromptRenderer
from headrace_wire.fleet import ModelAssets
from headrace_wire.messages import ChatTurn

EARLIER = [ChatTurn("system", "You are of few words."), ChatTurn("user", "Hi"), ChatTurn("assistant", "Hello!")]

PIECES = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [" ", "  ", "    ", "\n", "\n\n", " \n \n", "\t", "'", "'re", "1234", "==", "....", "漢字", "👩‍👩‍👧", "e\u0301"]
    ),
    st.sampled_from(
        ["the water ", "wheel", "def flow(x):\n    return x", "<|im_end|>", "สวัสดี", "internationalisation"]
    ),
)
TEXTS = st.lists(PIECES, max_size=30).map("".join).filter(lambda text: OPEN_END not in text)


@pytest.fixture(scope="module")
def renderer(tiny_model: Path) -> PromptRenderer:
    """SmolLM2's own tokenizer and template."""
    special = json.loads((tiny_model / "tokenizer_config.json").read_text())
    names = {name: text for name, text in special.items() if name.endswith("_token") and isinstance(text, str)}
    template = (tiny_model / "chat_template.jinja").read_text()
    return PromptRenderer(ModelAssets("f", (tiny_model / "tokenizer.json").read_bytes(), template, names))


@given(text=TEXTS, more=TEXTS)
@example(text="it'r", more="e")
@example(text="a   ", more="b")
@example(text=" " * 7, more=" ")
@example(text="=" * 65, more="=")
@example(text="x" + "\n " * 9, more="\n")
@example(text="漢字" * 40, more="漢")
def test_a_longer_draft_begins_with_what_was_certain(renderer: PromptRenderer, text: str, more: str) -> None:
    certain = renderer.render_open([*EARLIER, ChatTurn("user", text)])
    longer = renderer.render_open([*EARLIER, ChatTurn("user", text + more)])
    sent = renderer.render([*EARLIER, ChatTurn("user", text + more)])
    assert sent[: len(certain)] == certain
    assert sent[: len(longer)] == longer


def test_it_is_nearly_all(renderer: PromptRenderer) -> None:
    turns = [*EARLIER, ChatTurn("user", "The headrace leads the water to the wheel. " * 40)]
    assert len(renderer.render(turns)) - len(renderer.render_open(turns)) < 12


def test_a_text_without_words_keeps_what_no_merge_reaches(renderer: PromptRenderer) -> None:
    turns = [ChatTurn("user", "漢字" * 200)]
    assert 0 < len(renderer.render(turns)) - len(renderer.render_open(turns)) < 50


def test_the_mark_in_a_message_leaves_nothing_certain(renderer: PromptRenderer) -> None:
    assert renderer.render_open([ChatTurn("user", f"Hello {OPEN_END} there, and so on and on")]) == []


def test_a_template_that_changes_texts_leaves_certain_what_it_does_not_change() -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim | upper }}{% endfor %}"
    tokenizer = Tokenizer(models.BPE(vocab={chr(i): i for i in range(128)}, merges=[]))
    renderer = PromptRenderer(ModelAssets("f", tokenizer.to_str().encode(), template))
    turns = [ChatTurn("user", " " + "a" * 100 + " ")]
    certain = renderer.render_open(turns)
    assert renderer.render(turns)[: len(certain)] == certain == renderer.render_open(turns)
    assert len(certain) > 50


def test_a_template_that_hides_the_end_leaves_nothing_certain() -> None:
    template = "{% for m in messages %}<{{ m.content | length }}>{% endfor %}"
    tokenizer = Tokenizer(models.BPE(vocab={chr(i): i for i in range(128)}, merges=[]))
    renderer = PromptRenderer(ModelAssets("f", tokenizer.to_str().encode(), template))
    assert renderer.render_open([ChatTurn("user", "a" * 100)]) == []
