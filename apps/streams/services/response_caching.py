"""The response cache before admission: gives a kept answer, or says how the request is to be admitted."""

import time
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial

import msgspec
import structlog
import zstandard
from msgspec import Struct
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from apps.streams import response_metrics as metrics
from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from apps.streams.likenesses import Alike
from apps.streams.personal_data_check import has_personal_data
from apps.streams.refusals import refusal_error
from apps.streams.services.guarding import GuardedInput
from apps.streams.services.similar_questions import question_of
from apps.streams.services.static_requests import (
    Bypass,
    CacheControls,
    answer_digest,
    counted_terms,
    reason_against,
)
from apps.streams.subscription import Subscription
from headrace_wire.admission import AdmissionTerms, Rates, Refusal
from headrace_wire.errors import DependencyUnavailableError
from headrace_wire.flights import Flight, KeepOrder
from headrace_wire.kept_answers import KeptAnswer, Recalled
from headrace_wire.messages import (
    AnyLogEntry,
    Delta,
    Ended,
    SamplingParams,
    Started,
    StreamState,
)
from headrace_wire.quota_terms import admission_terms
from headrace_wire.response_cache_terms import ResponseCacheTerms
from headrace_wire.snapshot import DeploymentConfig
from headrace_wire.token_log import Append

log = structlog.get_logger(__name__)

CACHE_OWNER = "response-cache"
"""Who has "generated" an answer that was kept."""


class CacheWord(StrEnum):
    """What the header says."""

    HIT = "hit"
    SEMANTIC = "semantic"
    """The kept answer to another question, which asks for the same."""
    MISS = "miss"
    BYPASS = "bypass"


class Asked(Struct, frozen=True):
    """How a request is asked, beside what."""

    stream_id: str
    controls: CacheControls
    can_return: bool
    """Whether its caller may come back for the answer."""
    has_key: bool
    """It has an idempotency key, which leads to a stream of its own."""
    is_named: bool
    """Somebody has written the stream's id down already: it must be a stream of its own."""


class CacheOutcome(Struct, frozen=True):
    """What the cache had to do with a request."""

    word: CacheWord = CacheWord.BYPASS
    age_seconds: int | None = None
    """Of the answer, where it was kept or is shared."""
    similarity: float | None = None
    """0 to 1, of the question that was answered; where that was another one."""


class Consulted(Struct, frozen=True):
    """The cache was asked: it gave an answer, or says how the request is to be admitted."""

    outcome: CacheOutcome = CacheOutcome()
    subscription: Subscription | None = None
    """Gives the kept answer."""
    rates: Rates = Rates()
    policy: ResponseCacheTerms | None = None
    order: KeepOrder | None = None
    controls: CacheControls = CacheControls()
    is_named: bool = False
    """Somebody has written the stream's id down already: it must be a stream of its own."""

    def flight(self, terms: AdmissionTerms) -> Flight | None:
        """Return what admission is told of a static request; None for any other."""
        if self.policy is None or self.order is None or (self.is_named and not self.policy.include_chat):
            return None
        return Flight(
            self.order,
            counted_terms(terms, self.policy),
            self.policy.count_tokens,
            may_ride=not self.controls.no_cache and not self.is_named,
            may_keep=not self.controls.no_store and self.order.ttl_seconds > 0,
        )


_BYPASS = Consulted()


async def consult(
    *,
    gateway: Gateway,
    caller: Caller,
    deployment: DeploymentConfig,
    guarded: GuardedInput,
    sampling: SamplingParams,
    asked: Asked,
) -> Consulted:
    """Give a kept answer, booked to the caller, or say how the request is to be admitted.

    Raises:
        RateLimitError, InsufficientQuotaError: the answer counts in quotas, and does not fit in one.
        DependencyUnavailableError: Redis does not answer.
    """
    policy = gateway.config.response_cache(caller, deployment)
    if policy is None:
        return _BYPASS
    if asked.is_named and policy.include_chat:
        asked = msgspec.structs.replace(asked, controls=msgspec.structs.replace(asked.controls, use_cache=True))
    reason = reason_against(policy, sampling, asked.controls, guarded, has_key=asked.has_key)
    if reason is not None:
        return _bypass(reason)
    ttl = min(policy.ttl_seconds, caller.tenant.retention_seconds)
    member = f"{deployment.id}:{answer_digest(gateway, caller, deployment, policy, guarded, sampling)}"
    look = partial(_look, gateway, caller, deployment, policy, asked, ttl)
    if not asked.controls.no_cache and (given := await look(member)) is not None:
        return given
    if await has_personal_data([turn.content for turn in guarded.conversation]):
        return _bypass(Bypass.PERSONAL_DATA)
    question = question_of(
        gateway, caller, deployment, policy, guarded, sampling, asked.controls, is_named=asked.is_named
    )
    alike = Alike()
    if question is not None:
        compares = not asked.controls.no_cache
        alike = await gateway.likenesses.find(caller.tenant.id, question, policy, compares=compares)
        for name, similarity in alike.nearest:
            if (given := await look(name, similarity=similarity)) is not None:
                return given
    keep_for = ttl if asked.controls.ttl_seconds is None else min(ttl, asked.controls.ttl_seconds)
    partition = question.partition if question is not None and alike.packed else ""
    order = KeepOrder(member, int(keep_for), policy.max_bytes, partition, alike.packed)
    return Consulted(
        CacheOutcome(CacheWord.MISS), policy=policy, order=order, controls=asked.controls, is_named=asked.is_named
    )


