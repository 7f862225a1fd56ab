"""Alerts fire once and are over once: hysteresis, silences, two that look at the same time, one that dies."""

import threading
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, connections
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from apps.deployments.models import ModelDeployment
from apps.ops.alerts.built_in import BUILT_IN_RULES
from apps.ops.alerts.enums import AlertState, Direction, Signal
from apps.ops.alerts.evaluation import alerts_evaluate, alerts_expire, is_bad, is_over, rule_advance
from apps.ops.alerts.readings import Reading
from apps.ops.models import Alert, AlertDelivery, AlertReceiver, AlertRule, AlertSilence
from tests.support.database_outage import database_down

START = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
FIELDS: dict[str, Any] = {
    "signal": Signal.PERCENTILE,
    "duration": "ttft",
    "percentile": 95.0,
    "threshold": 0.5,
    "clear_threshold": 0.4,
    "for_seconds": 60,
}


@pytest.fixture
def receiver(db: None) -> AlertReceiver:
    AlertReceiver.objects.all().delete()
    return AlertReceiver.objects.create(name="Everybody", is_default=True)


@pytest.fixture
def rule(receiver: AlertReceiver) -> AlertRule:
    return AlertRule.objects.create(key="late", name="First tokens are late", **FIELDS)


def look(rule: AlertRule, value: float | None, seconds: float, subject: str = "m") -> int:
    """Advances the rule as a run at that time would."""
    readings = [Reading(subject, subject, value)]
    return rule_advance(rule=rule, readings=readings, at=START + timedelta(seconds=seconds))


def events(alert: Alert | None = None) -> list[str]:
    rows = AlertDelivery.objects.filter(alert=alert) if alert else AlertDelivery.objects.all()
    return list(rows.order_by("pk").values_list("event", flat=True))


def test_it_fires_after_its_time_and_is_over_below_the_second_threshold(rule: AlertRule) -> None:
    seen = []
    for seconds, value in enumerate((0.6, 0.7, 0.9, 0.45, 0.55, 0.45, 0.4, 0.3)):
        look(rule, value, seconds * 30)
        seen.append([(alert.state, alert.value) for alert in Alert.objects.all()])
    assert [states[0][0] for states in seen] == [
        *("pending", "pending", "firing", "firing", "firing", "firing", "resolved", "resolved")
    ]
    alert = Alert.objects.get()
    assert (alert.worst_value, alert.value, alert.since, alert.fired_at) == (
        *(0.9, 0.4, START, START + timedelta(seconds=60)),
    )
    assert events() == ["fired", "resolved"]


def test_what_comes_back_in_time_leaves_no_trace(rule: AlertRule) -> None:
    look(rule, 0.6, 0)
    look(rule, 0.5, 59)
    look(rule, 0.6, 61)
    look(rule, 0.6, 120)
    assert Alert.objects.get().state == AlertState.PENDING, "its time began again"
    assert events() == []


def test_subjects_fire_by_themselves_and_one_that_is_gone_is_over(rule: AlertRule) -> None:
    at = START + timedelta(seconds=60)
    for subject in ("a", "b"):
        AlertRule.objects.update(read_at=None)
        look(rule, 0.6, 0, subject)
    both = [Reading("a", "a", 0.6), Reading("b", "b", 0.6)]
    # The look at b alone ended a's pending one.
    rule_advance(rule=rule, readings=both, at=at)
    rule_advance(rule=rule, readings=both, at=at + timedelta(seconds=60))
    assert set(Alert.objects.filter(state="firing").values_list("subject", flat=True)) == {"a", "b"}
    rule_advance(rule=rule, readings=both[:1], at=at + timedelta(seconds=90))
    assert Alert.objects.get(subject="b").state == AlertState.RESOLVED
    assert Alert.objects.get(subject="a").state == AlertState.FIRING


def test_no_requests_are_no_late_requests(rule: AlertRule) -> None:
    for seconds in (0, 60):
        look(rule, 0.6, seconds)
    assert look(rule, None, 90) == 1
    assert Alert.objects.get().state == AlertState.RESOLVED


