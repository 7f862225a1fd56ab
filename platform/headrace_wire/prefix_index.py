"""Which worker holds which prompts' beginnings computed: what workers report, and whom a prompt should go to.

The index is a set of hashes for each worker (`redis_keys.held_key`) and ends with its lease. A claim notes what its
worker is going to compute; the worker's own reports say what has been evicted, and write everything anew after Redis
has lost it. It is a guess, and only ever decides who computes something.
"""

from collections.abc import Sequence

from msgspec import Struct

from headrace_wire import redis_keys
from headrace_wire.functions import Functions, Reply

MAX_BLOCKS = 1024
"""Blocks of a prompt that are looked at; two that are alike for so long are not told apart."""

_PART = 1000
"""Hashes in one call."""


class Holder(Struct, frozen=True):
    """The worker that a prompt should go to."""

    incarnation: str
    blocks: int
    """How much of the prompt it holds."""


class PrefixIndex:
    """The calls; stateless, safe to share between tasks."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions

    async def preferred(self, deployment: str, hashes: Sequence[bytes]) -> Holder | None:
        """Return the worker that holds most of a prompt and is not overloaded, else the least busy one.

        Args:
            deployment: Its name.
            hashes: `prefix_hashes` of the prompt; may be empty.

        None where no worker is alive.
        """
        keys = [redis_keys.queue_key(deployment)]
        reply: Reply = await self._functions.call("prefer", keys, [b"".join(hashes[:MAX_BLOCKS])])
        return Holder(reply[0].decode(), int(reply[1])) if reply else None

    async def report(
        self,
        incarnation: str,
        *,
        deployment: str,
        lease_seconds: float,
        added: Sequence[bytes] = (),
        removed: Sequence[bytes] = (),
        is_all: bool = False,
    ) -> int | None:
        """Say what a worker's engine holds besides, and what it holds no more; returns how many are noted of it.

        `is_all`: `added` is everything. None where it is the deployment's only worker: nothing is noted then, and it
        must say everything once it is not.
        """
        keys, lease = [redis_keys.queue_key(deployment)], int(lease_seconds * 1000)
        count = 0
        for at in range(0, max(1, len(added), len(removed)), _PART):
            parts = [b"".join(hashes[at : at + _PART]) for hashes in (added, removed)]
            args: list[bytes | str | int] = [incarnation, lease, int(is_all and at == 0), *parts]
            count = int(await self._functions.call("hold", keys, args))
            if count < 0:
                return None
        return count