def _bypass(reason: Bypass) -> Consulted:
    metrics.BYPASSED.labels(reason.value).inc()
    return _BYPASS


async def _look(
    gateway: Gateway,
    caller: Caller,
    deployment: DeploymentConfig,
    policy: ResponseCacheTerms,
    asked: Asked,
    ttl_seconds: float,
    member: str,
    *,
    similarity: float | None = None,
) -> Consulted | None:
    """Give the answer of this name, or say that Redis cannot; None where there is none, or it is too old."""
    max_age = asked.controls.max_age_seconds
    most_age = ttl_seconds if max_age is None else min(ttl_seconds, max_age)
    try:
        recalled = await _recall(gateway, caller, deployment, policy, member, asked.stream_id, most_age)
    except RedisConnectionError as error:
        # It may be booked under this id, and what is computed under it would be taken for the same.
        raise DependencyUnavailableError(
            "The stream store does not answer; try again.", retry_after_seconds=1.0
        ) from error
    except RedisError as error:
        log.warning("response_cache_unavailable", error=str(error))
        return _bypass(Bypass.STORE_UNAVAILABLE)
    if recalled is None:
        return None
    return await _given(gateway, caller, deployment, asked, recalled, similarity)


async def _recall(
    gateway: Gateway,
    caller: Caller,
    deployment: DeploymentConfig,
    policy: ResponseCacheTerms,
    member: str,
    stream_id: str,
    most_age_seconds: float,
) -> Recalled | None:
    """Ask for the answer.

    Raises:
        RateLimitError, InsufficientQuotaError: a quota that it counts in.
        redis.exceptions.RedisError: Redis does not answer.
    """
    terms = admission_terms(
        tenant=caller.tenant,
        api_key=caller.api_key,
        user_id=caller.user_id,
        deployment=deployment,
        quotas=gateway.config.quotas,
        prompt_tokens=0,
        max_tokens=0,
        now=datetime.now(UTC),
    )
    ask = partial(
        gateway.kept_answers.recall,
        member=member,
        stream_id=stream_id,
        tenant_id=caller.tenant.id,
        deployment=deployment.name,
        most_age_seconds=most_age_seconds,
        terms=counted_terms(terms, policy),
        counts_tokens=policy.count_tokens,
    )
    try:
        try:
            recalled = await ask()
        except RedisConnectionError:  # a pooled connection that Redis had closed, or a lost answer
            recalled = await ask()
    except (msgspec.DecodeError, zstandard.ZstdError) as error:
        log.warning("kept_answer_unreadable", error=str(error))
        return None
    if isinstance(recalled, Refusal):
        quota = next((quota for quota in gateway.config.quotas if quota.id == recalled.quota_id), None)
        raise refusal_error(recalled, Rates(), quota, tokens=0)
    return recalled


async def _given(
    gateway: Gateway,
    caller: Caller,
    deployment: DeploymentConfig,
    asked: Asked,
    recalled: Recalled,
    similarity: float | None,
) -> Consulted:
    """Return a kept answer as the stream that it once was; one who may come back for it gets a log of his own."""
    stream_id, epoch = asked.stream_id, int(time.time() * 1000)
    entries = kept_entries(stream_id, epoch, recalled.answer)
    if asked.can_return:
        await _log_for_return(gateway, caller, deployment, stream_id, entries)
    subscription = Subscription.of_all(gateway.token_log, stream_id, entries, caller=caller)
    answer, name = recalled.answer, deployment.name
    word = CacheWord.HIT if similarity is None else CacheWord.SEMANTIC
    metrics.REQUESTS.labels(name, word.value).inc()
    metrics.SAVED_TOKENS.labels(name).inc(answer.usage.completion_tokens)
    metrics.SAVED_SECONDS.labels(name).inc(answer.timings.prefill_time + answer.timings.decode_time)
    return Consulted(CacheOutcome(word, int(recalled.age_seconds), similarity), subscription, recalled.rates)


def admission_note(deployment: DeploymentConfig, *, is_shared: bool) -> CacheOutcome:
    """Count a static request that was admitted; return what its header says."""
    metrics.REQUESTS.labels(deployment.name, "shared" if is_shared else CacheWord.MISS.value).inc()
    return CacheOutcome(CacheWord.HIT, 0) if is_shared else CacheOutcome(CacheWord.MISS)


def kept_entries(stream_id: str, epoch: int, answer: KeptAnswer) -> list[AnyLogEntry]:
    """Return the log that tells a kept answer."""
    entries: list[AnyLogEntry] = [Started(stream_id, epoch, 0, CACHE_OWNER, 1)]
    if answer.positions:
        entries.append(Delta(stream_id, epoch, answer.positions, answer.positions, answer.text))
    end = answer.positions + 1
    usage, timings = answer.usage, answer.timings
    return [
        *entries,
        Ended(stream_id, epoch, end, StreamState.FINISHED, answer.finish_reason, answer.stop_reason, usage, timings),
    ]


async def _log_for_return(
    gateway: Gateway, caller: Caller, deployment: DeploymentConfig, stream_id: str, entries: list[AnyLogEntry]
) -> None:
    retention = caller.tenant.retention_seconds
    appends = [Append(entry) for entry in entries[:-1]] + [Append(entries[-1], log_ttl_seconds=retention)]
    calls = [gateway.token_log.open_call(stream_id, readers=[])]
    calls += [call for _, call in gateway.token_log.append_calls(appends)]
    await gateway.functions.call_many(calls)
    await gateway.kept_answers.enter(
        stream_id, tenant_id=caller.tenant.id, deployment=deployment.name, log_ttl_seconds=retention
    )
