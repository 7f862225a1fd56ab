"""What happens to the calls of the test applications, by the names that tests give them."""

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass
class Journal:
    """What happened to one call. Times are monotonic, and so comparable with the test's own clock."""

    sent_bytes: int = 0
    accepted_bytes: int = 0
    events: dict[str, float] = field(default_factory=dict)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def note(self, event: str) -> None:
        async with self.changed:
            self.events.setdefault(event, time.monotonic())
            self.changed.notify_all()

    async def wait_for(self, event: str) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: event in self.events)


JOURNALS: defaultdict[str, Journal] = defaultdict(Journal)
