"""Word lists: what a reader would call the same word is found, and no word within a word."""

# ruff: noqa: RUF001
import random
import string

import pytest

from headrace_guard.patterns import PatternError
from headrace_guard.scanner import Scanner
from tests.guard.reference import masked_by_reference
from tests.guard.rules import words

VARIANTS = [
    "evil plan",
    "EVIL Plan",
    "evil \n\t  plan",
    "evil\u00a0plan",
    "e\u200bv\u00adi\u2060l pl\ufe0fan",
    "évïl plân",
    "e\u0301vil pla\u0336n",
    "еvіl рlаn",
    "ＥＶＩＬ　ｐｌａｎ",
    "𝐞𝐯𝐢𝐥 𝓹𝓵𝓪𝓷",
    "ⓔⓥⓘⓛ 🅟🅛🅐🅝",
    r"\u0065vil plan",
    r"evil\nplan",
    r"evil\u0020\tplan",
    r"ev\\u0069l plan",
    r"\ud835\udc1evil plan",
    r"evil pl\u200ban",
]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "around", [("an ", " is"), ("", ""), ('{"a":"', '"}'), (r"\n", r"\n"), ("(", ")"), ("中", "中")]
)
def test_every_form_of_a_phrase_is_found_wherever_it_is_cut(variant: str, around: tuple[str, str]) -> None:
    scanner = Scanner([words("Evil plan", mask="#")])
    text = variant.join(around)
    whole = scanner.scan(text)
    assert [hit.text for hit in whole.hits] == [variant]
    for cut in range(len(text) + 1):
        guard = scanner.open()
        released = guard.push(text[:cut])
        assert released == whole.text[: len(released)]
        assert released + guard.push(text[cut:]) + guard.flush() == whole.text


@pytest.mark.parametrize(
    "text",
    ["evilplan", "medevil plan", "evil planet", "evil_plan", "evil plan2", "e vil plan", "evil-plan"],
)
def test_what_is_another_word_passes(text: str) -> None:
    scanned = Scanner([words("evil plan")]).scan(text)
    assert (scanned.text, scanned.hits) == (text, [])


@pytest.mark.parametrize(
    ("listed", "text", "masked"),
    [
        (("bad", "evil plan"), "_bad_ __evil plan__ so_bad", "_#_ __#__ so_#"),
        (("c++",), "c++ and c++11 and xc++ C++", "# and #11 and xc++ #"),
        (("bad", "bad apple"), "bad bad apple bad", "# # #"),
        (("秘密",), "这是秘密吗", "这是#吗"),
        (("비밀",), "비밀을", "#을"),
        (("мир", "ΝΑΙ"), "Мир МИР миру ναι Ναι", "# # миру # #"),
        (("straße",), "STRASSE Straße", "# #"),
        (("क",), "कि क", "कि #"),
    ],
)
def test_words_of_every_kind(listed: tuple[str, ...], text: str, masked: str) -> None:
    assert Scanner([words(*listed, mask="#")]).scan(text).text == masked


@pytest.mark.parametrize("slashes", [1, 2, 4])
def test_backslash_of_a_word_may_be_escaped(slashes: int) -> None:
    text = "in C:" + "\\" * slashes + "bad dir"
    assert Scanner([words(r"C:\bad dir", mask="#")]).scan(text).text == "in #"


def test_parts_of_words_where_the_rule_says_so() -> None:
    scanned = Scanner([words("bad", whole_words=False, mask="#")]).scan("badly, abadan")
    assert scanned.text == "#ly, a#an"


def test_finding_is_the_word_as_it_was_written() -> None:
    (hit,) = Scanner([words("Crème  Brûlée")]).scan("a CREME BRULEE!").hits
    assert (hit.finding, hit.text, hit.start, hit.end) == ("Crème  Brûlée", "CREME BRULEE", 2, 14)


def test_word_that_shows_nothing_is_refused() -> None:
    with pytest.raises(PatternError, match="no visible character"):
        Scanner([words("good", "\u200b \ufeff")])


def test_large_list_finds_what_a_simple_search_finds() -> None:
    draw = random.Random(7)
    listed = sorted({"".join(draw.choices("abcd", k=draw.randint(2, 7))) for _ in range(3000)})
    text = " ".join("".join(draw.choices(string.ascii_lowercase[:5], k=draw.randint(1, 8))) for _ in range(300))
    expected = " ".join("#" if word in set(listed) else word for word in text.split(" "))
    assert Scanner([words(*listed, mask="#")]).scan(text).text == expected


def test_agrees_with_the_reference() -> None:
    text = "ab abc a\u200bb ab  c Ab-c abcab"
    listed = ("ab", "ab c", "abc-")
    expected = masked_by_reference([r"(?<!\w)ab(?!\w)", r"(?<!\w)ab\s+c(?!\w)", r"(?<!\w)abc-"], text)
    assert Scanner([words(*listed, mask="#")]).scan(text).text == expected
