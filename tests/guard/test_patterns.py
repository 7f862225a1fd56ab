"""Regular expressions: what is accepted means what it means to `re`; what cannot be judged in a stream is refused."""
# ruff: noqa: RUF001

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_guard.patterns import PatternError
from headrace_guard.scanner import Scanner
from tests.guard.reference import masked_by_reference
from tests.guard.rules import patterns


@pytest.mark.parametrize(
    ("pattern", "advice"),
    [
        (r"(a)\1", "write out"),
        (r"(a)?(?(1)b|c)", "alternatives"),
        (r"a(?=b)", r"\b"),
        (r"(?<!a)b", r"\b"),
        (r"(?>a+)b", "plain group"),
        (r"a++", "plain one"),
        (r"a*", "+ in place of *"),
        (r"a|", "empty text"),
        (r"^$", "empty text"),
        (r"\b", "empty text"),
        (r"\u200b", "empty text"),
        (r"(", "not a regular expression"),
        (r"[z-a]", "not a regular expression"),
        (r"a{5000}", "shorten"),
        (r"((a{100}){100}){100}", "shorten"),
        ("a" * 10_001, "word list"),
        ("(" * 4000 + "a" + ")" * 4000, "simplify"),
    ],
)
def test_what_cannot_be_judged_is_refused_with_advice(pattern: str, advice: str) -> None:
    with pytest.raises(PatternError) as caught:
        Scanner([patterns(pattern)])
    assert advice in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("pattern", "text", "masked"),
    [
        (r"crème", "CREME crème crèmé", "# # #"),
        (r"[àé]b", "ab éb èb xb", "# # # xb"),
        (r"[^a]b", "ab cb", "ab #"),
        (r"(?-i:A)b", "ab Ab AB", "ab # #"),
        (r"x.y", "x\ny x y", "x\ny #"),
        (r"(?s)x.y", "x\ny", "#"),
        (r"^ab$", "ab\nab c\nab", "#\nab c\n#"),
        (r"\Aab|ab\Z", "ab ab ab", "# ab #"),
        (r"a+?b", "caaab", "c#"),
        (r"\d{3}", "a٤١٢b", "a#b"),
        (r"ß+", "Straße", "Stra#e"),
        (r"[ßx]y", "sy ssy xy", "sy # #"),
        (r"\w+@x", "грыжа@x б@x", "# #"),
        (r"\Bb", "ab b", "a# b"),
        (r"В", "в В b", "# # #"),
        (r"[一-龥]{2}", "a中文b", "a#b"),
        (r"(?x) a  b # comment", "ab", "#"),
        (r"(?i:Q)[^\W\d]", "q1 qa", "q1 #"),
    ],
)  # fmt: skip
def test_meaning(pattern: str, text: str, masked: str) -> None:
    assert Scanner([patterns(pattern, mask="#")]).scan(text).text == masked


def test_case_matters_where_the_rule_says_so() -> None:
    assert Scanner([patterns("Ab", mask="#", case_sensitive=True)]).scan("ab Ab AB").text == "ab # AB"


PIECES = ["a", "b", "ab", "[ab]", "[^a]", ".", r"\w", r"\d", r"\s", r"\b", "^", "$", "1", " "]
expressions = st.recursive(
    st.sampled_from(PIECES),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "+?"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    ),
    max_leaves=6,
)
TEXTS = st.text("ab1 \nА\u0430é\u200b\u0301ﬁX", max_size=12)


@settings(max_examples=300, deadline=None)
@given(st.lists(expressions, min_size=1, max_size=2), TEXTS)
def test_masks_what_python_would_match(listed: list[str], text: str) -> None:
    try:
        scanner = Scanner([patterns(*listed, mask="#")])
    except PatternError:
        return
    assert scanner.scan(text).text == masked_by_reference(listed, text)


@pytest.mark.parametrize("pattern", [r"(?:){4000000000}a", r"(?:(?:){1000000}){1000000}a", "(?:\u200b){9999}a"])
def test_repeats_of_nothing_are_nothing(pattern: str) -> None:
    assert Scanner([patterns(pattern, mask="#")]).scan("xab").text == "x#b"


def test_patterns_that_ruin_backtracking_do_no_harm() -> None:
    scanner = Scanner([patterns(r"(a+)+b", r"(a|aa)+c", r"(.*a){12}d", r"(x+x+)+y")])
    guard = scanner.open()
    began = time.process_time()
    guard.push("a" * 20_000 + "x" * 20_000)
    # Seconds would be seconds; with backtracking it would be the age of the universe.
    assert time.process_time() - began < 120
    guard.flush()
