"""A gateway's end of the wire for worker tests: it admits streams and reads their logs."""

import asyncio
from collections.abc import Callable, Sequence

from redis.asyncio import Redis

from headrace_wire import codec, redis_keys
from headrace_wire.adapters import AdapterUse
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.functions import Functions, Reply
from headrace_wire.guard_policy import GuardTerms
from headrace_wire.ids import new_incarnation, new_stream_id
from headrace_wire.messages import (
    AnyLogEntry,
    ChatTurn,
    Delta,
    Ended,
    GenerateRequest,
    PromptCacheUse,
    SamplingParams,
    Started,
    StreamState,
    StructuredOutput,
)
from headrace_wire.request_queue import MAX_ATTEMPTS, RequestQueue, StreamRecord
from headrace_wire.token_log import TokenLog

GATEWAY = "gateway-test"
WAIT_SECONDS = 60.0


class Answer:
    """A stream's log, read to its end."""

    def __init__(self, entries: Sequence[AnyLogEntry]) -> None:
        self.entries = entries
        self.deltas = [entry for entry in entries if isinstance(entry, Delta)]
        self.text = "".join(delta.text for delta in self.deltas)
        assert isinstance(entries[-1], Ended)
        self.end: Ended = entries[-1]

    @property
    def starts(self) -> list[Started]:
        """Return the entries with which owners began."""
        return [entry for entry in self.entries if isinstance(entry, Started)]

    def check_order(self, *, owners: int | None = 1) -> None:
        """Every token exactly once, without a gap; each owner begins under an epoch of its own, after the last token.

        `owners` is how many there were; None for any number.
        """
        position, epoch = 0, 1
        for entry in self.entries[1:]:
            if isinstance(entry, Started) or epoch == 1:  # one that is refused ends without a start
                assert entry.epoch > epoch
                epoch = entry.epoch
            assert entry.epoch == epoch
            tokens = {Delta: getattr(entry, "tokens", 0), Ended: 1}.get(type(entry), 0)
            position += tokens
            assert entry.seq == position
        assert self.end is self.entries[-1]
        assert owners is None or len({entry.epoch for entry in self.entries[1:]}) == owners


