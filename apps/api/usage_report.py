"""`GET /v1/usage`: what the key's tenant used, by hour or day, in the words of OpenAI's usage endpoints.

Unlike the routes beside it, this one asks the database; it is not on the way of any token.
"""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
from channels.db import database_sync_to_async
from django.db import InterfaceError, OperationalError
from msgspec import Struct

from apps.api.http import Exchange
from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from apps.tenants.models import Tenant
from apps.usage.buckets import ONE, bucket_edges, bucket_index
from apps.usage.enums import Bucket, Group
from apps.usage.selectors import UsageSum, usage_may_read_all, usage_sums
from headrace_wire.api_key import ApiKeyScope
from headrace_wire.errors import DependencyUnavailableError, InvalidRequestError, PermissionDeniedError

DEFAULT_LIMIT = {Bucket.HOUR: 24, Bucket.DAY: 7}
MAX_LIMIT = {Bucket.HOUR: 168, Bucket.DAY: 31}
"""Buckets of one page, as OpenAI has them."""
GROUPS = (Group.DEPLOYMENT, Group.API_KEY, Group.USER)
_PARAMETERS = frozenset({"start", "end", "bucket", "group_by", "limit", "page"})
_LATEST = 4_102_444_800
"""The year 2100; beyond it a number is no time in seconds."""


class UsageQuery(Struct, frozen=True, kw_only=True):
    """What was asked for."""

    bucket: Bucket
    groups: list[Group]
    start: datetime
    end: datetime
    limit: int
    zone: ZoneInfo


async def usage_report(exchange: Exchange, gateway: Gateway) -> None:
    """Answer with a page of buckets.

    Raises:
        HeadraceError: the key is not good for this, a parameter is wrong, or the database is away.
    """
    caller = gateway.authenticate(exchange.bearer())
    gateway.config.require_scope(caller, ApiKeyScope.USAGE)
    query = usage_query(exchange.scope.get("query_string", b"").decode("latin-1"), zone=caller.tenant.time_zone)
    try:
        page = await database_sync_to_async(_page)(caller, query)
    except (OperationalError, InterfaceError) as error:
        raise DependencyUnavailableError("The ledger does not answer; try again.", retry_after_seconds=5.0) from error
    await exchange.answer_json(200, msgspec.json.encode(page))


def usage_query(text: str, *, zone: str, now: datetime | None = None) -> UsageQuery:
    """Read a query string; times without an offset are by the clock of `zone`.

    Raises:
        InvalidRequestError: a parameter is unknown or has a value that cannot be used.
    """
    given = parse_qs(text, keep_blank_values=True)
    unknown = sorted(given.keys() - _PARAMETERS)
    if unknown:
        raise InvalidRequestError(f"There is no parameter `{unknown[0][:50]}`.", param=unknown[0][:50])
    clock = ZoneInfo(zone)
    last = {name: values[-1] for name, values in given.items()}
    bucket = _choice("bucket", last.get("bucket", Bucket.DAY.value), list(Bucket))
    groups = [name for value in given.get("group_by", []) for name in value.split(",") if name]
    limit = _limit(last.get("limit"), bucket)
    end = _time("end", last["end"], clock) if "end" in last else now or datetime.now(UTC)
    start = _time("start", last["start"], clock) if "start" in last else end - ONE[bucket] * (limit - 1)
    if "page" in last:
        start = _time("page", last["page"], clock)
    if start >= end:
        raise InvalidRequestError("`start` must be before `end`.", param="start")
    return UsageQuery(
        bucket=bucket,
        groups=[group for group in GROUPS if group in [_choice("group_by", name, GROUPS) for name in groups]],
        start=start,
        end=end,
        limit=limit,
        zone=clock,
    )


def _choice(param: str, value: str, choices: Any) -> Any:  # noqa: ANN401  # one enum or another
    for choice in choices:
        if value == choice.value:
            return choice
    raise InvalidRequestError(f"`{param}` must be one of {', '.join(c.value for c in choices)}.", param=param)


def _limit(value: str | None, bucket: Bucket) -> int:
    if value is None:
        return DEFAULT_LIMIT[bucket]
    # Length first: Python refuses to read numbers of thousands of digits.
    if len(value) <= 9 and value.isascii() and value.isdecimal() and 1 <= int(value) <= MAX_LIMIT[bucket]:
        return int(value)
    raise InvalidRequestError(f"`limit` must be 1 to {MAX_LIMIT[bucket]}.", param="limit")


def _time(param: str, value: str, clock: ZoneInfo) -> datetime:
    try:
        at = _read_time(value, clock)
        if 0 <= at.timestamp() <= _LATEST:
            return at
    except (ValueError, OverflowError):
        pass
    message = f"`{param}` must be Unix seconds or an ISO 8601 date or time from 1970 to 2099."
    raise InvalidRequestError(message, param=param)


def _read_time(value: str, clock: ZoneInfo) -> datetime:
    if value.isascii() and value.isdecimal():
        return datetime.fromtimestamp(int(value[:12]), UTC)
    at = datetime.fromisoformat(value)
    return (at if at.tzinfo else at.replace(tzinfo=clock)).astimezone(UTC)


def _page(caller: Caller, query: UsageQuery) -> dict[str, object]:
    tenant = Tenant.objects.filter(pk=UUID(caller.tenant.id)).first()
    if tenant is None:
        raise PermissionDeniedError("This key's tenant has no ledger.")
    edges = bucket_edges(query.start, query.end, bucket=query.bucket, zone=query.zone, limit=query.limit)
    member_id = caller.user_id
    if member_id is not None and usage_may_read_all(tenant=tenant, user_id=member_id):
        member_id = None
    sums = usage_sums(
        tenant=tenant,
        bucket=query.bucket,
        start=edges[0],
        end=edges[-1],
        groups=query.groups,
        member_id=member_id,
    )
    results: list[list[dict[str, object]]] = [[] for _ in edges[1:]]
    for row in sums:
        results[bucket_index(edges, row.start_at)].append(_result(row))
    has_more = edges[-1] < query.end
    return {
        "object": "page",
        "data": [
            {"object": "bucket", "start_time": _seconds(start), "end_time": _seconds(end), "results": rows}
            for start, end, rows in zip(edges, edges[1:], results, strict=False)
        ],
        "has_more": has_more,
        "next_page": str(_seconds(edges[-1])) if has_more else None,
    }


def _seconds(at: datetime) -> int:
    return int(at.timestamp())


def _result(row: UsageSum) -> dict[str, object]:
    deployment, api_key, user = (row.whose.get(group) for group in GROUPS)
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": row.prompt_tokens,
        "input_cached_tokens": row.cached_tokens,
        "output_tokens": row.completion_tokens,
        "num_model_requests": row.requests,
        "cost": float(row.cost),
        "cost_micros": row.cost_micros,
        "project_id": None,
        "model": deployment.label if deployment else None,
        "api_key_id": api_key.ref or None if api_key else None,
        "api_key_name": api_key.label or None if api_key else None,
        "user_id": user.ref or None if user else None,
        "user_email": user.label or None if user else None,
    }
