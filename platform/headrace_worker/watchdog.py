"""An event loop that stands still has its process ended, so that a supervisor starts another one.

The lease of such a worker has run out long before, and its streams go on elsewhere; but its engine's memory is taken,
and nothing that runs on the loop could give it back.
"""

import asyncio
import faulthandler
import sys
from typing import TextIO

BEATS = 10
"""Signs of life in the time that the loop may stand still."""


async def watch_loop(seconds: float, file: TextIO | None = None) -> None:
    """Until cancelled, have the process end with status 1 where the loop has not come by for `seconds`.

    The stacks of all threads go to `file` (standard error) first. The clock is a thread of faulthandler's that needs no
    interpreter lock: code that never lets go of the lock ends as well.
    """
    try:
        while True:
            faulthandler.dump_traceback_later(seconds, exit=True, file=file or sys.stderr)
            await asyncio.sleep(seconds / BEATS)
    finally:
        faulthandler.cancel_dump_traceback_later()
