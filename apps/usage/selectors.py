"""Reads of the ledger: sums by hour or day, split by what the reader asks for. They come from the roll-ups alone."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import F, Max, QuerySet, Sum

from apps.deployments.prices import from_micros
from apps.tenants.enums import MemberRole
from apps.tenants.models import Membership, Tenant
from apps.usage.enums import Bucket, Group
from apps.usage.models import UsageRollup
from apps.usage.upserts import SUMMED


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """Id and name of a tenant, key, member or deployment; both empty where there is none."""

    ref: str
    label: str

    def __str__(self) -> str:
        return self.label or self.ref


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSum:
    """What one combination of the groups that were asked for used in one bucket."""

    start_at: datetime
    whose: dict[Group, Whose]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_micros: int

    @property
    def tokens(self) -> int:
        """Prompt and answer together, as budgets count them."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def cost(self) -> Decimal:
        """In the unit of the prices."""
        return from_micros(self.cost_micros)


def usage_sums(
    *,
    tenant: Tenant,
    bucket: Bucket,
    start: datetime,
    end: datetime,
    groups: Collection[Group] = (),
    member_id: str | None = None,
) -> list[UsageSum]:
    """Returns the tenant's sums of buckets that begin from `start` to before `end`, oldest first.

    With `member_id` (32 hex digits) only what that member used.
    """
    rows = UsageRollup.objects.for_tenant(tenant)
    if member_id is not None:
        rows = rows.filter(user_ref=member_id)
    return _sums(rows, bucket, start, end, groups)


def usage_sums_of_all(
    *, bucket: Bucket, start: datetime, end: datetime, groups: Collection[Group] = (), deployment: str | None = None
) -> list[UsageSum]:
    """The same over all tenants, for operators; with `deployment` only what was used of the one called so."""
    rows = UsageRollup.all_tenants.all()
    return _sums(rows if deployment is None else rows.filter(deployment_label=deployment), bucket, start, end, groups)


def usage_totals_of_all(*, bucket: Bucket, start: datetime, end: datetime, groups: Collection[Group]) -> list[UsageSum]:
    """The same for the whole time: one sum for each combination of the groups, which says that it begins at `start`.

    Raises:
        ValueError: There is no group.
    """
    if not groups:
        raise ValueError("a total is of something")
    return _sums(UsageRollup.all_tenants.all(), bucket, start, end, groups, is_total=True)


def usage_may_read_all(*, tenant: Tenant, user_id: str) -> bool:
    """Whether a member may read what the whole tenant used; others read what they used themselves."""
    place = Membership.objects.for_tenant(tenant).filter(user_id=user_id, user__is_active=True)
    return place.filter(role__in=[MemberRole.OWNER, MemberRole.ADMIN]).exists()


def _sums(
    rows: "QuerySet[UsageRollup]",
    bucket: Bucket,
    start: datetime,
    end: datetime,
    groups: Collection[Group],
    *,
    is_total: bool = False,
) -> list[UsageSum]:
    found = rows.filter(bucket=bucket, start_at__gte=start, start_at__lt=end)
    # A deployment without an id (made before it had one) is known by its name.
    split = [] if is_total else ["start_at"]
    split += [f"{group}_ref" for group in groups] + (["deployment_label"] if Group.DEPLOYMENT in groups else [])
    named = {f"{group}_name": Max(f"{group}_label") for group in groups}
    totals: Any = (
        found.values(*split).annotate(**named, **{f"{name}_sum": Sum(F(name)) for name in SUMMED}).order_by(*split)
    )
    return [
        UsageSum(
            start_at=start if is_total else row["start_at"],
            whose={group: Whose(ref=row[f"{group}_ref"], label=row[f"{group}_name"]) for group in groups},
            **{name: int(row[f"{name}_sum"]) for name in SUMMED},
        )
        for row in totals
    ]
