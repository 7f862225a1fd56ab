"""Waiting for what nobody announces."""

import asyncio
from collections.abc import Awaitable, Callable

PATIENCE = 30.0
LOOK_SECONDS = 0.02


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Look again and again until something holds."""
    async with asyncio.timeout(PATIENCE):
        while not await holds():  # noqa: ASYNC110  see above
            await asyncio.sleep(LOOK_SECONDS)
