"""Folding: what rules see of a text, character by character, so that it works on a stream.

Compatibility forms (full width, mathematical, circled ...) become plain, accents and invisible characters go,
look-alikes of other scripts become the ASCII letter that they look like, every digit is 0 to 9, every space is a
plain one, every dash a hyphen. Case stays: patterns decide whether it matters. Words and patterns are folded the same
way, so a rule in Greek or Cyrillic finds Greek and Cyrillic. One character may fold to several (a ligature) or to none
(a soft hyphen).

Composed and decomposed Hangul and kana are not told to be equal: that needs more than one character.
"""

import re
import unicodedata

from headrace_guard.look_alikes import LOOK_ALIKES, SEVERAL

WORD = 1
"""Context of a character: part of a word."""
NEWLINE = 2
EDGE = 4
"""Context of no character: before the first one and after the last."""
JOINED = 8
"""Context of a character beside which no listed word ends: like WORD, without `_`, which may be Markdown's emphasis."""

ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": " ", "f": " ", "n": "\n", "r": " ", "t": " "}
"""JSON's one-character escapes, folded. `u` is the other one."""
LONGEST_BACKSLASH_RUN = 16
"""More backslashes than JSON within JSON within JSON has begin no escape."""

_NAMED = re.compile(
    r"(?:NEGATIVE (?:CIRCLED|SQUARED) |CROSSED NEGATIVE SQUARED )?LATIN "
    r"(?P<case>SMALL LETTER|CAPITAL LETTER|LETTER SMALL CAPITAL) (?P<letter>[A-Z])(?: WITH .*)?"
)
# Marks that are put on Latin, Greek and Cyrillic letters. Those of other scripts tell words apart and stay.
_ACCENTS = ((0x0300, 0x036F), (0x0483, 0x0489), (0x1AB0, 0x1AFF), (0x1DC0, 0x1DFF), (0x20D0, 0x20FF), (0xFE20, 0xFE2F))
# Variation selectors, letters that show nothing (fillers of Hangul and Khmer), what Unicode keeps for more of these.
_INVISIBLE = ((0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2065, 0x2065), (0x3164, 0x3164),
              (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0xE0000, 0xE0FFF))  # fmt: skip
_SKIN_TONES = (0x1F3FB, 0x1F3FF)
# Scripts that are written without spaces, or (Hangul) with particles: words are not told apart by their neighbours.
_UNSPACED = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1100, 0x11FF), (0x1780, 0x17FF), (0x2E80, 0x31FF), (0x3400, 0x9FFF),
             (0xA960, 0xA97F), (0xAC00, 0xD7FF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))  # fmt: skip


class _Fold(dict[str, str]):
    def __missing__(self, character: str) -> str:
        folded = _fold(character)
        if len(self) < 20_000:
            self[character] = folded
        return folded


def _within(code: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= code <= high for low, high in ranges)


def _fold(character: str) -> str:
    if character == "\n" or character.isspace():
        return "\n" if character in "\n\u2028\u2029\x85" else " "
    parts = (_fold_part(part) for part in unicodedata.normalize("NFKD", character))
    return unicodedata.normalize("NFC", "".join(parts))


def _fold_part(part: str) -> str:
    code = ord(part)
    if code < 0x80:
        return part if code >= 0x20 and code != 0x7F else _space_or_nothing(part)
    category = unicodedata.category(part)
    if category in {"Cf", "Cc"} or _within(code, _ACCENTS) or _within(code, _INVISIBLE):
        return _space_or_nothing(part)
    if plain := LOOK_ALIKES.get(code) or SEVERAL.get(part):
        return plain
    if (digit := unicodedata.digit(part, None)) is not None:
        return str(digit)
    if part.isspace() or code == 0x2800:
        return " "
    return "-" if category == "Pd" else _letter_by_name(part)


def _space_or_nothing(character: str) -> str:
    return " " if character.isspace() else ""


def _letter_by_name(character: str) -> str:
    named = _NAMED.fullmatch(unicodedata.name(character, ""))
    if named is None:
        return character
    is_small = named["case"] != "CAPITAL LETTER"
    return named["letter"].lower() if is_small else named["letter"]


FOLD = _Fold()
"""What a character folds to."""


def fold(text: str) -> str:
    """Fold all of a text, but no escapes."""
    return "".join([FOLD[character] for character in text])


_ESCAPE = re.compile(r'\\+(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')


def fold_escaped(text: str) -> str:
    """Fold all of a text with its escapes."""
    if "\\" in text:
        text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else ESCAPES[found[2]], text)
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return fold(text)


def is_word(character: str) -> bool:
    """Whether a character is part of a word whose borders can be seen."""
    if character.isascii():
        return character.isalnum() or character == "_"
    return is_letter(character) and not _within(ord(character), _UNSPACED)


def is_letter(character: str) -> bool:
    r"""Tell what `\w` finds: letters, digits, "_" and marks."""
    return character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M"


def extends(character: str) -> bool:
    """Whether a character belongs to the one before it: marks, joiners, selectors, whatever is not seen."""
    if " " <= character <= "~" or character == "\n":
        return False
    return (
        FOLD[character] == ""
        or unicodedata.category(character)[0] == "M"
        or _SKIN_TONES[0] <= ord(character) <= _SKIN_TONES[1]
    )
