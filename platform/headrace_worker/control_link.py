"""Operations of our scheduler, batched: one call into the engine at a time, what comes meanwhile goes with the next.

The engine answers calls between two of its steps, so that this is one call per step however much there is to say.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

log = logging.getLogger(__name__)

Operation = list[Any]
"""Name and arguments, in types that every codec takes."""

Carry = Callable[[Sequence[Operation]], Awaitable[list[Any]]]
"""Carries operations out, in order, and returns their results."""


class ControlLink:
    """Belongs to one event loop."""

    def __init__(self, carry: Carry) -> None:
        self._carry = carry
        self._credit: dict[str, int] = {}
        self._limit: int | None = None
        self._asked: dict[str, asyncio.Future[Any]] = {}
        self._sending: asyncio.Task[None] | None = None

    def credit(self, positions: Mapping[str, int]) -> None:
        """Set requests' credit; the newest position counts."""
        self._credit.update(positions)
        self._wake()

    def limit(self, max_running: int) -> None:
        """Set how many requests run at once."""
        self._limit = max_running
        self._wake()

    async def ask(self, name: str) -> Any:  # noqa: ANN401  as the operation says
        """Return the result of an operation without arguments; callers of one moment share an answer."""
        answer = self._asked.get(name)
        if answer is None:
            answer = self._asked[name] = asyncio.get_running_loop().create_future()
            answer.add_done_callback(_retrieve)
            self._wake()
        return await asyncio.shield(answer)

    def close(self) -> None:
        """Stop; nobody answers any more."""
        if self._sending is not None:
            self._sending.cancel()

    def _wake(self) -> None:
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="engine control")

    async def _send(self) -> None:
        await asyncio.sleep(0)  # what is said in this turn of the loop goes together
        try:
            while self._credit or self._limit is not None or self._asked:
                await self._send_once()
        finally:
            self._sending = None

    async def _send_once(self) -> None:
        operations: list[Operation] = []
        if self._limit is not None:
            operations.append(["limit", self._limit])
        if self._credit:
            operations.append(["credit", self._credit])
        told = len(operations)
        asked, self._asked = self._asked, {}
        operations += [[name] for name in asked]
        self._credit, self._limit = {}, None
        try:
            results = await self._carry(operations)
        except Exception as error:  # noqa: BLE001  the engine's death is told elsewhere
            log.warning("the engine did not take its orders: %s", error)
            for answer in asked.values():
                answer.set_exception(error)
            return
        for answer, result in zip(asked.values(), results[told:], strict=True):
            answer.set_result(result)


def _retrieve(answer: "asyncio.Future[Any]") -> None:
    if not answer.cancelled():
        answer.exception()  # its callers may have gone; nobody needs to hear of it then
