"""Admission of a request that is complete, and what its caller reads then: its own stream, or one that runs already."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import msgspec
import structlog
from msgspec import Struct
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from apps.streams.config_view import Caller
from apps.streams.detachment import departure_of
from apps.streams.drafts import SentPrompt
from apps.streams.gateway import Gateway
from apps.streams.limits import MAX_RETRY_SECONDS, NO_PLACE, OnWait
from apps.streams.refusals import refusal_error
from apps.streams.response_metrics import SECOND_CHANCES
from apps.streams.services.drafted import draft_claim, prompt_sent
from apps.streams.services.ending import RETRY_AFTER_SECONDS
from apps.streams.services.guarding import GuardedInput
from apps.streams.services.reading import stream_attach, stream_leave
from apps.streams.services.response_caching import CacheOutcome, Consulted, admission_note
from apps.streams.services.started import StartedStream, StreamOptions
from apps.streams.subscription import Subscription
from apps.streams.waiting_room import MIN_SAMPLES
from headrace_wire.admission import AdmissionTerms
from headrace_wire.errors import (
    DependencyUnavailableError,
    HeadraceError,
    IdempotencyMismatchError,
    ServerOverloadedError,
)
from headrace_wire.flights import Flight, own_end
from headrace_wire.functions import Call
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import Ended, GenerateRequest
from headrace_wire.quota_terms import admission_terms
from headrace_wire.request_queue import Admission, Idempotency, Place, Verdict
from headrace_wire.snapshot import DeploymentConfig

log = structlog.get_logger(__name__)

SECOND_CHANCE_SECONDS = 5.0
"""Within which a caller whose shared stream failed is admitted again; else it is told of the failure."""

_WITHOUT_STREAM = frozenset({Verdict.FULL, Verdict.DUPLICATE, Verdict.REFUSED, Verdict.RIDES})
_FAILURES_OF_WORKERS = frozenset({"engine_error", "timeout"})
"""Codes of failures that another worker, or the same one later, may not have. A guardrail's word stands."""


class Sought(Struct, frozen=True):
    """What a caller wants admitted."""

    caller: Caller
    deployment: DeploymentConfig
    request: GenerateRequest
    options: StreamOptions
    guarded: GuardedInput
    consulted: Consulted
    prompt_tokens: int
    """Of the request; at most, where the worker makes the ids."""
    on_wait: OnWait | None = None
    """Told the place in line while the gateway serves as many streams as it does at once."""
    is_second: bool = False
    """The caller was admitted before, and the stream that it shared failed."""


async def stream_admit(*, gateway: Gateway, sought: Sought) -> StartedStream:
    """Admit and subscribe. The caller closes the subscription, whatever happens.

    Raises:
        HeadraceError: as `stream_start`.
    """
    caller, deployment, request, options = sought.caller, sought.deployment, sought.request, sought.options
    stream_id, consulted = request.stream_id, sought.consulted
    # Before admission, so that nothing can be delivered that nobody waits for.
    own_id = own_end(stream_id, stream_id) if consulted.policy is not None else ""
    subscription = gateway.delivery.subscribe(stream_id, caller=caller, own_id=own_id)
    sent = prompt_sent(gateway, caller, deployment, request)
    try:
        await gateway.limit.turn(sought.on_wait)
        caller = gateway.config.renewed(caller)  # the wait may have been long
        subscription.had_turn = True
        terms = _terms(gateway, caller, sought)
        flight = consulted.flight(terms)
        admission = await _admit(gateway, sought, terms, flight, sent)
    except BaseException:
        subscription.close()
        gateway.drafts.not_admitted(sent)
        raise
    if admission.verdict in _WITHOUT_STREAM:
        gateway.drafts.not_admitted(sent)
    else:
        gateway.drafts.admitted(sent, stream_id, admission.draft)
    if admission.verdict is Verdict.DUPLICATE:
        subscription.close()
        return await _replay(gateway, caller, deployment, admission, options.idempotency)
    if admission.verdict is Verdict.RIDES:
        subscription.close()
        return await _shared(gateway, sought, admission)
    gateway.credit.open(stream_id, window=request.window, granted=request.window)
    place = gateway.watch_place(
        subscription, admission.place, deployment=deployment.name, may_be_left=admission.may_be_left
    )
    created_at = options.idempotency.created_at if options.idempotency else int(time.time())
    return StartedStream(
        stream_id,
        deployment,
        place,
        deployment.queue_timeout_seconds,
        subscription,
        created_at,
        rates=admission.rates,
        guardrails=sought.guarded.names,
        awaits_verdict=sought.guarded.awaits_verdict,
        cache=admission_note(deployment, is_shared=False) if flight is not None else CacheOutcome(),
    )