def test_an_older_look_that_comes_late_changes_nothing(rule: AlertRule) -> None:
    for seconds in (0, 60):
        look(rule, 0.6, seconds)
    assert look(rule, 0.1, 59) == 0
    assert look(rule, 0.1, 60) == 0
    assert Alert.objects.get().state == AlertState.FIRING


def test_a_silence_tells_nobody_and_what_still_fires_is_told_after_it(rule: AlertRule) -> None:
    AlertSilence.objects.create(
        rule=rule, starts_at=START, ends_at=START + timedelta(seconds=300), reason="Maintenance"
    )
    for seconds in (0, 60, 299):
        look(rule, 0.6, seconds)
    assert (Alert.objects.get().state, events()) == ("firing", [])
    look(rule, 0.6, 300)
    assert events() == ["fired"]
    look(rule, 0.6, 330)
    assert events() == ["fired"]


def test_what_fired_and_ended_within_a_silence_is_never_told(rule: AlertRule) -> None:
    AlertSilence.objects.create(starts_at=START, ends_at=START + timedelta(seconds=300), reason="Maintenance")
    for seconds, value in ((0, 0.6), (60, 0.6), (120, 0.1)):
        look(rule, value, seconds)
    assert (Alert.objects.get().state, events()) == ("resolved", [])


def test_a_silence_of_another_deployment_or_rule_is_none(rule: AlertRule, deployment: ModelDeployment) -> None:
    other = AlertRule.objects.create(key="other", name="Other", **FIELDS)
    ends = START + timedelta(days=1)
    AlertSilence.objects.create(deployment=deployment, starts_at=START, ends_at=ends, reason="Another deployment")
    AlertSilence.objects.create(rule=other, starts_at=START, ends_at=ends, reason="Another rule")
    for seconds in (0, 60):
        look(rule, 0.6, seconds)
    assert events() == ["fired"]


def test_receivers_of_a_rule_are_told_instead_of_the_default_ones(rule: AlertRule) -> None:
    own = AlertReceiver.objects.create(name="Own")
    rule.receivers.add(own, AlertReceiver.objects.create(name="Off", is_active=False))
    for seconds in (0, 60):
        look(rule, 0.6, seconds)
    rule.receivers.clear()
    look(rule, 0.1, 90)
    told = AlertDelivery.objects.order_by("pk").values_list("receiver__name", "event")
    assert list(told) == [("Own", "fired"), ("Own", "resolved")]


def test_a_rule_that_is_switched_off_or_deleted_ends_what_it_has_open(rule: AlertRule, live_redis: Redis) -> None:
    for seconds in (0, 60):
        look(rule, 0.6, seconds)
    AlertRule.objects.exclude(pk=rule.pk).delete()
    rule.is_active = False
    rule.save()
    assert alerts_evaluate() == 1
    assert events() == ["fired", "resolved"]
    rule.is_active = True
    rule.save()
    for seconds in (120, 180):
        look(rule, 0.6, seconds)
    rule.delete()
    assert alerts_evaluate() == 1
    assert not Alert.objects.filter(resolved_at__isnull=True).exists()


def test_a_rule_that_has_the_key_of_a_deleted_one_begins_anew(
    receiver: AlertReceiver, deployment: ModelDeployment, live_redis: Redis
) -> None:
    """As somebody does who deletes a rule and makes it again; nobody looks in between."""
    AlertRule.objects.all().delete()
    no_worker: dict[str, Any] = {"signal": Signal.FLEET, "figure": "workers_ready", "direction": Direction.BELOW}
    fields = {**no_worker, "threshold": 1, "clear_threshold": 1, "for_seconds": 0}
    for fired in (1, 2):  # the second look ends the first alert, too
        AlertRule.objects.filter(key="gone").delete()
        AlertRule.objects.create(key="gone", name="No worker", **fields)
        AlertRule.objects.get_or_create(key="later", defaults={"name": "Looked at behind it", **fields})
        assert alerts_evaluate() == 2, fired
    assert [alert.state for alert in Alert.objects.filter(rule_key="gone").order_by("since")] == ["resolved", "firing"]
    assert Alert.objects.get(rule_key="later").state == AlertState.FIRING


