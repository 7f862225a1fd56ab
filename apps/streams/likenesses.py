"""Finds questions that were answered already and ask for the same: embedded in a child, within a small budget."""

import asyncio

import structlog
from msgspec import Struct
from redis.exceptions import RedisError

from apps.streams import response_metrics as metrics
from headrace_guard.judges.child_process import START_SECONDS
from headrace_guard.judges.frames import Comparison
from headrace_guard.judges.pool import JudgePool, PoolSettings
from headrace_guard.judges.verdicts import JudgeFailure
from headrace_wire.cancellation import cancel_and_wait
from headrace_wire.kept_answers import KeptAnswers
from headrace_wire.response_cache_terms import ResponseCacheTerms

log = structlog.get_logger(__name__)

BUDGET_SECONDS = 0.1
"""By which a static request is delayed at most, where a policy has questions compared; a text takes 10 to 30 ms."""
MOST_WAITING = 16
"""More would be late anyway."""
CANDIDATES = 3
"""The answer of the most alike may have ended meanwhile, or be too old for the caller."""


class Question(Struct, frozen=True):
    """What may be compared with other questions of its partition."""

    text: str
    partition: str


class Alike(Struct, frozen=True):
    """What is known of a question."""

    packed: bytes = b""
    """The form in which it is kept; empty where it cannot be, or was not had in time."""
    nearest: tuple[tuple[str, float], ...] = ()
    """Names of the answers to those that ask for the same, with their similarity, the most alike first."""


class Likenesses:
    """One per gateway. Nothing is started before a policy wants it."""

    def __init__(self, answers: KeptAnswers, *, budget_seconds: float = BUDGET_SECONDS) -> None:
        self._answers = answers
        self._budget = budget_seconds
        self._pool = JudgePool(settings=PoolSettings(queue_limit=MOST_WAITING, batch_limit=1))
        self._warming: asyncio.Task[None] | None = None

    def warm(self) -> None:
        """Have the model loaded, so that the first question is not late."""
        if self._warming is None:
            self._warming = asyncio.create_task(self._warm(), name="likeness")

    async def warmed(self) -> None:
        """Wait until the model is loaded, or is known not to be there."""
        if self._warming is not None:
            await asyncio.shield(self._warming)

    async def close(self) -> None:
        """End the child."""
        if self._warming is not None:
            await cancel_and_wait(self._warming)
        await self._pool.close()

    async def find(self, tenant_id: str, question: Question, policy: ResponseCacheTerms, *, compares: bool) -> Alike:
        """Return the question's packed form, and the tenant's answers to those like it; nothing where that is late.

        `compares` false: only the form is wanted.
        """
        deadline = asyncio.get_running_loop().time() + self._budget
        known: dict[str, bytes] = {}
        try:
            if compares:
                async with asyncio.timeout_at(deadline):
                    known = await self._answers.alike(tenant_id, question.partition)
            likeness = await self._pool.compare(
                Comparison(
                    question.text,
                    tuple(known.values()),
                    least=policy.semantic_threshold,
                    same_words=policy.semantic_same_words,
                    most=CANDIDATES,
                ),
                deadline_seconds=max(0.0, deadline - asyncio.get_running_loop().time()),
            )
        except (TimeoutError, RedisError, JudgeFailure) as error:
            reason = "store" if isinstance(error, RedisError) else getattr(error, "reason", "timeout")
            if reason not in ("timeout", "overload"):
                log.warning("question_not_compared", reason=reason, error=str(error))
            metrics.COMPARISONS.labels(reason).inc()
            return Alike()
        names = list(known)
        nearest = tuple((names[index], similarity) for index, similarity in likeness.nearest)
        outcome = "found" if nearest else "none" if likeness.packed else "unreadable"
        metrics.COMPARISONS.labels(outcome).inc()
        return Alike(likeness.packed, nearest)

    async def _warm(self) -> None:
        try:
            await self._pool.compare(Comparison("Is it there?"), deadline_seconds=START_SECONDS)
        except JudgeFailure as error:
            log.warning("questions_cannot_be_compared", reason=error.reason, error=str(error))
