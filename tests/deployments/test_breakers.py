"""Circuit breakers in the database: who may stand in for whom, what gateways are told, and what is seen of them."""

from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import Permission
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.db.models import ProtectedError
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries
from redis import Redis
from redis.exceptions import RedisError

from apps.accounts.models import User
from apps.deployments import services
from apps.deployments.breaker_mirror import breakers_sync
from apps.deployments.breaker_services import breaker_move
from apps.deployments.enums import BreakerReason, BreakerState
from apps.deployments.models import BreakerStanding, ModelDeployment
from apps.deployments.selectors import deployment_configs
from apps.tenants.enums import AuditAction
from apps.tenants.models import AuditEvent
from headrace_wire import redis_keys
from headrace_wire.breakers import BreakerTerms

SINCE = 1_800_000_000
WAYS = ("open", "close")


@pytest.fixture
def spare(db: None) -> ModelDeployment:
    return services.deployment_create(deployment=ModelDeployment(name="spare", model="models/spare"))


def guard(deployment: ModelDeployment, **changes: object) -> ModelDeployment:
    deployment.is_breaker_on = True
    for name, value in changes.items():
        setattr(deployment, name, value)
    return services.deployment_update(deployment=deployment)


def key_of(deployment: ModelDeployment) -> str:
    return redis_keys.breaker_key(deployment.pk.hex)


def stand(redis: Redis, deployment: ModelDeployment, state: str, reason: str = "errors") -> None:
    """What gateways do."""
    redis.hset(key_of(deployment), mapping={"state": state, "reason": reason, "since": SINCE * 1000})


def test_gateways_are_told_of_the_breaker_and_the_fallback(deployment: ModelDeployment, spare: ModelDeployment) -> None:
    guard(deployment, fallback=spare, breaker_error_share=0.25, breaker_min_ends=7, breaker_probes=2)
    by_name = {config.name: config for config in deployment_configs()}
    assert by_name["tiny"].fallback == "spare"
    assert by_name["tiny"].breaker == BreakerTerms(error_share=0.25, min_ends=7, probes=2)
    assert (by_name["spare"].breaker, by_name["spare"].fallback) == (None, None)


