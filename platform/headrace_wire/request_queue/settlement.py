"""The end of a stream on its record: the call that books what it used, exactly once, for one or for several at once.

One whose settlement Redis refuses for a reason of its own (a record that cannot be read, say) would be settled for ever
and hold up those that ended with it. It is set aside: ended without being booked, kept with the reason for a person,
who has it settled again (`manage.py settlements_retry`) once the cause is mended.
"""

import logging
from collections.abc import Callable, Sequence

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from headrace_wire import redis_keys
from headrace_wire.functions import Argument, Call, Functions, Reply
from headrace_wire.messages import FinishReason, StreamState, Usage

log = logging.getLogger(__name__)

TOMBSTONE_SECONDS = 24 * 3600
"""How much longer than its log a stream's record lives, so that an expired stream is told from an unknown one."""

_SERVERS_OWN = ("MISCONF", "BUSY", "UNKILLABLE", "NOREPLICAS", "OOM", "READONLY", "LOADING")
"""Refusals that say something of the server, and nothing of the call; for others redis-py has exceptions."""
RETRY_AT_ONCE = 256


def settle_call(
    stream_id: str,
    *,
    epoch: int,
    incarnation: str,
    state: StreamState,
    log_ttl_seconds: int,
    finish_reason: FinishReason,
    usage: Usage,
) -> Call:
    """Return the call that `RequestQueue.settle` makes; answered by 1, or by 0 where it was not ours (any more)."""
    keep = (log_ttl_seconds + TOMBSTONE_SECONDS) * 1000
    args: list[Argument] = [
        *(stream_id, epoch, state.value, keep, finish_reason.value),
        *(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens),
    ]
    return "settle", _keys(stream_id, redis_keys.assigned_key(incarnation)), args


async def settle_all(functions: Functions, calls: Sequence[Call], *, set_aside: Callable[[], None]) -> None:
    """Make these `settle_call`s, in one round trip where all goes well; `set_aside` is told of each that is.

    Bears repetition. Raises:
        redis.exceptions.RedisError: no answer, or Redis refuses whatever it is asked.
    """
    try:
        await functions.call_many(calls)
    except ResponseError as error:
        if _is_of_the_server(error):
            raise
    else:
        return
    for call in calls:
        try:
            await functions.call(*call)
        except ResponseError as error:
            if _is_of_the_server(error):
                raise
            set_aside()
            await _set_aside(functions, call, str(error))


async def settle_set_aside(redis: "Redis", functions: Functions) -> tuple[int, list[str]]:
    """Settle what was set aside; returns how many were, and the ids of the streams that still cannot be.

    Of a stream whose record is gone nothing can be booked; it stays, for its numbers.
    """
    settled, failed, after = 0, list[str](), "-"
    while rows := await _entries(redis, after):
        for entry_id, fields in rows:
            text = {name.decode(): value.decode(errors="replace") for name, value in fields.items()}
            if await _settle_again(functions, text):
                await redis.xdel(redis_keys.settlements_set_aside_key(), entry_id)
                settled += 1
            else:
                failed.append(text["stream"])
        after = f"({rows[-1][0].decode()}"
    return settled, failed


async def _entries(redis: "Redis", after: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    rows: Reply = await redis.xrange(redis_keys.settlements_set_aside_key(), min=after, count=RETRY_AT_ONCE)
    return list(rows)


async def _settle_again(functions: Functions, text: dict[str, str]) -> bool:
    record, epoch = redis_keys.stream_key(text["stream"]), text["epoch"]
    if not await functions.call("settle_again", [record], [epoch]):
        return False
    args: list[Argument] = [text["stream"], epoch, text["state"], text["keep_ms"], text["finish"]]
    args += [text["prompt"], text["cached"], text["completion"]]
    call: Call = "settle", _keys(text["stream"], redis_keys.assigned_key(text["owner"])), args
    try:
        return bool(await functions.call(*call))
    except ResponseError as error:
        log.error("cannot be settled stream_id=%s: %s", text["stream"], error)  # noqa: TRY400  its trace says no more
        await functions.call("end_again", [record], [text["state"]])
        return False


async def _set_aside(functions: Functions, call: Call, problem: str) -> None:
    _, keys, args = call
    log.error("settlement set aside stream_id=%s epoch=%s: %s", args[0], args[1], problem)
    aside = [keys[0], keys[1], redis_keys.settlements_set_aside_key(), redis_keys.queue_prefix(), keys[5]]
    try:
        await functions.call("set_aside", aside, [*args, problem[:1000]])
    except ResponseError as error:
        if _is_of_the_server(error):
            raise
        log.exception("not even set aside, only logged: %s", [*args])


def _is_of_the_server(error: ResponseError) -> bool:
    return type(error) is not ResponseError or str(error).startswith(_SERVERS_OWN)


def _keys(stream_id: str, assigned_key: str) -> list[str]:
    return [
        redis_keys.stream_key(stream_id),
        assigned_key,
        redis_keys.usage_key(),
        redis_keys.soft_limits_key(),
        redis_keys.queue_prefix(),
        redis_keys.stream_prefix(),
        redis_keys.finished_answers_key(),
    ]
