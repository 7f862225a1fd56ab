"""Masks leave JSON JSON and Markdown Markdown."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from headrace_guard.masking import placeholder
from headrace_guard.scanner import Scanner
from headrace_wire.guard_policy import PersonalDataKind
from tests.guard.rules import EVERY_KIND, patterns, personal_data, words

CARD = "4111111111111111"
PERSONAL = Scanner([personal_data(*EVERY_KIND), words("bad", "true", "evil plan", mask='"quoted" \\ \n')])


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("CREDIT_CARD", "⟦CREDIT_CARD⟧"),
        ("Bad words (de)", "⟦BAD_WORDS_DE⟧"),
        ('"]}<b>', "⟦B⟧"),
        ("", "⟦REDACTED⟧"),
        ("坏", "⟦REDACTED⟧"),
    ],
)
def test_placeholder_means_nothing_elsewhere(name: str, mask: str) -> None:
    assert placeholder(name) == mask
    assert MarkdownIt().renderInline(f"a {mask} *b*{mask}(c)") == f"a {mask} <em>b</em>{mask}(c)"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f'{{"card": {CARD}}}', {"card": 1000000000000000}),
        (f' [-{CARD}, {CARD}.5, 1{CARD}]', [-1000000000000000, 1000000000000000.5, 14111111111111111]),
        (f'{{"card": "{CARD}"}}', {"card": "⟦CREDIT_CARD⟧"}),
        (f'{{"{CARD}": "a \\" {CARD}"}}', {"⟦CREDIT_CARD⟧": 'a " ⟦CREDIT_CARD⟧'}),
        ('["bad", true, "evil\\nplan", "x\\nbad"]', ['"quoted" \\ \n', None, '"quoted" \\ \n', 'x\n"quoted" \\ \n']),
        ('["\\u0062ad \\ud835\\udc1bad"]', ['"quoted" \\ \n "quoted" \\ \n']),
        ('{"url": "https:\\/\\/example.com\\/x", "ip": "10.0.0.1"}', {"url": "⟦URL⟧", "ip": "⟦IP_ADDRESS⟧"}),
    ],
)  # fmt: skip
def test_json_stays_json(text: str, masked: object) -> None:
    assert json.loads(PERSONAL.scan(text).text) == masked


def test_match_over_borders_of_json_takes_what_is_inside_of_them() -> None:
    scanner = Scanner([patterns(r'secret": "\w+', mask="#"), patterns(r"12, 34", mask="#")])
    assert json.loads(scanner.scan('{"the secret": "abc", "n": [112, 345]}').text) == {"the #": "", "n": [100, 105]}


def test_text_is_json_only_where_it_begins_like_it() -> None:
    assert PERSONAL.scan(f"Card: {{{CARD}}}").text == "Card: {⟦CREDIT_CARD⟧}"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("[Note] me@example.com", "[Note] ⟦EMAIL_ADDRESS⟧"),
        ("[me@example.com](mailto:me@example.com)", "[⟦EMAIL_ADDRESS⟧](mailto:⟦EMAIL_ADDRESS⟧)"),
        ("{bad} and bad, good plan", '{"quoted" \\ \n} and "quoted" \\ \n, good plan'),
        ("[1] b\u200bad https://example.com/x", '[1] "quoted" \\ \n ⟦URL⟧'),
    ],
)
def test_what_only_begins_like_json_is_masked_too(text: str, masked: str) -> None:
    assert PERSONAL.scan(text).text == masked
    guard = PERSONAL.open()
    assert "".join([*map(guard.push, text), guard.flush()]) == masked


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=6),
    st.sampled_from([int(CARD), CARD, f"a {CARD}\n", "bad", "evil\nplan", "me@example.com", "\\bad"]),
    st.sampled_from(['"bad"', "b\u200bád\u0301"]),
)  # fmt: skip
documents = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([CARD, "a", "bad b"]), inner),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(documents.map(lambda leaf: [leaf]), st.booleans(), st.integers(0, 2**32))
def test_masked_json_can_be_read_however_it_is_cut(document: list[object], is_ascii: bool, seed: int) -> None:
    text = json.dumps(document, ensure_ascii=is_ascii)
    guard, out, draw = PERSONAL.open(), "", random.Random(seed)
    while text:
        size = draw.randint(1, 8)
        out += guard.push(text[:size])
        text = text[size:]
    out += guard.flush()
    masked = json.loads(out)
    assert CARD not in out
    assert "me@example" not in out
    assert type(masked) is list


def test_kinds_have_names_of_their_own() -> None:
    assert len({placeholder(kind) for kind in PersonalDataKind}) == len(PersonalDataKind)