def test_fallbacks_cost_no_query_each(
    deployment: ModelDeployment, spare: ModelDeployment, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    guard(deployment, fallback=spare)
    with django_assert_num_queries(2):
        deployment_configs()


def test_fallbacks_do_not_lead_back(deployment: ModelDeployment, spare: ModelDeployment) -> None:
    third = services.deployment_create(deployment=ModelDeployment(name="third", model="m", fallback=spare))
    guard(deployment, fallback=third)
    for fallback in (deployment, third, spare):
        spare.fallback = fallback
        with pytest.raises(ValidationError, match=r"leads back|stand in for itself"):
            services.deployment_update(deployment=spare)
    spare.refresh_from_db()
    assert spare.fallback is None


def test_the_database_knows_that_nobody_stands_in_for_himself(deployment: ModelDeployment) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        ModelDeployment.objects.filter(pk=deployment.pk).update(fallback_id=deployment.pk)


def test_a_fallback_is_not_deleted(deployment: ModelDeployment, spare: ModelDeployment) -> None:
    guard(deployment, fallback=spare)
    with pytest.raises(ProtectedError):
        services.deployment_delete(deployment=spare)
    deployment.fallback = None
    services.deployment_update(deployment=deployment)
    services.deployment_delete(deployment=spare)


def test_a_change_of_the_fallback_is_audited(deployment: ModelDeployment, spare: ModelDeployment) -> None:
    guard(deployment, fallback=spare)
    event = AuditEvent.all_tenants.get(action=AuditAction.DEPLOYMENT_CHANGED)
    assert event.details == {"is_breaker_on": [False, True], "fallback": [None, str(spare.pk)]}


def test_what_moved_is_mirrored_and_audited_once(live_redis: Redis, deployment: ModelDeployment) -> None:
    guard(deployment)
    assert breakers_sync() == 0
    stand(live_redis, deployment, "open")
    assert [breakers_sync(), breakers_sync()] == [1, 0]
    standing = BreakerStanding.objects.get()
    assert (standing.deployment, standing.state, standing.reason) == (deployment, "open", "errors")
    assert standing.since is not None
    assert standing.since.timestamp() == SINCE
    stand(live_redis, deployment, "closed", "")
    assert breakers_sync() == 1
    told = AuditEvent.all_tenants.filter(action=AuditAction.DEPLOYMENT_BREAKER_MOVED).order_by("pk")
    assert [event.details["state"] for event in told] == [["closed", "open"], ["open", "closed"]]
    assert {event.actor_id for event in told} == {None}


def test_what_is_moved_before_the_rows_are_locked_is_seen(live_redis: Redis, deployment: ModelDeployment) -> None:
    guard(deployment)
    breakers_sync()

    def meanwhile(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "deployments_breakerstanding" in sql:
            stand(live_redis, deployment, "open", "hand")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(meanwhile):
        assert breakers_sync() == 1
    assert BreakerStanding.objects.get().reason == BreakerReason.HAND


def test_who_has_no_breaker_any_more_has_no_standing(live_redis: Redis, deployment: ModelDeployment) -> None:
    guard(deployment)
    stand(live_redis, deployment, "open")
    breakers_sync()
    deployment.is_breaker_on = False
    services.deployment_update(deployment=deployment)
    breakers_sync()
    assert not BreakerStanding.objects.exists()


def test_the_page_says_where_requests_go(
    live_redis: Redis, admin_client: Client, deployment: ModelDeployment, spare: ModelDeployment
) -> None:
    change = reverse("admin:deployments_modeldeployment_change", args=[deployment.pk])
    assert admin_client.get(change).status_code == 200, "without a breaker"
    guard(deployment, fallback=spare)
    for state, said in (("open", "requests go to spare"), ("half_open", "some requests try it")):
        stand(live_redis, deployment, state)
        breakers_sync()
        page = admin_client.get(change).content.decode()
        assert said in page
        assert "Workers failed too many answers" in page
    listed = admin_client.get(reverse("admin:deployments_modeldeployment_changelist")).content.decode()
    assert "Half open" in listed
    guard(deployment, fallback=None)
    assert "requests are refused" in admin_client.get(change).content.decode()


def moves() -> list[tuple[list[str], str, object]]:
    """Of what the audit trail has: from and to, why, who."""
    told = AuditEvent.all_tenants.filter(action=AuditAction.DEPLOYMENT_BREAKER_MOVED).order_by("pk")
    return [(event.details["state"], event.details["reason"], event.actor_id) for event in told]


def test_operators_open_and_close_it_by_hand(
    live_redis: Redis, admin_client: Client, admin_user: User, deployment: ModelDeployment, spare: ModelDeployment
) -> None:
    guard(deployment, fallback=spare)
    ways = {name: reverse(f"admin:deployments_modeldeployment_{name}_breaker", args=[deployment.pk]) for name in WAYS}
    asked = admin_client.get(ways["open"])
    assert "until somebody closes" in asked.content.decode()
    assert not live_redis.exists(key_of(deployment)), "it only asks"
    opened = admin_client.post(ways["open"], follow=True).content.decode()
    assert "Opened by hand" in opened
    assert "requests go to spare" in opened
    assert live_redis.hget(key_of(deployment), "reason") == b"hand"
    assert breakers_sync() == 0, "it is written already"
    assert "It stands like that already." in admin_client.post(ways["open"], follow=True).content.decode()
    admin_client.post(ways["close"])
    assert live_redis.hget(key_of(deployment), "state") == b"closed"
    assert breakers_sync() == 0
    who = str(admin_user.pk)
    assert [(state, reason, str(actor)) for state, reason, actor in moves()] == [
        (["closed", "open"], "hand", who),
        (["open", "closed"], "hand", who),
    ]


def test_one_that_is_switched_off_is_not_moved(live_redis: Redis, deployment: ModelDeployment) -> None:
    with pytest.raises(ValidationError, match="switched off"):
        breaker_move(deployment=deployment, is_open=True, actor=None)
    assert not live_redis.exists(key_of(deployment))
    assert moves() == []


def test_one_that_failures_opened_is_kept_open_or_closed(live_redis: Redis, deployment: ModelDeployment) -> None:
    guard(deployment)
    stand(live_redis, deployment, "open")
    breakers_sync()
    breaker_move(deployment=deployment, is_open=True, actor=None)
    standing = BreakerStanding.objects.get()
    assert (standing.state, standing.reason) == (BreakerState.OPEN, BreakerReason.HAND)
    stand(live_redis, deployment, "half_open")
    breakers_sync()
    assert breaker_move(deployment=deployment, is_open=False, actor=None).state == BreakerState.CLOSED


def test_another_deployment_of_the_same_name_begins_closed(live_redis: Redis, deployment: ModelDeployment) -> None:
    guard(deployment)
    breaker_move(deployment=deployment, is_open=True, actor=None)
    services.deployment_delete(deployment=deployment)
    again = guard(services.deployment_create(deployment=ModelDeployment(name="tiny", model="models/tiny")))
    assert breakers_sync() == 0
    assert BreakerStanding.objects.get(deployment=again).state == BreakerState.CLOSED
    assert not live_redis.exists(key_of(again))


def test_who_only_looks_moves_nothing(live_redis: Redis, client: Client, deployment: ModelDeployment) -> None:
    guard(deployment)
    looker = User.objects.create_user("looks@example.org", password=None, is_staff=True)
    looker.user_permissions.add(Permission.objects.get(codename="view_modeldeployment"))
    client.force_login(looker)
    refused = client.post(reverse("admin:deployments_modeldeployment_open_breaker", args=[deployment.pk]))
    assert refused.status_code == 403
    assert not live_redis.exists(key_of(deployment))


def test_nothing_is_written_where_redis_does_not_answer(
    live_redis: Redis, deployment: ModelDeployment, settings: LazySettings, tmp_path: Path
) -> None:
    guard(deployment)
    settings.REDIS_URL = f"unix://{tmp_path / 'nobody.sock'}"
    with pytest.raises(RedisError):
        breaker_move(deployment=deployment, is_open=True, actor=None)
    assert moves() == []
    assert not BreakerStanding.objects.exclude(state=BreakerState.CLOSED).exists()
