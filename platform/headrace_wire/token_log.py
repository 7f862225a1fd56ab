"""The token log: one Redis stream per stream of tokens, written by one fenced owner, read by anyone of its tenant.

Entry ids are `<epoch>-<seq>` (DESIGN 3.2). A log is created once (`open_call`), never trimmed while it lives, and
expires a retention time after its terminal entry.
"""

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import cache

from msgspec import Struct
from redis.asyncio import Redis

from headrace_wire import codec, redis_keys
from headrace_wire.functions import Argument, Call, Functions, Reply
from headrace_wire.ids import shard_of
from headrace_wire.messages import AnyLogEntry, Ended, Opened

STREAM_MAX_SECONDS = 24 * 3600
"""How long a stream may live before its log and record expire under it."""

DELIVERY_LIMIT = 8192
"""Entries (engine steps) that a gateway may lag behind before its delivery stream is trimmed and it re-reads the
logs.
"""

_packers: dict[tuple[int, int, int, int], struct.Struct] = {}
_MOST_PACKERS = 4096


class AppendResult(IntEnum):
    """What became of one appended entry."""

    ACCEPTED = 1
    GONE = 0
    """The log has expired or was deleted: drop the stream."""
    REFUSED = -1
    """An id as high or higher is there: our own (an answer got lost) or a successor's. `tail` tells."""


class Append(Struct, frozen=True, gc=False):
    """One entry to append, with the token ids that it adds."""

    entry: AnyLogEntry
    token_ids: Sequence[int] = ()
    token_ids_at: int = 0
    """Position (count of tokens before) of the first of `token_ids`."""
    log_ttl_seconds: int = 0
    """Set on terminal entries only: retention from now on."""


