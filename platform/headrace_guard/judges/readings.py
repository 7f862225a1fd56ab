"""What judges of meaning look at: a short text as a whole, and its sentences; in a long text anything is diluted."""

import re

WHOLE_WORDS = 60
"""A text up to this length is also looked at as a whole."""
PART_WORDS = 40
"""Sentences are cut into parts of this length."""
FEWEST_WORDS = 3
"""A sentence that is shorter says nothing by itself."""

_SENTENCE_END = re.compile(r"(?<=[.!?\u2026\u3002\uff01\uff1f])\s+|\n+|(?<=[\u3002\uff01\uff1f])")


def readings_of(text: str) -> list[str]:
    """Return the readings of a text, without repetitions; none of an empty one."""
    words = text.split()
    if not words:
        return []
    sentences = [
        " ".join(part[start : start + PART_WORDS])
        for sentence in _SENTENCE_END.split(text)
        if len(part := sentence.split()) >= FEWEST_WORDS
        for start in range(0, len(part), PART_WORDS)
    ]
    whole = [" ".join(words)] if len(words) <= WHOLE_WORDS or not sentences else []
    return list(dict.fromkeys(whole + sentences))
