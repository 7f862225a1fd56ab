import re
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.core import serializers
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, DjangoCaptureOnCommitCallbacks
from redis import Redis

from apps.accounts.models import ApiKey, User
from apps.accounts.services import api_key_create, user_create
from apps.deployments.models import ModelDeployment
from apps.tenants.enums import AuditAction
from apps.tenants.models import AuditEvent, Membership, Tenant
from headrace_wire import redis_keys
from headrace_wire.api_key import ApiKeyToken

KEYS = reverse("admin:accounts_apikey_changelist")
ADD_KEY = reverse("admin:accounts_apikey_add")
TOKEN = re.compile(r"sk-hr-[a-z0-9]{12}-[A-Za-z0-9]{40}")


def shown_token(html: str) -> ApiKeyToken:
    match = TOKEN.search(html)
    assert match is not None
    token = ApiKeyToken.parse(match[0])
    assert token is not None
    return token


def key_form(tenant: Tenant, **changes: Any) -> dict[str, Any]:
    return {"name": "billing", "tenant": str(tenant.pk), "user": "", "scopes": ["inference", "models"], **changes}


def detail(name: str, api_key: ApiKey) -> str:
    return reverse(f"admin:accounts_apikey_{name}", args=[api_key.pk])


def everything_stored() -> str:
    """Every row of every model, as text."""
    rows = [row for model in apps.get_models() if model._meta.managed for row in model._base_manager.all()]
    return str(serializers.serialize("json", rows))


def test_a_new_key_is_shown_once_and_stored_nowhere(
    admin_client: Client,
    tenant: Tenant,
    live_redis: Redis,
    caplog: pytest.LogCaptureFixture,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    with caplog.at_level("DEBUG"), django_capture_on_commit_callbacks(execute=True):
        answer = admin_client.post(ADD_KEY, key_form(tenant))
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    token = shown_token(answer.content.decode())

    key = ApiKey.objects.for_tenant(tenant).get()
    assert key.public_id == token.public_id
    assert token.matches(bytes(key.secret_sha256))
    assert key.created_by == User.objects.get(is_superuser=True)
    for page in (KEYS, detail("change", key), reverse("admin:tenants_auditevent_changelist")):
        html = admin_client.get(page).content.decode()
        assert token.public_id in html
        assert token.secret not in html
    session = " ".join(str(row.get_decoded()) for row in Session.objects.all())
    cookies = " ".join(cookie.value for cookie in admin_client.cookies.values())
    logs = " ".join(record.getMessage() for record in caplog.records)
    snapshot = live_redis.hget(redis_keys.snapshot_key(), "data")
    assert isinstance(snapshot, bytes)
    assert token.public_id.encode() in snapshot
    for sink in (everything_stored(), session, cookies, logs, snapshot.decode("latin-1")):
        assert token.secret not in sink


def test_a_form_that_is_sent_again_makes_no_second_key(admin_client: Client, tenant: Tenant) -> None:
    page = admin_client.get(ADD_KEY)
    form_id = page.context["adminform"].form["form_id"].value()
    form = key_form(tenant, form_id=form_id)
    assert TOKEN.search(admin_client.post(ADD_KEY, form).content.decode())
    again = admin_client.post(ADD_KEY, form, follow=True)
    assert "sent before" in again.content.decode()
    assert not TOKEN.search(again.content.decode())
    assert ApiKey.all_tenants.count() == 1
    another = admin_client.get(ADD_KEY).context["adminform"].form["form_id"].value()
    admin_client.post(ADD_KEY, key_form(tenant, form_id=another))
    assert ApiKey.all_tenants.count() == 2


def test_rotation_shows_a_successor_and_ends_the_old_key_after_the_grace(
    admin_client: Client, issued: tuple[ApiKey, ApiKeyToken]
) -> None:
    old, _ = issued
    url = detail("rotate", old)
    assert admin_client.get(url).status_code == 200
    assert not hasattr(ApiKey.all_tenants.get(pk=old.pk), "successor"), "a GET must not change anything"

    answer = admin_client.post(url, {"grace_hours": "2"})
    token = shown_token(answer.content.decode())
    old.refresh_from_db()
    assert old.successor.public_id == token.public_id
    assert old.expires_at is not None
    assert timedelta(minutes=119) < old.expires_at - timezone.now() <= timedelta(hours=2)
    assert [event.action for event in AuditEvent.all_tenants.filter(object_id=str(old.pk))] == [
        AuditAction.API_KEY_ROTATED,
        AuditAction.API_KEY_CREATED,
    ]

    again = admin_client.post(url, {"grace_hours": "2"}, follow=True)
    assert "rotated already" in again.content.decode()
    assert ApiKey.all_tenants.count() == 2


@pytest.mark.parametrize("grace", ["-1", "721", "soon", ""])
def test_a_bad_grace_time_changes_nothing(admin_client: Client, issued: tuple[ApiKey, ApiKeyToken], grace: str) -> None:
    answer = admin_client.post(detail("rotate", issued[0]), {"grace_hours": grace})
    assert answer.status_code == 200
    assert ApiKey.all_tenants.count() == 1


def test_revoking_asks_first_and_leaves_an_audit_row(admin_client: Client, issued: tuple[ApiKey, ApiKeyToken]) -> None:
    key, _ = issued
    admin_client.get(detail("revoke", key))
    assert ApiKey.all_tenants.get().revoked_at is None

    admin_client.post(detail("revoke", key))
    assert ApiKey.all_tenants.get().revoked_at is not None
    event = AuditEvent.all_tenants.filter(action=AuditAction.API_KEY_REVOKED).get()
    assert event.actor == User.objects.get(is_superuser=True)
    assert event.tenant == key.tenant
    assert "revoked" in admin_client.get(f"{KEYS}?state=revoked").content.decode()


def test_chosen_keys_are_revoked_together(admin_client: Client, tenant: Tenant) -> None:
    keys = [api_key_create(api_key=ApiKey(tenant=tenant, name=f"key {n}"))[0] for n in range(3)]
    chosen = [str(key.pk) for key in keys[:2]]
    admin_client.post(KEYS, {"action": "revoke_chosen", "_selected_action": chosen})
    assert ApiKey.all_tenants.filter(revoked_at__isnull=False).count() == 2
    assert AuditEvent.all_tenants.filter(action=AuditAction.API_KEY_REVOKED).count() == 2


def test_changing_rights_is_audited_with_before_and_after(
    admin_client: Client, issued: tuple[ApiKey, ApiKeyToken], deployment: ModelDeployment
) -> None:
    key, _ = issued
    form = {"name": "service", "scopes": ["models"], "is_restricted": "on", "allowed_deployments": [deployment.pk]}
    answer = admin_client.post(detail("change", key), form)
    assert answer.status_code == 302
    event = AuditEvent.all_tenants.filter(action=AuditAction.API_KEY_CHANGED).get()
    assert event.details == {
        "scopes": [["inference", "models"], ["models"]],
        "is_restricted": [False, True],
        "allowed_deployments": [[], ["tiny"]],
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scopes": []}, "This field is required"),
        ({"scopes": ["root"]}, "root"),
        ({"name": ""}, "This field is required"),
        ({"user": "stranger"}, "Is not a member of the tenant"),
    ],
)
def test_bad_values_are_shown_in_the_form(
    admin_client: Client, tenant: Tenant, user: User, changes: dict[str, Any], message: str
) -> None:
    if changes.get("user") == "stranger":
        changes = {"user": str(user.pk)}
    answer = admin_client.post(ADD_KEY, key_form(tenant, **changes))
    assert answer.status_code == 200
    assert message in answer.content.decode()
    assert not ApiKey.all_tenants.exists()


