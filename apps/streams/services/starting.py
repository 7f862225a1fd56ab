"""Starting a stream: prompt ids, what the caller left open, admission."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from apps.streams.limits import MAX_RETRY_SECONDS, NO_PLACE, OnWait
from apps.streams.refusals import refusal_error
from apps.streams.services.ending import RETRY_AFTER_SECONDS
from apps.streams.services.guarding import GuardedInput, input_guard
from apps.streams.services.prompt_caching import prompt_cache_apply
from apps.streams.services.prompting import length_check, most_tokens, prompt_ids_render, sampling_complete
from apps.streams.services.reading import stream_attach, window_of
from apps.streams.services.response_caching import Asked, CacheOutcome, Consulted, admission_note, consult
from apps.streams.services.started import StartedStream, StreamOptions
from apps.streams.waiting_room import MIN_SAMPLES
from headrace_wire.admission import AdmissionTerms
from headrace_wire.cache_salt import cache_salt
from headrace_wire.codec import pack_token_ids
from headrace_wire.errors import (
    DependencyUnavailableError,
    DrainingError,
    IdempotencyMismatchError,
    InvalidRequestError,
    ServerOverloadedError,
)
from headrace_wire.flights import Flight, own_end
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import ChatTurn, GenerateRequest, SamplingParams
from headrace_wire.quota_terms import admission_terms
from headrace_wire.request_queue import Admission, Idempotency, Place, Verdict
from headrace_wire.snapshot import DeploymentConfig

_WITHOUT_STREAM = frozenset({Verdict.FULL, Verdict.DUPLICATE, Verdict.REFUSED, Verdict.RIDES})


async def stream_start(
    *,
    gateway: Gateway,
    caller: Caller,
    deployment: DeploymentConfig,
    conversation: Sequence[ChatTurn],
    sampling: SamplingParams,
    options: StreamOptions = StreamOptions(),  # noqa: B008  # frozen
    on_wait: OnWait | None = None,
) -> StartedStream:
    """Render, admit and subscribe. The caller closes the subscription, whatever happens.

    Args:
        gateway: This process' runtime.
        caller: Whose stream it will be.
        deployment: Where it runs; looked up with `ConfigView.deployment`.
        conversation: The messages, system first.
        sampling: Checked fields; `max_tokens` 0 takes the deployment's default, `seed` -1 draws one.
        options: What else the caller asked for.
        on_wait: Told the place in line while the gateway serves as many streams as it does at once.

    Raises:
        InvalidApiKeyError: the caller's access ended while it waited for its turn.
        InvalidRequestError: the plan does not allow the priority, or the tenant has no such prompt cache.
        ContentFilterError: a guardrail blocks it.
        GuardrailUnavailableError: a guardrail that applies cannot be read.
        ContextLengthError: prompt and answer do not fit.
        ServerOverloadedError: the queue is full.
        RateLimitError: a limit of requests or tokens per minute is reached; nothing was counted.
        InsufficientQuotaError: a budget does not cover the request; nothing was counted.
        IdempotencyMismatchError: the key was used for another request.
        DrainingError: this gateway takes no new streams.
        DependencyUnavailableError: Redis does not answer.
    """
    _check_priority(caller, options.priority)
    if gateway.draining:
        raise DrainingError("This gateway is shutting down; send the request again.", retry_after_seconds=1.0)
    stream_id = options.stream_id or new_stream_id()
    conversation, prompt_cache = prompt_cache_apply(gateway, caller, deployment, conversation, options.prompt_cache)
    length_check(gateway, deployment, conversation)
    salt = cache_salt(gateway.secret, caller.tenant.id, deployment.adapter)
    guarded = await input_guard(
        gateway=gateway,
        caller=caller,
        deployment=deployment,
        stream_id=stream_id,
        salt=salt,
        conversation=conversation,
    )
    conversation = guarded.conversation
    consulted = await consult(
        gateway=gateway,
        caller=caller,
        deployment=deployment,
        guarded=guarded,
        sampling=sampling,
        asked=Asked(
            stream_id,
            options.cache,
            can_return=options.can_return,
            has_key=options.idempotency is not None,
            is_named=options.stream_id is not None,
        ),
    )
    if consulted.subscription is not None:
        return _given(stream_id, deployment, guarded, consulted)
    prompt_ids = await prompt_ids_render(gateway, deployment, conversation)
    request = GenerateRequest(
        stream_id=stream_id,
        tenant_id=caller.tenant.id,
        deployment=deployment.name,
        sampling=sampling_complete(gateway, deployment, sampling, prompt_ids),
        cache_salt=salt,
        prompt_ids=pack_token_ids(prompt_ids or ()),
        conversation=() if prompt_ids is not None else tuple(conversation),
        window=window_of(caller.tenant, options.window),
        continue_inexactly=tuple(sorted(caller.tenant.continue_inexactly)),
        log_ttl_seconds=caller.tenant.retention_seconds,
        can_return=options.can_return,
        ttft_timeout_seconds=deployment.ttft_timeout_seconds,
        inter_token_timeout_seconds=deployment.inter_token_timeout_seconds,
        guard=guarded.terms,
        prompt_cache=prompt_cache,
        adapter=deployment.adapter,
    )
    # Before admission, so that nothing can be delivered that nobody waits for.
    own_id = own_end(stream_id, stream_id) if consulted.policy is not None else ""
    subscription = gateway.delivery.subscribe(stream_id, caller=caller, own_id=own_id)
    gateway.drafts.sent(caller.tenant.id, deployment.name, stream_id, request.prompt_ids)
    try:
        await gateway.limit.turn(on_wait)
        caller = gateway.config.renewed(caller)  # the wait may have been long
        subscription.had_turn = True
        terms = admission_terms(
            tenant=caller.tenant,
            api_key=caller.api_key,
            user_id=caller.user_id,
            deployment=deployment,
            quotas=gateway.config.quotas,
            prompt_tokens=len(prompt_ids) if prompt_ids is not None else most_tokens(conversation),
            max_tokens=request.sampling.max_tokens,
            now=datetime.now(UTC),
        )
        if options.priority is not None:
            terms = msgspec.structs.replace(terms, band=options.priority)
        flight = consulted.flight(terms)
        admission = await _admit(gateway, deployment, request, options.idempotency, terms, flight)
    except BaseException:
        subscription.close()
        raise
    if admission.verdict is Verdict.DUPLICATE:
        subscription.close()
        return await _replay(gateway, caller, deployment, admission, options.idempotency)
    if admission.verdict is Verdict.RIDES:
        subscription.close()
        return await _shared(gateway, caller, deployment, stream_id, guarded, admission)
    gateway.credit.open(stream_id, window=request.window, granted=request.window)
    place = gateway.watch_place(subscription, admission.place, may_be_left=admission.may_be_left)
    deadline = deployment.queue_timeout_seconds
    created_at = options.idempotency.created_at if options.idempotency else int(time.time())
    return StartedStream(
        stream_id,
        deployment,
        place,
        deadline,
        subscription,
        created_at,
        rates=admission.rates,
        guardrails=guarded.names,
        awaits_verdict=guarded.awaits_verdict,
        cache=admission_note(deployment, is_shared=False) if flight is not None else CacheOutcome(),
    )


def _check_priority(caller: Caller, priority: int | None) -> None:
    allowed = caller.tenant.request_priorities | {caller.tenant.priority}
    if priority is not None and priority not in allowed:
        raise InvalidRequestError(
            f"`priority` must be one of {', '.join(map(str, sorted(allowed)))}: your plan allows no other.",
            param="priority",
        )


async def _admit(
    gateway: Gateway,
    deployment: DeploymentConfig,
    request: GenerateRequest,
    idempotency: Idempotency | None,
    terms: AdmissionTerms,
    flight: Flight | None,
) -> Admission:
    calls = [
        gateway.token_log.open_call(request.stream_id, readers=[gateway.incarnation]),
        gateway.queue.admit_call(
            request,
            queue_limit=deployment.queue_limit,
            queue_timeout_seconds=deployment.queue_timeout_seconds,
            idempotency=idempotency,
            terms=terms,
            prefix=gateway.affinity.prefix(request),
            prefer_seconds=gateway.affinity.seconds,
            flight=flight,
        ),
    ]
    try:
        try:
            _, reply = await gateway.functions.call_many(calls)
        except RedisConnectionError:
            # A pooled connection that Redis had closed, or a lost answer: both calls may be repeated.
            _, reply = await gateway.functions.call_many(calls)
        admission = gateway.queue.parse_admission(reply)
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
    subscription, _ = await stream_attach(gateway=gateway, caller=caller, stream_id=stream_id, after=0)
    deadline, created_at = deployment.queue_timeout_seconds, admission.duplicate_created_at
    return StartedStream(stream_id, deployment, NO_PLACE, deadline, subscription, created_at, is_replay=True)


def _given(stream_id: str, deployment: DeploymentConfig, guarded: GuardedInput, consulted: Consulted) -> StartedStream:
    """Return a kept answer as a stream; nobody waits for a worker."""
    assert consulted.subscription is not None  # noqa: S101 - the caller has looked
    return StartedStream(
        stream_id,
        deployment,
        NO_PLACE,
        deployment.queue_timeout_seconds,
        consulted.subscription,
        int(time.time()),
        rates=consulted.rates,
        guardrails=guarded.names,
        cache=consulted.outcome,
    )


async def _shared(
    gateway: Gateway,
    caller: Caller,
    deployment: DeploymentConfig,
    stream_id: str,
    guarded: GuardedInput,
    admission: Admission,
) -> StartedStream:
    """Return the stream that runs for another caller of the same request, from its beginning."""
    subscription, _ = await stream_attach(gateway=gateway, caller=caller, stream_id=stream_id, after=0)
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
