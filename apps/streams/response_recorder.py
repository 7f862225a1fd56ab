"""Keeps the answers of static requests once their streams have ended.

Not the gateway that delivers an answer keeps it, but whichever takes the finished stream from Redis, from its log: a
client that leaves loses no entry and writes no partial one, and neither does a gateway that dies.
"""

import asyncio
from collections.abc import Callable

import structlog
from redis.exceptions import RedisError

from apps.streams import response_metrics as metrics
from apps.streams.personal_data_check import has_personal_data
from headrace_wire.flights import KeepOrder
from headrace_wire.kept_answers import Kept, KeptAnswer, KeptAnswers
from headrace_wire.messages import AnyLogEntry, Delta, Ended, FinishReason, Started, StreamState
from headrace_wire.token_log import TokenLog

log = structlog.get_logger(__name__)

WAIT_SECONDS = 5.0
RETRY_SECONDS = 1.0
ALARM_SHARE = 0.9
"""Of a tenant's room; from there on its oldest answers are about to go."""

_OWN_ENDS = frozenset({FinishReason.STOP, FinishReason.LENGTH})


class ResponseRecorder:
    """Takes finished streams and keeps their answers, until cancelled."""

    def __init__(self, answers: KeptAnswers, token_log: TokenLog, *, has_tenant: Callable[[str], bool]) -> None:
        """`has_tenant` says whether the configuration has a tenant of this id: one that was deleted leaves nothing."""
        self._answers = answers
        self._log = token_log
        self._has_tenant = has_tenant
        self._nearly_full: set[str] = set()
        """Tenants whose room was, when something was kept last: it is told once."""
        self.dealt_with = 0
        """Finished streams that were looked at."""

    async def run(self) -> None:
        """Take one stream after the other."""
        while True:
            try:
                stream_id = await self._answers.next_finished(timeout_seconds=WAIT_SECONDS)
                if stream_id is not None:
                    await self._record(stream_id)
                    self.dealt_with += 1
            except RedisError as error:
                log.warning("answer_not_kept", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                metrics.NOT_KEPT.labels("error").inc()
                log.exception("answer_not_kept")

    async def _record(self, stream_id: str) -> None:
        order = await self._answers.order_of(stream_id)
        if order is None:
            metrics.NOT_KEPT.labels("gone").inc()
            return
        tenant_id, deployment, keep = order
        try:
            await self._keep(stream_id, tenant_id, deployment, keep)
        finally:
            await self._answers.land(stream_id, tenant_id, keep)

    async def _keep(self, stream_id: str, tenant_id: str, deployment: str, order: KeepOrder) -> None:
        if not self._has_tenant(tenant_id):
            metrics.NOT_KEPT.labels("tenant_gone").inc()
            return
        answer = whole_answer(await self._log.read(stream_id) or [])
        if answer is None:
            metrics.NOT_KEPT.labels("not_whole").inc()
        elif await has_personal_data([answer.text]):
            metrics.NOT_KEPT.labels("personal_data").inc()
        else:
            self._note(tenant_id, deployment, order, answer, await self._answers.keep(order, tenant_id, answer))

    def _note(self, tenant_id: str, deployment: str, order: KeepOrder, answer: KeptAnswer, kept: Kept) -> None:
        metrics.EVICTED.inc(kept.evicted)
        if not kept.is_stored:
            metrics.NOT_KEPT.labels("too_large").inc()
            return
        metrics.KEPT.labels(deployment).inc()
        metrics.KEPT_BYTES.inc(len(answer.text.encode()))
        self._alarm(tenant_id, order, kept)

    def _alarm(self, tenant_id: str, order: KeepOrder, kept: Kept) -> None:
        if kept.bytes <= ALARM_SHARE * order.max_bytes:
            self._nearly_full.discard(tenant_id)
        elif tenant_id not in self._nearly_full:
            self._nearly_full.add(tenant_id)
            metrics.ALARMS.inc()
            log.warning(
                "response_cache_nearly_full",
                tenant_id=tenant_id,
                bytes=kept.bytes,
                max_bytes=order.max_bytes,
                evicted=kept.evicted,
            )


def whole_answer(entries: list[AnyLogEntry]) -> KeptAnswer | None:
    """Return the answer of a log that ended by itself; None of any other, and of one that went on inexactly."""
    ended = entries[-1] if entries else None
    if not isinstance(ended, Ended) or ended.state is not StreamState.FINISHED or ended.finish_reason not in _OWN_ENDS:
        return None
    owners = [entry for entry in entries if isinstance(entry, Started)]
    if len(owners) > 1 and not all(owner.is_exact for owner in owners):
        return None
    text = "".join(entry.text for entry in entries if isinstance(entry, Delta))
    return KeptAnswer(text, ended.seq - 1, ended.finish_reason, ended.stop_reason, ended.usage, ended.timings)
