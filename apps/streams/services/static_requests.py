"""Static requests: which they are, and what tells their answers apart."""

import hmac
from enum import StrEnum

import msgspec
from msgspec import Struct

from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from apps.streams.services.guarding import GuardedInput
from headrace_wire.admission import NO_LIMIT, AdmissionTerms
from headrace_wire.messages import SamplingParams
from headrace_wire.response_cache_terms import ResponseCacheTerms, StaticRule
from headrace_wire.snapshot import DeploymentConfig

_encoder = msgspec.msgpack.Encoder(order="deterministic")


class CacheControls(Struct, frozen=True):
    """What a request says about keeping its answer."""

    no_cache: bool = False
    """It wants an answer of its own, not a kept one."""
    no_store: bool = False
    """Its answer is not to be kept."""
    use_cache: bool = False
    """Its caller calls it static, whatever its temperature."""
    max_age_seconds: float | None = None
    """It takes no answer that is older."""
    ttl_seconds: float | None = None
    """Its answer is to be kept no longer."""
    semantic: bool = True
    """It may be given the answer to another question that asks for the same."""
    is_personal: bool = False
    """It names its end user: its answer is nobody else's."""


class Bypass(StrEnum):
    """Why a request has nothing to do with the cache, where there is one for its tenant."""

    NOT_STATIC = "not_static"
    USER = "user"
    IDEMPOTENCY_KEY = "idempotency_key"
    GUARDRAIL = "guardrail"
    PERSONAL_DATA = "personal_data"
    NO_CACHE_NO_STORE = "no_cache_no_store"
    STORE_UNAVAILABLE = "store_unavailable"


def reason_against(
    policy: ResponseCacheTerms,
    sampling: SamplingParams,
    controls: CacheControls,
    guarded: GuardedInput,
    *,
    has_key: bool,
) -> Bypass | None:
    """Return why a request has nothing to do with the cache; None for a static one.

    `has_key`: it has an idempotency key, which leads to a stream of its own.
    """
    is_static = controls.use_cache or (policy.static is StaticRule.TEMPERATURE_ZERO and sampling.temperature == 0)
    if not is_static:
        return Bypass.NOT_STATIC
    if controls.is_personal:
        return Bypass.USER
    if has_key:
        return Bypass.IDEMPOTENCY_KEY
    if guarded.terms.answer is not None or guarded.may_pass_unchecked:
        return Bypass.GUARDRAIL
    if controls.no_cache and controls.no_store:
        return Bypass.NO_CACHE_NO_STORE
    return None


def answer_digest(
    gateway: Gateway,
    caller: Caller,
    deployment: DeploymentConfig,
    policy: ResponseCacheTerms,
    guarded: GuardedInput,
    sampling: SamplingParams,
) -> str:
    """Return the name of the answer: everything that another answer could come from, under the server's secret."""
    parts = (
        "response-cache 1",
        caller.tenant.id,
        policy.generation,
        deployment_revision(gateway, deployment),
        guarded.terms.policies,
        [(turn.role, turn.content) for turn in guarded.conversation],
        what_shapes(sampling),
    )
    return hmac.digest(gateway.secret, _encoder.encode(parts), "sha256").hex()[:40]


def what_shapes(sampling: SamplingParams) -> SamplingParams:
    """Return the parameters, without those that have no say: where all is greedy, nothing shapes a draw."""
    if sampling.temperature != 0:
        return sampling
    return msgspec.structs.replace(sampling, seed=0, top_p=1.0, top_k=0, min_p=0.0)


def deployment_revision(gateway: Gateway, deployment: DeploymentConfig) -> tuple[object, ...]:
    """Return what of a deployment changes its answers, the chat template of its workers (by fingerprint) included.

    What only workers say is as they said it last: kept answers are found while none is there.
    """
    limit = gateway.fleet.context_limit(deployment.name) or deployment.max_model_len or 0
    return (
        *(deployment.id, deployment.model, deployment.engine, deployment.engine_args, deployment.dtype),
        *(deployment.quantization, deployment.max_model_len, deployment.default_max_tokens),
        deployment.adapter.key if deployment.adapter is not None else "",
        *(gateway.fleet.fingerprint(deployment.name), limit),
    )


def counted_terms(terms: AdmissionTerms, policy: ResponseCacheTerms) -> AdmissionTerms:
    """Return what a caller is held to who is given what was generated for another one."""
    quotas = tuple(
        msgspec.structs.replace(
            quota,
            rpm_limit=quota.rpm_limit if policy.count_requests else NO_LIMIT,
            tpm_limit=quota.tpm_limit if policy.count_tokens else NO_LIMIT,
            token_budget=quota.token_budget if policy.count_tokens else NO_LIMIT,
            max_budget_micros=quota.max_budget_micros if policy.count_tokens else NO_LIMIT,
            soft_budget_micros=quota.soft_budget_micros if policy.count_tokens else NO_LIMIT,
            max_parallel_requests=NO_LIMIT,
        )
        for quota in terms.quotas
    )
    if policy.count_tokens:
        return msgspec.structs.replace(terms, quotas=quotas)
    return msgspec.structs.replace(terms, quotas=quotas, prompt_tokens=0, max_tokens=0)
