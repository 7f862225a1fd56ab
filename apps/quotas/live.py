"""What quotas hold at this moment, and what a request would get: read from Redis, nothing is changed."""

from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec import Struct

from apps.tenants.live_state import call_function, redis_client
from headrace_wire import codec, redis_keys
from headrace_wire.admission import AdmissionTerms, Refusal, RefusalKind
from headrace_wire.functions import Reply
from headrace_wire.quota_terms import BANDS, admission_terms, quota_terms
from headrace_wire.snapshot import ApiKeyConfig, ConfigSnapshot, DeploymentConfig, QuotaConfig, decode_snapshot

_NOWHERE = "-"
"""A deployment that no name can be: quotas are looked at without a queue."""


class QuotaState(Struct, frozen=True):
    """One quota now."""

    quota: QuotaConfig
    requests_left: float
    """Of this minute; meaningless where `rpm_limit` is None, and so on."""
    tokens_left: float
    tokens_used: int
    """Of the budget's period, reservations of running streams included."""
    micros_used: int
    running: int
    waiting_for_slot: int


class Appraisal(Struct, frozen=True):
    """What a request would get."""

    refusal: Refusal | None
    position: int
    """In the queue, were it admitted now; 1 is served as soon as a place is free."""
    waiting: int
    """Streams that wait for the deployment."""
    states: list[QuotaState]
    """Of the quotas that cover it."""


class LaneLength(Struct, frozen=True):
    """Waiting streams of one tenant, at one deployment."""

    deployment: str
    tenant_id: str
    """Empty for streams that were served before: they go first, whosever they are."""
    priority: int
    waiting: int


def snapshot_current() -> ConfigSnapshot:
    """Returns the configuration that gateways use now.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    data: Reply = redis_client().hget(redis_keys.snapshot_key(), "data")
    return decode_snapshot(data) if data else ConfigSnapshot(version=0)


def request_appraise(
    *,
    config: ConfigSnapshot,
    tenant_id: str,
    api_key: ApiKeyConfig | None,
    deployment: DeploymentConfig,
    prompt_tokens: int,
    max_tokens: int,
) -> Appraisal | None:
    """Returns what a request would get; None where the tenant is not in the configuration.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    tenant = next((tenant for tenant in config.tenants if tenant.id == tenant_id), None)
    if tenant is None:
        return None
    terms = admission_terms(
        tenant=tenant,
        api_key=api_key,
        user_id=api_key.user_id if api_key else None,
        deployment=deployment,
        quotas=config.quotas,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        now=datetime.now(UTC),
    )
    return _appraise(config, tenant_id, deployment.name, terms)


def quota_states(*, config: ConfigSnapshot, quota_ids: Sequence[str]) -> list[QuotaState]:
    """Returns what these quotas hold now; those that are not in the configuration yet are left out.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    tenants = {tenant.id: tenant for tenant in config.tenants}
    now = datetime.now(UTC)
    wanted = [quota for quota in config.quotas if quota.id in quota_ids]
    terms = tuple(quota_terms(quota, tenants.get(quota.tenant_id or ""), now) for quota in wanted)
    return _appraise(config, "", _NOWHERE, AdmissionTerms(0, 0, quotas=terms)).states


def lanes_waiting(*, deployments: Sequence[str]) -> list[LaneLength]:
    """Returns who waits, most urgent first.

    Raises:
        redis.exceptions.RedisError: Redis does not answer.
    """
    redis = redis_client()
    rows = []
    for deployment in deployments:
        ahead: Reply = redis.llen(redis_keys.queue_key(deployment))
        if ahead:
            rows.append(LaneLength(deployment, "", 0, ahead))
        for band in range(BANDS):
            tenants: Reply = redis.zrange(redis_keys.band_key(band, deployment), 0, -1)
            for raw in tenants:
                length: Reply = redis.llen(redis_keys.lane_key(band, raw.decode(), deployment))
                rows.append(LaneLength(deployment, raw.decode(), band, length))
    return rows


def _appraise(config: ConfigSnapshot, tenant_id: str, deployment: str, terms: AdmissionTerms) -> Appraisal:
    keys = [redis_keys.queue_key(deployment), redis_keys.bucket_prefix(), redis_keys.budget_prefix()]
    refusal, position, waiting, rows = call_function("appraise", keys, [tenant_id, codec.encode(terms)])
    quotas = {quota.id: quota for quota in config.quotas}
    states = [
        QuotaState(quotas[one.id], float(row[0]), float(row[1]), int(row[2]), int(row[3]), int(row[4]), int(row[5]))
        for one, row in zip(terms.quotas, rows, strict=True)
    ]
    refused = None
    if refusal:
        kind, quota_id, retry_ms = refusal
        retry = int(retry_ms)
        refused = Refusal(RefusalKind(kind.decode()), quota_id.decode(), retry / 1000 if retry >= 0 else -1)
    return Appraisal(refused, int(position), int(waiting), states)
