"""Which quotas cover a request, and which budget period it falls into."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_wire.admission import NO_LIMIT, Prices
from headrace_wire.quota_terms import MOST, admission_terms, period_of, quota_terms
from headrace_wire.snapshot import BudgetDuration, DeploymentConfig, QuotaConfig, QuotaScope, TenantConfig
from tests.support.snapshots import KEY_A, TENANT_A, TENANT_B, api_key, simulated

NOW = datetime(2026, 11, 30, 12, 30, tzinfo=UTC)
ZONES = ("UTC", "Europe/Zurich", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe")


def covering(caller: dict[str, Any], *quotas: QuotaConfig, deployment: DeploymentConfig | None = None) -> list[str]:
    terms = admission_terms(
        **caller,
        deployment=deployment or simulated("sim"),
        quotas=quotas,
        prompt_tokens=1,
        max_tokens=2,
        now=NOW,
    )
    return [quota.id for quota in terms.quotas]


def caller(
    tenant_id: str = TENANT_A, *, key: bool = True, user_id: str | None = None, zone: str = "UTC"
) -> dict[str, Any]:
    tenant = TenantConfig(id=tenant_id, slug="x", time_zone=zone)
    return {"tenant": tenant, "api_key": api_key(KEY_A, tenant_id) if key else None, "user_id": user_id}


def test_only_what_names_the_caller_covers_it() -> None:
    quotas = [
        QuotaConfig(id="all", scope=QuotaScope.GLOBAL, rpm_limit=1),
        QuotaConfig(id="model", scope=QuotaScope.DEPLOYMENT, deployment_id="sim", rpm_limit=1),
        QuotaConfig(id="other model", scope=QuotaScope.DEPLOYMENT, deployment_id="else", rpm_limit=1),
        QuotaConfig(id="tenant", scope=QuotaScope.TENANT, tenant_id=TENANT_A, rpm_limit=1),
        QuotaConfig(id="foreign", scope=QuotaScope.TENANT, tenant_id=TENANT_B, rpm_limit=1),
        QuotaConfig(id="member", scope=QuotaScope.MEMBER, tenant_id=TENANT_A, user_id="ada", rpm_limit=1),
        QuotaConfig(id="no member", scope=QuotaScope.MEMBER, tenant_id=TENANT_A, user_id="bob", rpm_limit=1),
        QuotaConfig(id="foreign member", scope=QuotaScope.MEMBER, tenant_id=TENANT_B, user_id="ada", rpm_limit=1),
        QuotaConfig(
            id="key", scope=QuotaScope.API_KEY, tenant_id=TENANT_A, api_key_id=api_key(KEY_A, TENANT_A).id, rpm_limit=1
        ),
        QuotaConfig(id="other key", scope=QuotaScope.API_KEY, tenant_id=TENANT_A, api_key_id="nobody", rpm_limit=1),
        QuotaConfig(id="narrow", scope=QuotaScope.TENANT, tenant_id=TENANT_A, deployment_id="else", rpm_limit=1),
    ]
    assert covering(caller(user_id="ada"), *quotas) == ["all", "model", "tenant", "member", "key"]
    assert covering(caller(key=False), *quotas) == ["all", "model", "tenant"]


def test_terms_carry_limits_prices_and_both_periods() -> None:
    quota = QuotaConfig(
        id="q",
        scope=QuotaScope.TENANT,
        tenant_id=TENANT_A,
        tpm_limit=5,
        max_budget_micros=0,
        budget_duration=BudgetDuration.DAY,
    )
    deployment = simulated("sim", prompt_price=1, cached_price=2, completion_price=3)
    terms = admission_terms(
        **caller(zone="Asia/Kathmandu"),
        deployment=deployment,
        quotas=[quota],
        prompt_tokens=7,
        max_tokens=8,
        now=NOW,
    )
    (only,) = terms.quotas
    assert (terms.prompt_tokens, terms.max_tokens, terms.prices) == (7, 8, Prices(1, 2, 3))
    assert (only.rpm_limit, only.tpm_limit, only.max_budget_micros, only.token_budget) == (NO_LIMIT, 5, 0, NO_LIMIT)
    midnight = datetime(2026, 12, 1, tzinfo=ZoneInfo("Asia/Kathmandu"))
    assert only.period_end_ms == midnight.timestamp() * 1000
    assert only.next_period == str(int(midnight.timestamp()))
    assert only.next_end_ms - only.period_end_ms == timedelta(days=1) / timedelta(milliseconds=1)


def test_an_override_raises_limits_for_a_while() -> None:
    quota = QuotaConfig(
        id="q",
        scope=QuotaScope.TENANT,
        tenant_id=TENANT_A,
        rpm_limit=10,
        soft_budget_micros=5,
        budget_duration=BudgetDuration.DAY,
        override_factor=2.5,
        override_until=NOW.timestamp() + 1,
    )
    tenant = TenantConfig(id=TENANT_A, slug="x")
    assert quota_terms(quota, tenant, NOW).rpm_limit == 25
    assert quota_terms(quota, tenant, NOW).soft_budget_micros == 5
    assert quota_terms(quota, tenant, NOW + timedelta(seconds=1)).rpm_limit == 10


def test_a_limit_without_measure_is_one_that_can_be_counted_to() -> None:
    quota = QuotaConfig(
        id="q",
        scope=QuotaScope.TENANT,
        tenant_id=TENANT_A,
        token_budget=2**63 - 1,
        budget_duration=BudgetDuration.MONTH,
        override_factor=9999.99,
        override_until=NOW.timestamp() + 1,
    )
    assert quota_terms(quota, TenantConfig(id=TENANT_A, slug="x"), NOW).token_budget == MOST


def test_tenants_that_share_a_budget_share_its_clock() -> None:
    quota = QuotaConfig(id="all", scope=QuotaScope.GLOBAL, max_budget_micros=1, budget_duration=BudgetDuration.MONTH)
    periods = set()
    for zone in ZONES:
        terms = admission_terms(
            **caller(zone=zone),
            deployment=simulated("sim"),
            quotas=[quota],
            prompt_tokens=1,
            max_tokens=1,
            now=datetime(2026, 11, 30, 23, 30, tzinfo=UTC),
        )
        periods.add(terms.quotas[0].period)
    assert len(periods) == 1


@pytest.mark.parametrize(
    ("duration", "zone", "at", "begin", "hours"),
    [
        (BudgetDuration.DAY, "Europe/Zurich", "2026-03-29T12:00+00:00", "2026-03-28T23:00+00:00", 23),
        (BudgetDuration.DAY, "Europe/Zurich", "2026-10-25T12:00+00:00", "2026-10-24T22:00+00:00", 25),
        (BudgetDuration.HOUR, "Asia/Kathmandu", "2026-11-30T12:30+00:00", "2026-11-30T12:15+00:00", 1),
        (BudgetDuration.WEEK, "UTC", "2026-11-29T12:00+00:00", "2026-11-23T00:00+00:00", 168),
        (BudgetDuration.MONTH, "UTC", "2026-12-31T23:59+00:00", "2026-12-01T00:00+00:00", 744),
    ],
)
def test_periods_follow_the_calendar(duration: BudgetDuration, zone: str, at: str, begin: str, hours: int) -> None:
    first, end = period_of(duration, datetime.fromisoformat(at), ZoneInfo(zone))
    assert first == datetime.fromisoformat(begin)
    assert end - first == timedelta(hours=hours)


@given(
    st.sampled_from(BudgetDuration),
    st.sampled_from(ZONES),
    st.integers(1_577_836_800, 2_051_222_400).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
)
def test_every_moment_lies_in_one_period_and_the_next_begins_where_it_ends(
    duration: BudgetDuration, zone: str, at: datetime
) -> None:
    begin, end = period_of(duration, at, ZoneInfo(zone))
    assert begin <= at < end
    assert period_of(duration, begin, ZoneInfo(zone)) == (begin, end)
    assert period_of(duration, end, ZoneInfo(zone))[0] == end
