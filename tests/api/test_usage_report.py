"""`GET /v1/usage` through the thin application, on a real Redis and a real database."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from asgiref.sync import async_to_sync
from openai.types.admin.organization import UsageCompletionsResponse
from redis import Redis

from apps.accounts.models import ApiKey
from apps.accounts.services import api_key_create
from apps.api.asgi import application
from apps.api.usage_report import usage_query
from apps.deployments.models import ModelDeployment
from apps.streams.runtime import start_gateway, stop_gateway
from apps.tenants.enums import MemberRole
from apps.tenants.models import Membership, Tenant
from apps.tenants.services import membership_update
from apps.tenants.snapshots import snapshot_publish
from apps.usage.enums import Bucket, Group
from apps.usage.services import usage_record
from headrace_wire.api_key import ApiKeyToken
from headrace_wire.errors import InvalidRequestError
from tests.support.database_outage import database_down
from tests.usage.events import NOON, event, milliseconds

Ask = Callable[..., tuple[int, Any]]
JULY = "start=2026-07-01&end=2026-07-03"


def key_of(tenant: Tenant, *scopes: str, user: Any = None) -> ApiKeyToken:
    _, token = api_key_create(api_key=ApiKey(tenant=tenant, name="key", user=user, scopes=list(scopes)))
    return token


async def _get(path: str, headers: dict[str, str]) -> tuple[int, Any]:
    await start_gateway()
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://test") as client:
            answer = await client.get(path, headers=headers)
            return answer.status_code, answer.json()
    finally:
        await stop_gateway()


@pytest.fixture
def ask(live_redis: Redis, transactional_db: None) -> Ask:
    """Asks as the holder of a key would; returns status and body. The application ends its connection after use."""

    def get(token: ApiKeyToken | None, query: str = JULY) -> tuple[int, Any]:
        snapshot_publish()
        headers = {"authorization": f"Bearer {token.reveal()}"} if token else {}
        return async_to_sync(_get)(f"/v1/usage?{query}", headers)

    return get


def totals(body: Any) -> list[int]:
    return [sum(result["num_model_requests"] for result in bucket["results"]) for bucket in body["data"]]


def test_a_page_has_every_bucket_in_the_words_of_openai(ask: Ask, tenant: Tenant) -> None:
    tomorrow = NOON + timedelta(days=1)
    usage_record(
        events=[
            event("strm-1", tenant_id=tenant.id.hex),
            event("strm-2", tenant_id=tenant.id.hex),
            event("strm-3", tenant_id=tenant.id.hex, admitted_at=tomorrow, cost_micros=1_500_000),
        ]
    )
    status, body = ask(key_of(tenant, "usage"))
    assert status == 200
    page = UsageCompletionsResponse.model_validate(body)
    assert [(b.start_time, b.end_time) for b in page.data] == [
        (1_782_864_000, 1_782_950_400),
        (1_782_950_400, 1_783_036_800),
    ]
    (first,), (second,) = (bucket["results"] for bucket in body["data"])
    assert (first["input_tokens"], first["input_cached_tokens"], first["output_tokens"]) == (20, 8, 10)
    assert (first["num_model_requests"], first["cost_micros"], first["model"]) == (2, 14, None)
    assert second["cost"] == 1.5
    assert (page.has_more, page.next_page) == (False, None)


def test_another_tenants_usage_is_not_there(ask: Ask, tenant: Tenant, other_tenant: Tenant) -> None:
    usage_record(
        events=[event("strm-1", tenant_id=other_tenant.id.hex), event("strm-2", tenant_id=tenant.id.hex, user_id="u")]
    )
    _, body = ask(key_of(tenant, "usage"), f"{JULY}&group_by=user")
    assert totals(body) == [1, 0]
    _, body = ask(key_of(other_tenant, "usage"))
    assert totals(body) == [1, 0]


def test_groups_are_named(ask: Ask, membership: Membership, deployment: ModelDeployment) -> None:
    tenant = membership.tenant
    token = key_of(tenant, "usage")
    key = ApiKey.objects.for_tenant(tenant).get()
    whose: dict[str, Any] = {"tenant_id": tenant.id.hex, "deployment_id": deployment.id.hex}
    usage_record(
        events=[
            event("strm-1", **whose, api_key_id=key.id.hex),
            event("strm-2", **whose, user_id=membership.user_id.hex),
        ]
    )
    _, body = ask(token, f"{JULY}&group_by=deployment")
    ((result,), _) = (bucket["results"] for bucket in body["data"])
    assert (result["model"], result["num_model_requests"], result["user_id"]) == ("tiny", 2, None)
    _, body = ask(token, f"{JULY}&group_by=api_key,user")
    named = [(r["api_key_id"], r["user_id"], r["user_email"], r["model"]) for r in body["data"][0]["results"]]
    assert named == [
        (None, membership.user_id.hex, "ann@example.com", None),
        (key.id.hex, None, None, None),
    ]
    assert body["data"][0]["results"][1]["api_key_name"] == str(key)


@pytest.mark.parametrize(("role", "seen"), [(MemberRole.MEMBER, 1), (MemberRole.ADMIN, 2), (MemberRole.OWNER, 2)])
def test_a_members_key_reads_what_its_role_may(ask: Ask, membership: Membership, role: MemberRole, seen: int) -> None:
    membership.role = role
    membership_update(membership=membership)
    tenant = membership.tenant
    usage_record(
        events=[
            event("strm-1", tenant_id=tenant.id.hex, user_id=membership.user_id.hex),
            event("strm-2", tenant_id=tenant.id.hex),
        ]
    )
    _, body = ask(key_of(tenant, "usage", user=membership.user))
    assert totals(body) == [seen, 0]


def test_pages_follow_each_other(ask: Ask, tenant: Tenant) -> None:
    usage_record(
        events=[
            event(f"strm-{hour}", tenant_id=tenant.id.hex, admitted_at=NOON + timedelta(hours=hour))
            for hour in range(5)
        ]
    )
    token = key_of(tenant, "usage")
    asked = "bucket=hour&start=2026-07-01T12:00:00&end=2026-07-01T17:00:00&limit=2"
    seen, page = [], ""
    while True:
        _, body = ask(token, f"{asked}&page={page}" if page else asked)
        seen += totals(body)
        page = body["next_page"]
        if not body["has_more"]:
            break
    assert seen == [1, 1, 1, 1, 1]
    assert page is None


def test_days_are_the_tenants(ask: Ask, tenant: Tenant) -> None:
    Tenant.objects.update(time_zone="Asia/Tokyo")
    usage_record(events=[event("strm-1", tenant_id=tenant.id.hex, admitted_at=NOON.replace(hour=15))])
    _, body = ask(key_of(tenant, "usage"))
    assert totals(body) == [0, 1]
    assert body["data"][0]["start_time"] == int(datetime(2026, 6, 30, 15, tzinfo=UTC).timestamp())


def test_what_was_summed_up_by_another_clock_still_counts_once(ask: Ask, tenant: Tenant) -> None:
    usage_record(events=[event("strm-1", tenant_id=tenant.id.hex)])
    Tenant.objects.update(time_zone="Asia/Kolkata")
    _, body = ask(key_of(tenant, "usage"))
    assert totals(body) == [1, 0]


def test_a_key_without_the_scope_is_refused(ask: Ask, tenant: Tenant) -> None:
    status, body = ask(key_of(tenant, "models", "inference"))
    assert (status, body["error"]["code"]) == (403, "permission_denied")


def test_no_key_is_no_answer(ask: Ask) -> None:
    status, body = ask(None)
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")
    assert body["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("start=yesterday", "start"),
        ("start=2026-07-02&end=2026-07-01", "start"),
        ("end=99999999999999", "end"),
        ("end=0001-01-01", "end"),
        ("bucket=minute", "bucket"),
        ("bucket=", "bucket"),
        ("group_by=tenant", "group_by"),
        ("group_by=user,password", "group_by"),
        ("limit=0", "limit"),
        ("limit=32", "limit"),
        ("bucket=hour&limit=169", "limit"),
        ("limit=1e3", "limit"),
        ("limit=0000000011000000", "limit"),
        ("limit=" + "1" * 5000, "limit"),
        ("page=next", "page"),
        ("tenant_id=other", "tenant_id"),
    ],
)
def test_a_wrong_parameter_is_named(query: str, param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        usage_query(query, zone="UTC", now=NOON)
    assert refused.value.param == param


def test_a_refusal_has_the_error_body(ask: Ask, tenant: Tenant) -> None:
    status, body = ask(key_of(tenant, "usage"), "bucket=minute")
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, "bucket", "invalid_request_error")


def test_without_parameters_it_is_the_last_week_with_today() -> None:
    query = usage_query("", zone="UTC", now=NOON)
    assert (query.bucket, query.groups, query.limit) == (Bucket.DAY, [], 7)
    assert (query.start, query.end) == (NOON - timedelta(days=6), NOON)
    assert usage_query("bucket=hour", zone="UTC", now=NOON).start == NOON - timedelta(hours=23)


def test_times_are_seconds_or_iso_by_the_tenants_clock() -> None:
    for text in (str(milliseconds(NOON) // 1000), "2026-07-01T14:30", "2026-07-01T12:30:00Z"):
        assert usage_query(f"start={text}&end=2026-08-01", zone="Europe/Zurich").start == NOON
    with pytest.raises(InvalidRequestError):
        usage_query("start=2026-13-01", zone="UTC")


def test_groups_may_be_repeated_or_listed() -> None:
    for text in ("group_by=user&group_by=deployment", "group_by=user,deployment,user"):
        assert usage_query(text, zone="UTC").groups == [Group.DEPLOYMENT, Group.USER]


def test_a_database_that_is_away_is_said(ask: Ask, tenant: Tenant) -> None:
    token = key_of(tenant, "usage")
    snapshot_publish()
    with database_down():
        status, body = async_to_sync(_get)("/v1/usage", {"authorization": f"Bearer {token.reveal()}"})
    assert (status, body["error"]["code"]) == (503, "dependency_unavailable")