class TokenLog:
    """Reads and writes token logs. Safe to share between tasks; order within a stream is the caller's affair."""

    def __init__(self, redis: "Redis", functions: Functions, *, shards: int = redis_keys.LOG_SHARDS) -> None:
        self._redis = redis
        self._functions = functions
        self._shards = shards

    def open_call(self, stream_id: str, *, readers: Sequence[str], ttl_seconds: int = STREAM_MAX_SECONDS) -> Call:
        """Return the call that creates a log, to be sent together with admission."""
        shard = shard_of(stream_id, self._shards)
        keys = [redis_keys.log_key(stream_id, shard), redis_keys.readers_key(stream_id, shard)]
        return "open", keys, [codec.encode(Opened(stream_id, 1, 0)), ttl_seconds * 1000, *readers]

    async def discard(self, stream_id: str) -> None:
        """Delete a log whose stream was not admitted."""
        shard = shard_of(stream_id, self._shards)
        await self._redis.delete(redis_keys.log_key(stream_id, shard), redis_keys.readers_key(stream_id, shard))

    async def append(self, appends: Sequence[Append]) -> list[AppendResult]:
        """Append one engine step's entries, in order; accepted ones that are not terminal are delivered at once.

        Returns one result per entry. Terminal entries are delivered by `publish`, after the stream was settled.

        Raises:
            redis.exceptions.RedisError: no answer; what was appended is unknown, `tail` tells.
        """
        results: list[AppendResult] = [AppendResult.GONE] * len(appends)
        for indices, call in self.append_calls(appends):
            for i, result in zip(indices, await self._functions.call(*call), strict=True):
                results[i] = AppendResult(result)
        return results

    def append_calls(self, appends: Sequence[Append]) -> list[tuple[Sequence[int], Call]]:
        """Return the calls that `append` makes, one per shard, each with the places in `appends` that it covers.

        A call's answer is one integer, an `AppendResult`, per place.
        """
        if self._shards == 1:
            args: list[Argument] = [DELIVERY_LIMIT, _pack(appends)]
            return [(range(len(appends)), ("append", _append_keys(0), args))] if appends else []
        return [
            (indices, ("append", _append_keys(shard), [DELIVERY_LIMIT, _pack([appends[i] for i in indices])]))
            for shard, indices in self._by_shard([a.entry.stream_id for a in appends]).items()
        ]

    async def publish(self, entries: Sequence[Ended]) -> None:
        """Deliver terminal entries to the gateways that read their streams."""
        for call in self.publish_calls(entries):
            await self._functions.call(*call)

    def publish_calls(self, entries: Sequence[Ended]) -> list[Call]:
        """Return the calls that `publish` makes, one per shard."""
        calls: list[Call] = []
        for shard, indices in self._by_shard([entry.stream_id for entry in entries]).items():
            args: list[Argument] = [DELIVERY_LIMIT]
            for i in indices:
                args += [entries[i].stream_id, codec.encode(entries[i])]
            calls.append(("publish", [redis_keys.readers_prefix(shard), redis_keys.delivery_prefix(shard)], args))
        return calls

    async def tell_readers(self, stream_id: str, entry: Ended) -> None:
        """Deliver an entry that is in no log to the gateways that read a stream; it names whom it is for."""
        shard = shard_of(stream_id, self._shards)
        keys = [redis_keys.readers_prefix(shard), redis_keys.delivery_prefix(shard)]
        await self._functions.call("publish", keys, [DELIVERY_LIMIT, stream_id, codec.encode(entry)])

    async def read(self, stream_id: str, *, after_seq: int = -1) -> list[AnyLogEntry] | None:
        """Return the entries with `seq` greater than `after_seq` in order, or None when there is no log.

        Entry ids start with an epoch that the caller need not know, so the whole log is read; max_tokens bounds it.
        """
        key = redis_keys.log_key(stream_id, shard_of(stream_id, self._shards))
        rows: Reply = await self._redis.xrange(key)
        if not rows:
            return None
        entries = [codec.decode_log_entry(fields[b"d"]) for _, fields in rows]
        return [entry for entry in entries if entry.seq > after_seq]

    async def read_on(self, stream_id: str, *, after: str, block_seconds: float = 1.0) -> tuple[str, list[AnyLogEntry]]:
        """Return the entries after the id `after` ("0-0" for all) and the last one's id, waiting for the first a while.

        Empty where none came, and where there is no log. Holds a connection while it waits.
        """
        key = redis_keys.log_key(stream_id, shard_of(stream_id, self._shards))
        reply: Reply = await self._redis.xread({key: after}, block=max(1, int(block_seconds * 1000)))
        if not reply:
            return after, []
        rows = next(iter(reply.values()))[0] if isinstance(reply, dict) else reply[0][1]  # RESP 3 or 2
        return rows[-1][0].decode(), [codec.decode_log_entry(fields[b"d"]) for _, fields in rows]

    async def tail(self, stream_id: str) -> AnyLogEntry | None:
        """Return the last entry, or None when there is no log."""
        key = redis_keys.log_key(stream_id, shard_of(stream_id, self._shards))
        rows: Reply = await self._redis.xrevrange(key, count=1)
        return codec.decode_log_entry(rows[0][1][b"d"]) if rows else None

    async def tails(self, stream_ids: Sequence[str]) -> list[AnyLogEntry | None]:
        """Return the last entries, in one round trip; None where there is no log, or its entry cannot be read."""
        if not stream_ids:
            return []
        pipeline = self._redis.pipeline(transaction=False)
        for stream_id in stream_ids:
            pipeline.xrevrange(redis_keys.log_key(stream_id, shard_of(stream_id, self._shards)), count=1)
        found: list[AnyLogEntry | None] = []
        for rows in await pipeline.execute():
            try:
                found.append(codec.decode_log_entry(rows[0][1][b"d"]) if rows else None)
            except codec.DecodeError:
                found.append(None)
        return found

    async def token_ids(self, stream_id: str) -> list[int]:
        """Return all token ids generated so far (worker only: they run ahead of what a guard has released)."""
        return (await self.token_ids_of([stream_id]))[stream_id]

    async def token_ids_of(self, stream_ids: Sequence[str]) -> dict[str, list[int]]:
        """Return the same of several streams, in one round trip."""
        if not stream_ids:
            return {}
        pipeline = self._redis.pipeline(transaction=False)
        for stream_id in stream_ids:
            pipeline.get(redis_keys.token_ids_key(stream_id, shard_of(stream_id, self._shards)))
        rows: Reply = await pipeline.execute()
        return {one: codec.unpack_token_ids(raw or b"") for one, raw in zip(stream_ids, rows, strict=True)}

    async def attach(self, stream_id: str, gateway: str) -> bool:
        """Have everything appended from now on delivered to `gateway`; False when there is no log."""
        return bool((await self._functions.call_many([self._attach_call(stream_id, gateway)]))[0])

    async def attach_all(self, stream_ids: Sequence[str], gateway: str) -> None:
        """Attach `gateway` to streams, those without a log left out; again does no harm."""
        if stream_ids:
            await self._functions.call_many([self._attach_call(stream_id, gateway) for stream_id in stream_ids])

    async def detach(self, stream_id: str, gateway: str) -> int:
        """Stop delivery to `gateway`; returns how many gateways still read the stream."""
        keys = [redis_keys.readers_key(stream_id, shard_of(stream_id, self._shards))]
        return int(await self._functions.call("detach", keys, [gateway]))

    async def is_read(self, stream_id: str) -> bool:
        """Say whether a gateway has the stream delivered to it."""
        readers: Reply = await self._redis.exists(redis_keys.readers_key(stream_id, shard_of(stream_id, self._shards)))
        return bool(readers)

    def _attach_call(self, stream_id: str, gateway: str) -> Call:
        shard = shard_of(stream_id, self._shards)
        return "attach", [redis_keys.log_key(stream_id, shard), redis_keys.readers_key(stream_id, shard)], [gateway]

    def _by_shard(self, stream_ids: Sequence[str]) -> dict[int, list[int]]:
        if self._shards == 1:
            return {0: list(range(len(stream_ids)))} if stream_ids else {}
        groups: dict[int, list[int]] = {}
        for i, stream_id in enumerate(stream_ids):
            groups.setdefault(shard_of(stream_id, self._shards), []).append(i)
        return groups


