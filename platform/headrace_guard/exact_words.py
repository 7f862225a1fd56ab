"""Words that two questions must share letter by letter, before what they mean is compared."""

import re
import unicodedata

_AROUND = ".,;:!?\"'()“”‘’"  # noqa: RUF001
_PLAIN = re.compile(r"[A-Za-z]?[a-z]*(?:['’][a-z]+)?")  # noqa: RUF001


def exact_words(text: str) -> list[str]:
    """Return all but plain English words, in order: the encoder takes them for each other, or cannot read them.

    Numbers, signs, abbreviations, identifiers, words with an accent, other scripts.
    """
    words = (word.strip(_AROUND) for word in unicodedata.normalize("NFC", text).split())
    return [word for word in words if not _PLAIN.fullmatch(word)]