@pytest.mark.django_db(transaction=True)
def test_of_many_that_look_at_the_same_time_one_fires_and_one_ends_it(rule: AlertRule) -> None:
    """As under several beats and workers: threads with connections of their own."""
    look(rule, 0.6, 0)
    for at, value in ((60, 0.6), (90, 0.1)):
        line = threading.Barrier(4)
        changes: list[int] = []

        def run(at: int = at, value: float = value, line: threading.Barrier = line) -> None:
            line.wait()
            changes.append(look(rule, value, at))  # noqa: B023  # the threads end within this turn
            connections.close_all()

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(changes) == [0, 0, 0, 1]
    assert events() == ["fired", "resolved"]
    assert Alert.objects.count() == 1


class _Killed(BaseException):
    """As good as SIGKILL to the transaction."""


@pytest.mark.django_db(transaction=True)
def test_one_that_dies_before_the_commit_has_done_nothing(rule: AlertRule, monkeypatch: pytest.MonkeyPatch) -> None:
    look(rule, 0.6, 0)
    with monkeypatch.context() as dying:
        dying.setattr("apps.ops.alerts.evaluation._note", lambda *_: (_ for _ in ()).throw(_Killed()))
        with pytest.raises(_Killed):
            look(rule, 0.6, 60)
    assert (Alert.objects.get().state, events()) == ("pending", [])
    assert look(rule, 0.6, 60) == 1
    assert (Alert.objects.get().state, events()) == ("firing", ["fired"])


@pytest.mark.django_db(transaction=True)
def test_while_the_database_is_away_nothing_moves(rule: AlertRule, live_redis: Redis) -> None:
    for seconds in (0, 60):
        look(rule, 0.6, seconds)
    with database_down():
        assert alerts_evaluate() == 0
    assert Alert.objects.get().state == AlertState.FIRING


def test_old_alerts_are_deleted_and_open_ones_kept(rule: AlertRule) -> None:
    for seconds, value in ((0, 0.6), (60, 0.6), (90, 0.1), (120, 0.6), (180, 0.6)):
        look(rule, value, seconds)
    assert alerts_expire(now=START + timedelta(days=90)) == 0
    assert alerts_expire(now=START + timedelta(days=91)) == 1
    assert Alert.objects.get().state == AlertState.FIRING


@given(
    values=st.lists(st.floats(0, 10), min_size=1, max_size=40),
    direction=st.sampled_from(Direction),
    threshold=st.floats(0.5, 5),
    slack=st.floats(0, 2),
)
def test_between_the_thresholds_nothing_changes(
    values: list[float], direction: Direction, threshold: float, slack: float
) -> None:
    clear = threshold - slack if direction is Direction.ABOVE else threshold + slack
    rule = AlertRule(direction=direction, threshold=threshold, clear_threshold=clear)
    fires = False
    for value in values:
        before, fires = fires, (not is_over(rule, value, was_firing=True)) if fires else is_bad(rule, value)
        if before != fires:
            assert is_bad(rule, value) == fires
        if min(threshold, clear) < value < max(threshold, clear):
            assert before == fires or slack == 0


def test_the_rules_that_are_stored_first_are_those_of_the_code(db: None) -> None:
    AlertRule.objects.all().delete()
    for migration in ("0009_alert_rules", "0018_healing_rules"):
        import_module(f"apps.ops.migrations.{migration}").seed(apps, connection.schema_editor())
    for built_in in BUILT_IN_RULES:
        stored = AlertRule.objects.get(key=built_in.key)
        stored.full_clean()
        for name in (
            "name",
            "advice",
            "signal",
            "threshold",
            "clear_threshold",
            "for_seconds",
            "severity",
            "direction",
        ):
            assert getattr(stored, name) == getattr(built_in, name), (built_in.key, name)
        for name in ("window_seconds", "short_window_seconds", "percentile"):
            assert getattr(stored, name) == getattr(built_in, name), (built_in.key, name)
        for name in ("duration", "happening", "figure"):
            assert (getattr(stored, name) or None) == getattr(built_in, name), (built_in.key, name)
    assert AlertRule.objects.count() == len(BUILT_IN_RULES)
    assert AlertReceiver.objects.filter(is_default=True).exists()
