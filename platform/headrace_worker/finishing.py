"""The last steps of streams whose ends are in their logs: settle, then publish; both bear repetition (DESIGN 3)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import TypeVar

from redis.exceptions import RedisError

from headrace_wire.functions import Argument, Call, Functions, Reply
from headrace_wire.messages import Ended, FinishReason, StreamState, Usage
from headrace_wire.redis_link import RedisLink
from headrace_wire.request_queue import settle_all, settle_call
from headrace_wire.token_log import TokenLog
from headrace_worker.outbox import Outbox

log = logging.getLogger(__name__)

_T = TypeVar("_T")

End = tuple[Outbox, Ended]

BACK_OFF_SECONDS = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)


class Finishing:
    """Settles and publishes what ended in one step together."""

    def __init__(
        self,
        functions: Functions,
        token_log: TokenLog,
        tasks: asyncio.TaskGroup,
        *,
        finished: Callable[[Sequence[End]], None],
        set_aside: Callable[[], None],
    ) -> None:
        """`finished` is told of streams that are settled and whose ends are published, as often as that is done.

        `set_aside` is told of each stream that is ended without being booked, since its settlement fails.
        """
        self._functions = functions
        self._token_log = token_log
        self._tasks = tasks
        self._finished = finished
        self._set_aside = set_aside

    def begin(self, ended: Sequence[End], link: RedisLink | None) -> None:
        """Settle over `link`, and publish in the callback of its answer: a task would wake up three times for that.

        Without a link, or where something fails on it, a task goes on over the client until Redis has answered. Whoever
        closes the link has to begin again.
        """

        def settled(replies: list[Reply] | RedisError) -> None:
            if link is None or _has_failed(replies):
                self._tasks.create_task(self._finish(ended))
            else:
                entries = [entry for _, entry in ended]
                link.send(self._commands(self._token_log.publish_calls(entries)), published)

        def published(replies: list[Reply] | RedisError) -> None:
            if _has_failed(replies):
                self._tasks.create_task(self._finish(ended))
            else:
                self._finished(ended)

        if link is None:
            self._tasks.create_task(self._finish(ended))
        else:
            link.send(self._commands(_settle_calls(ended)), settled)

    def give_up(self, outbox: Outbox) -> None:
        """Settle a stream of which nobody can read anything: it has failed, and there is no end to be published."""
        calls = _settle_calls([(outbox, None)])
        self._tasks.create_task(until_answered(lambda: self._settle(calls)))

    async def _finish(self, ended: Sequence[End]) -> None:
        async def settle_and_publish() -> None:
            await self._settle(_settle_calls(ended))
            await self._token_log.publish([entry for _, entry in ended])

        await until_answered(settle_and_publish)
        self._finished(ended)

    async def _settle(self, calls: Sequence[Call]) -> None:
        await settle_all(self._functions, calls, set_aside=self._set_aside)

    def _commands(self, calls: Sequence[Call]) -> list[tuple[Argument, ...]]:
        return [self._functions.command(call) for call in calls]


async def until_answered(call: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat a call, which bears repetition, until Redis has answered it."""
    for attempt in count(1):
        try:
            return await call()
        except RedisError as error:
            log.warning("waiting for redis: %s", error)
            await asyncio.sleep(BACK_OFF_SECONDS[min(attempt, len(BACK_OFF_SECONDS) - 1)])
    raise AssertionError


def _settle_calls(ends: Sequence[tuple[Outbox, Ended | None]]) -> list[Call]:
    return [
        settle_call(
            outbox.stream_id,
            epoch=outbox.epoch,
            incarnation=outbox.incarnation,
            state=ended.state if ended else StreamState.FAILED,
            log_ttl_seconds=outbox.log_ttl_seconds,
            finish_reason=ended.finish_reason if ended else FinishReason.ERROR,
            usage=ended.usage if ended else Usage(),
        )
        for outbox, ended in ends
    ]


def _has_failed(replies: list[Reply] | RedisError) -> bool:
    return isinstance(replies, RedisError) or any(isinstance(reply, Exception) for reply in replies)
