"""Whether a text has something of the shape of personal data: then it is nobody else's."""

import asyncio
from collections.abc import Sequence
from functools import cache

from headrace_guard.scanner import BoundRule, Scanner
from headrace_wire.guard_policy import Action, PersonalDataKind, PersonalDataRule

AT_ONCE_CHARACTERS = 4_000
"""Texts up to this length are read on the event loop: a millisecond at most."""

NOT_PERSONAL = frozenset({PersonalDataKind.URL})
"""Addresses of pages name nobody."""


async def has_personal_data(texts: Sequence[str]) -> bool:
    """Say whether one of the texts has some; long ones are read beside the loop."""
    if sum(map(len, texts)) <= AT_ONCE_CHARACTERS:
        return _found_in(texts)
    return await asyncio.to_thread(_found_in, texts)


@cache
def _scanner() -> Scanner:
    kinds = {kind: Action.BLOCK for kind in PersonalDataKind if kind not in NOT_PERSONAL}
    return Scanner([BoundRule(PersonalDataRule(key="response-cache", kinds=kinds), 0)])


def _found_in(texts: Sequence[str]) -> bool:
    scanner = _scanner()
    return any(scanner.scan(text).block is not None for text in texts)
