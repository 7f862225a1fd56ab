"""The Redis function library: its sources, its version, and calls that survive a restarted Redis."""

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

Reply = Any
"""What a function answers: nested lists of bytes and integers, shaped as its .lua file's header says."""

Argument = bytes | str | int
Call = tuple[str, Sequence[str], Sequence[Argument]]
"""Function name, keys, arguments."""


@cache
def library_source() -> tuple[str, str]:
    """Return (version, source) of the library; the version is part of its name and of each function's name."""
    folder = files("headrace_wire").joinpath("lua")
    parts = {entry.name: entry.read_text("utf-8") for entry in folder.iterdir() if entry.name.endswith(".lua")}
    names = ["prelude.lua", *sorted(parts.keys() - {"prelude.lua"})]
    text = "\n".join(parts[name] for name in names)
    version = hashlib.sha256(text.encode()).hexdigest()[:10]
    return version, f"#!lua name=headrace_{version}\n" + text.replace("@VERSION@", version)


class Functions:
    """Calls functions of our library by name.

    Loads the library when the server does not know it: at the first start, or after it lost its data.
    """

    def __init__(self, redis: "Redis") -> None:
        """Use `redis`, a client that does not decode responses."""
        self._redis = redis
        self._version, self._source = library_source()

    async def load(self) -> None:
        """Load the library, replacing nothing but an identical one."""
        await self._redis.function_load(self._source, replace=True)

    async def call(self, name: str, keys: Sequence[str], args: Sequence[Argument]) -> Reply:
        """Run one function; one round trip.

        Raises:
            redis.exceptions.RedisError: the server is unreachable, or the function failed.
        """
        return (await self.call_many([(name, keys, args)]))[0]

    async def call_many(self, calls: Sequence[Call]) -> list[Reply]:
        """Run several functions in order in one round trip (keys of one shard); not a transaction."""
        if not calls:
            return []
        try:
            return await self._run(calls)
        except ResponseError as error:
            # The whole batch may be repeated: an unknown library means that none of it ran.
            if "Function not found" not in str(error):
                raise
        await self.load()
        return await self._run(calls)

    def command(self, call: Call) -> tuple[Argument, ...]:
        """Return a call as the command that the server gets."""
        name, keys, args = call
        return ("FCALL", f"{name}_{self._version}", len(keys), *keys, *args)

    async def _run(self, calls: Sequence[Call]) -> list[Reply]:
        if len(calls) == 1:
            return [await self._redis.execute_command(*self.command(calls[0]))]  # type: ignore[no-untyped-call]
        pipeline = self._redis.pipeline(transaction=False)
        for call in calls:
            pipeline.execute_command(*self.command(call))
        result: list[Reply] = await pipeline.execute()
        return result
