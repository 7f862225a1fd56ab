"""Folding: what looks the same to a reader is the same to a rule."""
# ruff: noqa: RUF001

import unicodedata

import pytest

from headrace_guard.look_alikes import LOOK_ALIKES
from headrace_guard.normalisation import extends, fold, fold_escaped, is_word


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("Plain, as it is. 123", "Plain, as it is. 123"),
        ("ｆｕｌｌ　ｗｉｄｔｈ", "full width"),
        ("𝐛𝐨𝐥𝐝 𝕕𝕠𝕦𝕓𝕝𝕖 ⓒircled ﬁ ㎏ ²", "bold double circled fi kg 2"),
        ("Crème Brûlée, naïve, Ångström, Łódź, Ørsted, đ ħ ŧ", "Creme Brulee, naive, Angstrom, Lodz, Orsted, d h t"),
        ("cre\u0301me e\u0301\u0323\u0336", "creme e"),
        ("z\u200be\u200cr\u200do\u2060 w\ufeffi\u00add\u034ft\u180eh\U000e0041", "zero width"),
        ("r\u2065es\ufff0er\U000e0000v\U000e0080ed\U000e0fff", "reserved"),
        ("em\ufe0foji ❤\ufe0f", "emoji ❤"),
        ("\u202ertl\u202c \x00\x07nul", "rtl nul"),
        ("раураl СОРЕ", "paypal COPE"),
        ("ΑΒΕΗ οαν", "ABEH oav"),
        ("ᴀʙᴄᴅ ɪʏ ꜱ", "abcd iy s"),
        ("ᎪᏴᏟ օո", "ABC on"),
        ("🅱🅰🅳 🅐", "BAD A"),
        ("tab\tnbsp\u00a0em\u2003ideo\u3000", "tab nbsp em ideo "),
        ("line\nnext\u2028para\u2029nel\x85", "line\nnext\npara\nnel\n"),
        ("٤١٢ ४१ 𝟜𝟙 ①", "412 41 41 1"),
        ("a–b—c‐d−e", "a-b-c-d-e"),
        ("‘q’ “q”", "'q' \"q\""),
        ("Straße Æ œ", "Strasse AE oe"),
        # What tells words apart in other scripts stays.
        ("भाषा ภาษา مُحَمَّد がガ 한국어 中文", "भाषा ภาษา مُحَمَّد がガ 한국어 中文"),
    ],
)  # fmt: skip
def test_folding(text: str, folded: str) -> None:
    assert fold(text) == folded


def test_folding_again_changes_nothing() -> None:
    assert [c for c in map(chr, range(0x30000)) if fold(fold(c)) != fold(c)] == []


def test_no_ordinary_letter_folds_to_what_is_not_ascii_and_not_its_own() -> None:
    """Look-alikes lead to ASCII and nowhere else."""
    assert all(plain.isascii() for plain in LOOK_ALIKES.values())
    assert not any(chr(code).isascii() for code in LOOK_ALIKES)


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        (r"\u0065v\u0069l", "evil"),
        (r"a\nb\tc\/d\"e", 'a\nb c/d"e'),
        (r"\\u0065 \\\\n", "e \n"),
        (r"\ud835\udc1a", "a"),
        (r"\ud835 \u12", "\ufffd \\u12"),
    ],
)
def test_escapes_are_read(text: str, folded: str) -> None:
    assert fold_escaped(text) == folded


@pytest.mark.parametrize("character", ["\u0301", "\u200d", "\ufe0f", "\u0bbe", "\U0001f3fd", "\U000e0101"])
def test_what_belongs_to_the_character_before(character: str) -> None:
    assert extends(character), unicodedata.name(character)


@pytest.mark.parametrize("character", ["a", " ", "\n", "é", "中", "-"])
def test_what_is_a_character_of_its_own(character: str) -> None:
    assert not extends(character)


def test_scripts_without_spaces_have_no_borders_of_words() -> None:
    assert [is_word(character) for character in "aé_9я한中かไ "] == [True] * 5 + [False] * 5