def _terms(gateway: Gateway, caller: Caller, sought: Sought) -> AdmissionTerms:
    terms = admission_terms(
        tenant=caller.tenant,
        api_key=caller.api_key,
        user_id=caller.user_id,
        deployment=sought.deployment,
        quotas=gateway.config.quotas,
        prompt_tokens=sought.prompt_tokens,
        max_tokens=sought.request.sampling.max_tokens,
        now=datetime.now(UTC),
    )
    priority = sought.options.priority
    return terms if priority is None else msgspec.structs.replace(terms, band=priority)


async def _admit(
    gateway: Gateway, sought: Sought, terms: AdmissionTerms, flight: Flight | None, sent: SentPrompt
) -> Admission:
    request, deployment = sought.request, sought.deployment
    prefix = gateway.affinity.prefix(request)
    calls = [
        gateway.token_log.open_call(request.stream_id, readers=[gateway.incarnation]),
        gateway.queue.admit_call(
            request,
            queue_limit=deployment.queue_limit,
            queue_timeout_seconds=deployment.queue_timeout_seconds,
            idempotency=sought.options.idempotency,
            terms=terms,
            prefix=prefix,
            prefer_seconds=gateway.affinity.seconds,
            drafts=draft_claim(request, sent, prefix),
            flight=flight,
        ),
    ]
    try:
        admission = await _answered(gateway, sought, calls)
        if admission.verdict in _WITHOUT_STREAM:
            await gateway.token_log.discard(request.stream_id)
    except RedisError as error:
        raise DependencyUnavailableError(
            "The request could not be admitted because the stream store does not answer; try again.",
            retry_after_seconds=1.0,
        ) from error
    if admission.verdict is Verdict.FULL:
        taken = (
            f"{admission.position} of your requests wait for `{deployment.name}`, as many as may"
            if admission.is_own_queue
            else f"All {admission.position} places in the queue of `{deployment.name}` are taken"
        )
        raise ServerOverloadedError(f"{taken}; try again later.", retry_after_seconds=_retry_after(admission.place))
    if admission.refusal is not None:
        quota = next((quota for quota in gateway.config.quotas if quota.id == admission.refusal.quota_id), None)
        tokens = terms.prompt_tokens + terms.max_tokens
        raise refusal_error(admission.refusal, admission.rates, quota, tokens=tokens)
    return admission


