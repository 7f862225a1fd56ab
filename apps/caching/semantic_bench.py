"""Tries two questions on a policy: how alike they are, and whether one would be given the answer to the other."""

import math
import struct
from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from apps.caching.models import ResponseCachePolicy
from headrace_guard.exact_words import exact_words
from headrace_guard.judges.child_process import START_SECONDS
from headrace_guard.judges.frames import Comparison
from headrace_guard.judges.pool import JudgePool

MAX_CHARACTERS = 2_000
_VECTOR = struct.Struct("<384e")


@dataclass(frozen=True, slots=True)
class Tried:
    """What would come of it."""

    similarity: float | None
    """None where one of them is not read whole."""
    reason: str | Promise | None
    """Why the second would not be given the first one's answer."""


async def questions_try(*, policy: ResponseCachePolicy, first: str, second: str) -> Tried:
    """Compares two questions as gateways do; a child process is started for it, and ended.

    Raises:
        headrace_guard.judges.verdicts.JudgeFailure: It cannot compare.
    """
    async with JudgePool() as pool:
        one = await pool.compare(Comparison(first), deadline_seconds=START_SECONDS)
        comparison = Comparison(
            second,
            (one.packed,) if one.packed else (),
            least=policy.semantic_threshold,
            same_words=policy.semantic_same_words,
        )
        other = await pool.compare(comparison, deadline_seconds=START_SECONDS)
    if not one.packed or not other.packed:
        return Tried(None, _("One is too long, or has characters that the encoder does not know."))
    similarity = _dot(one.packed, other.packed)
    return Tried(similarity, None if first == second else _reason(policy, first, second, similarity, other.nearest))


def _reason(
    policy: ResponseCachePolicy, first: str, second: str, similarity: float, nearest: tuple[object, ...]
) -> str | Promise | None:
    if exact_words(first) != exact_words(second):
        return _("Numbers, signs, abbreviations or words with accents differ.")
    if nearest:
        return None
    if similarity < policy.semantic_threshold:
        return _("They are less alike than the policy says.")
    return _("Words that matter differ, are denied, or come in another order.")


def _dot(one: bytes, other: bytes) -> float:
    pairs = zip(_VECTOR.unpack_from(one), _VECTOR.unpack_from(other), strict=True)
    return min(1.0, math.fsum(a * b for a, b in pairs))
