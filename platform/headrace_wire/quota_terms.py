"""The terms of one request: the quotas that cover it, the budget periods of now, and what it may cost at most."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from headrace_wire.admission import NO_LIMIT, AdmissionTerms, Payer, Prices, QuotaTerms
from headrace_wire.snapshot import (
    ApiKeyConfig,
    BudgetDuration,
    DeploymentConfig,
    QuotaConfig,
    QuotaScope,
    TenantConfig,
)

BANDS = 4
"""Priorities of the fair queue."""

MOST = 2**53 - 1
"""The largest limit that Redis' functions count to exactly; more is no different from it."""

_SHARED_SCOPES = (QuotaScope.GLOBAL, QuotaScope.DEPLOYMENT)


def admission_terms(
    *,
    tenant: TenantConfig,
    api_key: ApiKeyConfig | None,
    user_id: str | None,
    deployment: DeploymentConfig,
    quotas: Iterable[QuotaConfig],
    prompt_tokens: int,
    max_tokens: int,
    now: datetime,
) -> AdmissionTerms:
    """Return what admission decides by; `quotas` are all that are configured, `now` is aware."""
    covering = [quota for quota in quotas if _covers(quota, tenant, api_key, user_id, deployment)]
    return AdmissionTerms(
        prompt_tokens,
        max_tokens,
        Prices(deployment.prompt_price, deployment.cached_price, deployment.completion_price),
        Payer(
            api_key.id if api_key else "",
            user_id or "",
            deployment.id,
            deployment.adapter.name if deployment.adapter else "",
        ),
        tuple(quota_terms(quota, tenant, now) for quota in covering),
        min(max(tenant.priority, 0), BANDS - 1),
        max(tenant.weight, 1),
    )


def _covers(
    quota: QuotaConfig,
    tenant: TenantConfig,
    api_key: ApiKeyConfig | None,
    user_id: str | None,
    deployment: DeploymentConfig,
) -> bool:
    if quota.deployment_id is not None and quota.deployment_id != deployment.id:
        return False
    if quota.scope in _SHARED_SCOPES:
        return True
    if quota.tenant_id != tenant.id:
        return False
    if quota.scope is QuotaScope.MEMBER:
        return user_id is not None and quota.user_id == user_id
    if quota.scope is QuotaScope.API_KEY:
        return api_key is not None and quota.api_key_id == api_key.id
    return True


def quota_terms(quota: QuotaConfig, tenant: TenantConfig | None, now: datetime) -> QuotaTerms:
    """Return one quota as admission takes it; `tenant` is who asks."""
    period, ends, next_period, next_ends = "", 0, "", 0
    if quota.budget_duration is not None:
        # What several tenants share has one clock.
        zone = UTC if tenant is None or quota.scope in _SHARED_SCOPES else _zone(tenant.time_zone)
        begin, end = period_of(quota.budget_duration, now, zone)
        _, after = period_of(quota.budget_duration, end, zone)
        period, ends = _name(begin), _milliseconds(end)
        next_period, next_ends = _name(end), _milliseconds(after)
    raised = quota.override_factor if now.timestamp() < quota.override_until else 1.0
    return QuotaTerms(
        quota.id,
        _limit(quota.rpm_limit, raised),
        _limit(quota.tpm_limit, raised),
        _limit(quota.max_parallel_requests, raised),
        _limit(quota.token_budget, raised),
        _limit(quota.max_budget_micros, raised),
        _limit(quota.soft_budget_micros, 1.0),
        period,
        ends,
        next_period,
        next_ends,
    )


def period_of(duration: BudgetDuration, at: datetime, zone: tzinfo) -> tuple[datetime, datetime]:
    """Return begin and end (exclusive) of the calendar period of `zone` that `at` lies in, in UTC.

    Days have 23 or 25 hours where clocks change; an hour that comes twice is two periods.
    """
    local = at.astimezone(zone)
    if duration is BudgetDuration.HOUR:
        into_hour = timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)
        begin = local.astimezone(UTC) - into_hour
        return begin, begin + timedelta(hours=1)
    first, following = _DAYS[duration](local.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None))
    return _utc(first, zone), _utc(following, zone)


def _day(midnight: datetime) -> tuple[datetime, datetime]:
    return midnight, midnight + timedelta(days=1)


def _week(midnight: datetime) -> tuple[datetime, datetime]:
    monday = midnight - timedelta(days=midnight.weekday())
    return monday, monday + timedelta(days=7)


def _month(midnight: datetime) -> tuple[datetime, datetime]:
    first = midnight.replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)


_DAYS: dict[BudgetDuration, Callable[[datetime], tuple[datetime, datetime]]] = {
    BudgetDuration.DAY: _day,
    BudgetDuration.WEEK: _week,
    BudgetDuration.MONTH: _month,
}


def _utc(naive: datetime, zone: tzinfo) -> datetime:
    return naive.replace(tzinfo=zone).astimezone(UTC)


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):  # this machine's time zone data is older than the admin's
        return UTC


def _name(begin: datetime) -> str:
    return str(int(begin.timestamp()))


def _milliseconds(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def _limit(value: int | None, factor: float) -> int:
    if value is None:
        return NO_LIMIT
    return min(max(1, round(value * factor)), MOST) if value else 0