async def _answered(gateway: Gateway, sought: Sought, calls: Sequence[Call]) -> Admission:
    """Ask for admission.

    A caller that leaves before Redis answers may be admitted all the same, and so may one whose answer gets lost.
    Nobody reads its stream then; only who named a key can ask for it again.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    try:
        try:
            _, reply = await gateway.functions.call_many(calls)
        except RedisConnectionError:
            # A pooled connection that Redis had closed, or a lost answer: both calls may be repeated.
            _, reply = await gateway.functions.call_many(calls)
    except (RedisConnectionError, asyncio.CancelledError):
        tenant, can_return = sought.caller.tenant, sought.options.idempotency is not None
        gateway.detachment.unheard(departure_of(tenant, sought.request.stream_id, position=0, can_return=can_return))
        raise
    return gateway.queue.parse_admission(reply)


def _retry_after(place: Place | None) -> float:
    """Return when a place in a full queue should be free: with the next of those that wait in it."""
    if place is None or place.samples < MIN_SAMPLES:
        return RETRY_AFTER_SECONDS
    return min(max(1.0, place.expected_seconds), MAX_RETRY_SECONDS)


async def _replay(
    gateway: Gateway,
    caller: Caller,
    deployment: DeploymentConfig,
    admission: Admission,
    idempotency: Idempotency | None,
) -> StartedStream:
    if idempotency is None or admission.duplicate_body != idempotency.body_digest:
        raise IdempotencyMismatchError("This Idempotency-Key was used for another request.")
    stream_id = admission.duplicate_of
    subscription, name = await stream_attach(gateway=gateway, caller=caller, stream_id=stream_id, after=0)
    deployment = gateway.config.served_by(name, deployment)  # a fallback may have served it, or serve now
    deadline, created_at = deployment.queue_timeout_seconds, admission.duplicate_created_at
    return StartedStream(stream_id, deployment, NO_PLACE, deadline, subscription, created_at, is_replay=True)


async def _shared(gateway: Gateway, sought: Sought, admission: Admission) -> StartedStream:
    """Return the stream that runs for another caller of the same request, from its beginning."""
    stream_id, deployment, guarded = sought.request.stream_id, sought.deployment, sought.guarded
    subscription: Subscription | None = None
    try:
        try:
            subscription, _ = await stream_attach(gateway=gateway, caller=sought.caller, stream_id=stream_id, after=0)
        finally:
            with suppress(RedisError):  # that it comes is forgotten by itself, a little later
                await gateway.flights.reads(stream_id, host=admission.duplicate_of)
    except BaseException:
        if subscription is not None:
            stream_leave(gateway=gateway, tenant=sought.caller.tenant, subscription=subscription, can_return=False)
        raise
    if not sought.is_second:
        subscription.renew = partial(_second_chance, gateway, sought)
    return StartedStream(
        stream_id,
        deployment,
        NO_PLACE,
        deployment.queue_timeout_seconds,
        subscription,
        int(time.time()),
        rates=admission.rates,
        guardrails=guarded.names,
        awaits_verdict=guarded.awaits_verdict,
        cache=admission_note(deployment, is_shared=True),
        is_shared=True,
    )


async def _second_chance(gateway: Gateway, sought: Sought, subscription: Subscription, failure: Ended) -> bool:
    """Admit a caller again whose shared stream failed through no fault of its own, once; say whether it goes on.

    It is admitted under its own quotas, as any request; callers of the same may come to share again.
    """
    if failure.error is None or failure.error.code not in _FAILURES_OF_WORKERS:
        return False
    first, second = sought.request.stream_id, new_stream_id()
    request = msgspec.structs.replace(sought.request, stream_id=second)
    again: StartedStream | None = None
    try:
        async with asyncio.timeout(SECOND_CHANCE_SECONDS):
            again = await stream_admit(
                gateway=gateway, sought=msgspec.structs.replace(sought, request=request, on_wait=None, is_second=True)
            )
            await gateway.flights.move(first, to=second)
    except BaseException as error:
        if again is not None:  # its caller has left, or cannot be led to it
            tenant, unread = sought.caller.tenant, again.subscription
            stream_leave(gateway=gateway, tenant=tenant, subscription=unread, can_return=False)
        if not isinstance(error, HeadraceError | RedisError | TimeoutError):
            raise
        log.info("no_second_chance", stream_id=first, reason=str(error))
        SECOND_CHANCES.labels(sought.deployment.name, "refused").inc()
        return False
    failed = subscription.stream_id
    gateway.delivery.replace(subscription, again.subscription)
    if not gateway.delivery.is_read(failed):
        gateway.credit.close(failed)
    if not again.is_shared:
        subscription.is_second = True
        subscription.queue_deadline_seconds = again.queue_deadline_seconds
    SECOND_CHANCES.labels(sought.deployment.name, "admitted").inc()
    log.info("second_chance", stream_id=first, second=second, shares=again.is_shared)
    return True