@cache
def _append_keys(shard: int) -> tuple[str, ...]:
    """Return the keys of `append` for a shard, once: they are those of every engine step."""
    prefixes = (
        redis_keys.log_prefix,
        redis_keys.token_ids_prefix,
        redis_keys.readers_prefix,
        redis_keys.delivery_prefix,
    )
    return tuple(prefix(shard) for prefix in prefixes)


def _pack(appends: Iterable[Append]) -> bytes:
    """Return entries as `append.lua` unpacks them."""
    parts: list[bytes] = []
    for append in appends:
        entry, ids = append.entry, append.token_ids
        stream_id, entry_id = entry.stream_id.encode(), b"%d-%d" % (entry.epoch, entry.seq)
        payload = codec.encode(entry)
        # One token, nearly always: `pack_token_ids` without its call.
        token_ids = ids[0].to_bytes(4, "little") if len(ids) == 1 else codec.pack_token_ids(ids)
        lengths = (len(stream_id), len(entry_id), len(payload), len(token_ids))
        # A format for each combination: entries are much alike, and this takes half the time of putting them together.
        packer = _packers.get(lengths) or _packer(lengths)
        parts.append(
            packer.pack(
                lengths[0],
                stream_id,
                lengths[1],
                entry_id,
                lengths[2],
                payload,
                lengths[3],
                token_ids,
                append.token_ids_at * 4,
                append.log_ttl_seconds,
            )
        )
    return b"".join(parts)


def _packer(lengths: tuple[int, int, int, int]) -> struct.Struct:
    packer = struct.Struct("<B{}sB{}sI{}sI{}sII".format(*lengths))
    if len(_packers) < _MOST_PACKERS:
        _packers[lengths] = packer
    return packer