def test_a_pasted_key_is_found_by_its_public_part(admin_client: Client, issued: tuple[ApiKey, ApiKeyToken]) -> None:
    key, token = issued
    assert list(admin_client.get(KEYS, {"q": token.reveal()}).context["cl"].result_list) == [key]
    assert not admin_client.get(KEYS, {"q": "sk-hr-unknown"}).context["cl"].result_list


def test_keys_cannot_be_deleted(admin_client: Client, issued: tuple[ApiKey, ApiKeyToken]) -> None:
    assert admin_client.post(detail("delete", issued[0]), {"post": "yes"}).status_code == 403


def test_staff_without_permission_cannot_touch_keys(client: Client, issued: tuple[ApiKey, ApiKeyToken]) -> None:
    staff = user_create(user=User(email="staff@example.com", is_staff=True))
    client.force_login(staff)
    key, _ = issued
    for url in (KEYS, detail("rotate", key), detail("revoke", key)):
        assert client.post(url, {"grace_hours": "0"}).status_code == 403
    key.refresh_from_db()
    assert key.revoked_at is None


def test_key_list_takes_a_fixed_number_of_queries(
    admin_client: Client, tenant: Tenant, membership: Membership, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    def make(count: int) -> None:
        for number in range(count):
            api_key_create(api_key=ApiKey(tenant=tenant, user=membership.user, name=f"key {number}"))

    make(1)
    admin_client.get(KEYS)
    with django_assert_num_queries(5):
        admin_client.get(KEYS)
    make(9)
    with django_assert_num_queries(5):
        admin_client.get(KEYS)


def test_a_user_is_created_with_a_password(admin_client: Client) -> None:
    form = {
        "email": "New@Example.com",
        "full_name": "New",
        "usable_password": "true",
        "password1": "correct horse battery",
        "password2": "correct horse battery",
    }
    answer = admin_client.post(reverse("admin:accounts_user_add"), form)
    assert answer.status_code == 302
    user = User.objects.get(email="new@example.com")
    assert user.check_password("correct horse battery")
    event = AuditEvent.all_tenants.filter(action=AuditAction.USER_CREATED, object_id=str(user.pk)).get()
    assert "password" not in event.details


def test_a_changed_password_is_audited_without_it(admin_client: Client, user: User) -> None:
    form = {"usable_password": "true", "password1": "another long one 7", "password2": "another long one 7"}
    answer = admin_client.post(reverse("admin:auth_user_password_change", args=[user.pk]), form)
    assert answer.status_code == 302
    user.refresh_from_db()
    assert user.check_password("another long one 7")
    event = AuditEvent.all_tenants.filter(action=AuditAction.USER_CHANGED).get()
    assert event.details == {"password": ["(hidden)", "(hidden)"]}
    assert "another long one" not in " ".join(entry.change_message for entry in LogEntry.objects.all())


def test_user_list_takes_a_fixed_number_of_queries(
    admin_client: Client, user: User, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    url = reverse("admin:accounts_user_changelist")
    admin_client.get(url)
    with django_assert_num_queries(4):
        admin_client.get(url)
    for number in range(9):
        user_create(user=User(email=f"user{number}@example.com"))
    with django_assert_num_queries(4):
        admin_client.get(url)


@pytest.mark.parametrize("forged", ["no such id", "00000000-0000-4000-8000-000000000000", "1", "\0"])
def test_a_forged_tenant_is_an_error_of_the_form(admin_client: Client, tenant: Tenant, forged: str) -> None:
    answer = admin_client.post(ADD_KEY, {**key_form(tenant), "tenant": forged, "user": forged})
    assert {"tenant", "user"} <= answer.context["adminform"].form.errors.keys()
    assert admin_client.get(ADD_KEY, {"tenant": forged, "user": forged}).status_code == 200
    assert not ApiKey.all_tenants.exists()
