"""Starting a stream: prompt ids, what the caller left open, admission."""

import time
from collections.abc import Sequence

from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from apps.streams.limits import NO_PLACE, OnWait
from apps.streams.services.admitting import Sought, stream_admit
from apps.streams.services.guarding import GuardedInput, input_guard
from apps.streams.services.prompt_caching import prompt_cache_apply
from apps.streams.services.prompting import length_check, most_tokens, prompt_ids_render, sampling_complete
from apps.streams.services.reading import window_of
from apps.streams.services.response_caching import Asked, Consulted, consult
from apps.streams.services.started import StartedStream, StreamOptions
from headrace_wire.cache_salt import cache_salt
from headrace_wire.codec import pack_token_ids
from headrace_wire.errors import (
    DrainingError,
    InvalidRequestError,
)
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import ChatTurn, GenerateRequest, SamplingParams
from headrace_wire.snapshot import DeploymentConfig


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
        deployment: Where it runs; chosen by `routing.stream_route`.
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
        ServerOverloadedError: the queue is full; or `only_kept` says so.
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
    conversation, prompt_cache = prompt_cache_apply(
        gateway, caller, deployment, conversation, options.prompt_cache, stands_in_for=options.stands_in_for
    )
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
    if options.only_kept is not None:
        raise options.only_kept()
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
        traceparent=options.traceparent,
    )
    prompt_tokens = len(prompt_ids) if prompt_ids is not None else most_tokens(conversation)
    sought = Sought(caller, deployment, request, options, guarded, consulted, prompt_tokens, on_wait)
    return await stream_admit(gateway=gateway, sought=sought)


def _check_priority(caller: Caller, priority: int | None) -> None:
    allowed = caller.tenant.request_priorities | {caller.tenant.priority}
    if priority is not None and priority not in allowed:
        raise InvalidRequestError(
            f"`priority` must be one of {', '.join(map(str, sorted(allowed)))}: your plan allows no other.",
            param="priority",
        )


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
