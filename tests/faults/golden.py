"""The undisturbed run: what every other run of the same prompt must give."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from redis.asyncio import Redis

from headrace_wire.functions import Functions
from headrace_wire.messages import Delta, Ended, StreamState
from headrace_wire.token_log import TokenLog
from tests.faults.journey import travel
from tests.faults.readers import Hop, Reader, Transport

PATIENCE_SECONDS = 180.0


class Served(Protocol):
    """Where answers come from."""

    @property
    def model(self) -> str: ...
    @property
    def ports(self) -> Sequence[int]: ...
    @property
    def api_key(self) -> str: ...
    @property
    def redis_url(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Golden:
    """One answer."""

    prompt: str
    token_ids: list[int]
    text: str
    told: frozenset[int]
    """Positions that a client can have: 0, and those whose token completes a character."""

    @property
    def tokens(self) -> int:
        return len(self.token_ids)


async def undisturbed(stack: Served, prompt: str, *, max_tokens: int) -> Golden:
    """Runs a prompt on a stack in which nothing happens, and checks what its log says of itself."""
    reader = Reader(stack.ports, stack.api_key, stack.model, prompt, max_tokens)
    await travel(reader, iter([Hop(Transport.WEBSOCKET, 0)]), seconds=PATIENCE_SECONDS)
    assert reader.is_ended, reader
    assert reader.stream_id is not None
    async with Redis.from_url(stack.redis_url) as redis:
        log = TokenLog(redis, Functions(redis))
        entries = await log.read(reader.stream_id) or []
        token_ids = await log.token_ids(reader.stream_id)
    ended = entries[-1]
    assert isinstance(ended, Ended)
    assert ended.state is StreamState.FINISHED
    assert ended.usage.completion_tokens == len(token_ids) == ended.seq - 1 == max_tokens
    deltas = [entry for entry in entries if isinstance(entry, Delta)]
    assert reader.text == "".join(delta.text for delta in deltas)
    return Golden(prompt, token_ids, reader.text, frozenset({0, *(delta.seq for delta in deltas if delta.text)}))
