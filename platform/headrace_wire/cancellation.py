"""Ending tasks for certain."""

import asyncio
from typing import Any

_ASK_AGAIN_SECONDS = 0.2


async def cancel_and_wait(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks and wait until all have ended; their results and errors are dropped.

    One `cancel()` is not enough on Python 3.11: `asyncio.wait_for`, which redis-py uses around each command, swallows a
    cancellation that arrives together with the answer (cpython#86296), and a loop around it would go on for ever.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_ASK_AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)
