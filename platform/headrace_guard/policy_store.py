"""Policies by their digests, compiled once for all streams that they apply to."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from headrace_guard.combination import Guard
from headrace_guard.patterns import PatternError
from headrace_wire.guard_policy import GuardPolicy, decode_policy

Fetch = Callable[[Sequence[str]], Awaitable[list[bytes | None]]]
"""Returns the bodies of policies, by digest."""

KEPT_GUARDS = 256
"""Compiled combinations that are remembered; the one used longest ago goes first."""


class PolicyMissingError(Exception):
    """A policy that applies cannot be had, so nothing may pass that it would judge."""


class PolicyStore:
    """Gives compiled guards. Belongs to one event loop."""

    def __init__(self, fetch: Fetch, *, compiled: Callable[[Guard], None] | None = None) -> None:
        """`compiled` is told of each guard that is new here."""
        self._fetch = fetch
        self._compiled = compiled
        self._guards: OrderedDict[tuple[str, ...], Guard] = OrderedDict()
        self._compiling: dict[tuple[str, ...], asyncio.Future[Guard]] = {}

    def known(self, digests: tuple[str, ...]) -> Guard | None:
        """Return the guard if it is compiled already."""
        guard = self._guards.get(digests)
        if guard is not None:
            self._guards.move_to_end(digests)
        return guard

    async def get(self, digests: tuple[str, ...]) -> Guard:
        """Return the guard of these policies, fetched and compiled if need be.

        Raises:
            PolicyMissingError: one of them is not there, or not understood.
            Whatever `fetch` raises.
        """
        guard = self.known(digests)
        if guard is not None:
            return guard
        waiting = self._compiling.get(digests)
        if waiting is None:
            waiting = self._compiling[digests] = asyncio.ensure_future(self._make(digests))
            waiting.add_done_callback(lambda _: self._compiling.pop(digests, None))
        return await asyncio.shield(waiting)

    async def _make(self, digests: tuple[str, ...]) -> Guard:
        bodies = await self._fetch(digests)
        guard = await asyncio.to_thread(_compile, digests, bodies)
        self._guards[digests] = guard
        while len(self._guards) > KEPT_GUARDS:
            self._guards.popitem(last=False)
        if self._compiled is not None:
            self._compiled(guard)
        return guard


def _compile(digests: Sequence[str], bodies: Sequence[bytes | None]) -> Guard:
    policies: list[GuardPolicy] = []
    for digest, body in zip(digests, bodies, strict=True):
        if body is None:
            raise PolicyMissingError(f"guardrail policy {digest} is not there")
        try:
            policies.append(decode_policy(body))
        except msgspec.DecodeError as error:
            raise PolicyMissingError(f"guardrail policy {digest} is not understood: {error}") from error
    try:
        return Guard(policies)
    except PatternError as error:
        raise PolicyMissingError(f"a guardrail policy cannot be compiled: {error}") from error
