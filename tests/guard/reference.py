"""A slow scanner that is easy to believe: folds the whole text and asks `re` about every place."""

import re
from collections.abc import Sequence
from functools import cache

from headrace_guard.normalisation import FOLD, extends


@cache
def _ending(pattern: str, behind: int) -> re.Pattern[str]:
    """Return `pattern`, held to matches behind which there is so much text."""
    return re.compile(rf"(?:{pattern})(?=[\s\S]{{{behind}}}\Z)", re.IGNORECASE | re.MULTILINE)


def spans(patterns: Sequence[str], text: str) -> list[tuple[int, int]]:
    """Return the union of the longest matches at every place."""
    folded, origins = "", []
    for offset, character in enumerate(text):
        folded += FOLD[character]
        origins += [offset] * len(FOLD[character])
    found: list[tuple[int, int]] = []
    for pattern in patterns:
        for start in range(len(folded)):
            for end in range(len(folded), start, -1):
                if _ending(pattern, len(folded) - end).match(folded, start):
                    found.append((origins[start], origins[end - 1] + 1))
                    break
    merged: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def masked_by_reference(patterns: Sequence[str], text: str, mask: str = "#") -> str:
    """Return the text with what is found masked."""
    out, at = "", 0
    for start, end in spans(patterns, text):
        if start >= at:
            out += text[at:start] + mask
        at = max(at, end)
        while at < len(text) and extends(text[at]):
            at += 1
    return out + text[at:]