class Desk:
    """Admits and reads, as a gateway does."""

    def __init__(self, redis: "Redis") -> None:
        self.redis = redis
        self.functions = Functions(redis)
        self.log = TokenLog(redis, self.functions)
        self.queue = RequestQueue(redis, self.functions)

    async def admit(
        self,
        prompt: str | Sequence[int] | Sequence[ChatTurn] = (1, 2, 3),
        *,
        deployment: str = "sim",
        queue_timeout_seconds: float = 60.0,
        ttft_timeout_seconds: float = 60.0,
        inter_token_timeout_seconds: float = 60.0,
        cache_salt: str = "salt",
        structured: StructuredOutput | None = None,
        tenant_id: str = "t",
        window: int = 0,
        continue_inexactly: tuple[str, ...] = (),
        guard: GuardTerms | None = GuardTerms(),  # noqa: B008  # frozen
        prompt_cache: PromptCacheUse | None = None,
        adapter: AdapterUse | None = None,
        prefix: Sequence[bytes] = (),
        **sampling: object,
    ) -> str:
        """Admit a stream; the prompt is ids, raw text or a conversation.

        For the length of a test it is left to the worker that holds `prefix`.
        """
        stream_id = new_stream_id()
        ids = [i for i in prompt if isinstance(i, int)] if not isinstance(prompt, str) else []
        turns = [turn for turn in prompt if isinstance(turn, ChatTurn)] if not isinstance(prompt, str) else []
        fields: dict[str, object] = {"max_tokens": 8, **sampling}
        request = GenerateRequest(
            stream_id,
            tenant_id,
            deployment,
            SamplingParams(structured=structured, **fields),  # type: ignore[arg-type]  # checked by the tests
            cache_salt,
            prompt_ids=codec.pack_token_ids(ids),
            conversation=tuple(turns),
            raw_prompt=prompt if isinstance(prompt, str) else "",
            window=window,
            continue_inexactly=continue_inexactly,
            guard=guard,
            prompt_cache=prompt_cache,
            adapter=adapter,
            ttft_timeout_seconds=ttft_timeout_seconds,
            inter_token_timeout_seconds=inter_token_timeout_seconds,
        )
        await self.functions.call_many(
            [
                self.log.open_call(stream_id, readers=[GATEWAY]),
                self.queue.admit_call(
                    request,
                    queue_limit=1000,
                    queue_timeout_seconds=queue_timeout_seconds,
                    prefix=prefix,
                    prefer_seconds=WAIT_SECONDS,
                ),
            ]
        )
        return stream_id

    async def read_until(
        self, stream_id: str, found: Callable[[AnyLogEntry], bool], *, seconds: float = WAIT_SECONDS
    ) -> list[AnyLogEntry]:
        """Follow a log until an entry is `found`; return everything up to it."""
        entries: list[AnyLogEntry] = []
        last = b"0"
        async with asyncio.timeout(seconds):
            while True:
                rows: Reply = await self.redis.xread({redis_keys.log_key(stream_id): last}, count=100, block=1000)
                for entry_id, fields in _rows(rows):
                    last = entry_id
                    entries.append(codec.decode_log_entry(fields[b"d"]))
                    if found(entries[-1]):
                        return entries

    async def answer(self, stream_id: str, *, seconds: float = WAIT_SECONDS) -> Answer:
        """Read a stream to its end."""
        return Answer(await self.read_until(stream_id, lambda entry: isinstance(entry, Ended), seconds=seconds))

    async def tokens(self, stream_id: str, count: int) -> int:
        """Return how many tokens are in a log once there are `count`: a record may say it is held before they are."""
        await self.read_until(stream_id, lambda entry: isinstance(entry, Delta) and entry.seq >= count)
        return len(await self.log.token_ids(stream_id))

    async def first_token(self, stream_id: str) -> list[AnyLogEntry]:
        """Read a stream up to its first token."""
        return await self.read_until(stream_id, lambda entry: isinstance(entry, Delta))

    async def cancel(self, stream_id: str) -> None:
        """Cancel as its client."""
        await self.queue.cancel(stream_id, tenant_id="t", reason="client", incarnation=GATEWAY)

    async def workers(self) -> list[WorkerInfo]:
        """Return what the fleet has registered."""
        rows: Reply = await self.redis.hgetall(redis_keys.workers_key())
        return [codec.decode(raw, WorkerInfo) for raw in rows.values()]

    async def worker_in(self, state: WorkerState, *, seconds: float = WAIT_SECONDS) -> WorkerInfo:
        """Wait until a worker has registered as `state`."""
        return await self.worker_that(lambda info: info.state is state, seconds=seconds)

    async def worker_that(self, found: Callable[[WorkerInfo], bool], *, seconds: float = WAIT_SECONDS) -> WorkerInfo:
        """Wait until a worker's registration is as wanted, looking with each announcement and each renewal."""
        async with asyncio.timeout(seconds), self.redis.pubsub() as channel:
            await channel.subscribe(redis_keys.fleet_channel())
            while True:
                for info in await self.workers():
                    if found(info):
                        return info
                await channel.get_message(timeout=0.05)

    async def nobody_left(self, *, seconds: float = WAIT_SECONDS) -> None:
        """Wait until no worker is registered."""
        async with asyncio.timeout(seconds), self.redis.pubsub() as channel:
            await channel.subscribe(redis_keys.fleet_channel())
            while await self.workers():
                await channel.get_message(timeout=0.05)

    async def record_that(
        self, stream_id: str, found: Callable[[StreamRecord], bool], *, seconds: float = WAIT_SECONDS
    ) -> StreamRecord:
        """Wait until a stream's record is as wanted. Records change silently, so this looks again and again."""
        async with asyncio.timeout(seconds), self.redis.pubsub() as channel:
            await channel.subscribe(redis_keys.fleet_channel())
            while True:
                record = await self.queue.record(stream_id)
                assert record is not None
                if found(record):
                    return record
                await channel.get_message(timeout=0.02)

    async def record_in(self, stream_id: str, state: StreamState, *, seconds: float = WAIT_SECONDS) -> StreamRecord:
        """Wait until a stream is in a state."""
        return await self.record_that(stream_id, lambda record: record.state is state, seconds=seconds)

    async def bury(self, incarnation: str) -> list[str]:
        """Do what a gateway does once a dead worker's lease has run out, without waiting for that.

        Returns the streams that went back into their queue.
        """
        heir = new_incarnation("gateway")
        await self.queue.enlist(heir, lease_seconds=WAIT_SECONDS, channels=[])
        await self.redis.zadd(redis_keys.incarnations_key(), {incarnation: 1})
        await self.redis.hdel(redis_keys.workers_key(), incarnation)
        reaped = await self.queue.reap(heir)
        for taken in reaped.taken:
            await self.queue.requeue(
                taken.stream_id,
                epoch=taken.epoch,
                incarnation=heir,
                deployment=taken.deployment,
                max_attempts=MAX_ATTEMPTS,
            )
        return [taken.stream_id for taken in reaped.taken]

    async def delivered(self) -> list[AnyLogEntry]:
        """Return everything that was delivered to this gateway."""
        rows: Reply = await self.redis.xrange(redis_keys.delivery_key(GATEWAY))
        payloads = [fields[b"d"] for _, fields in rows if fields[b"d"]]
        return [entry for payload in payloads for entry in codec.decode_log_entries(payload)]


def _rows(rows: Reply) -> list[tuple[bytes, dict[bytes, bytes]]]:
    if not rows:
        return []
    return list(next(iter(rows.values()))[0] if isinstance(rows, dict) else rows[0][1])
