"""The diagnosis as operators see it: from what gateways filed and the fleet was, as a page and as JSON."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from redis import Redis

from apps.deployments.models import ModelDeployment, Worker
from apps.ops.enums import FleetSpan
from apps.ops.models import FleetSample, LatencyHour, LatencyMark
from headrace_wire.latency.measures import Measure, Tally
from headrace_wire.latency.summary import SeriesKey, Summary
from tests.support.latencies import latencies_file, summary_of

pytestmark = pytest.mark.django_db

PAGE = reverse("admin:ops_diagnosis")
FINDINGS = reverse("admin:ops_diagnosis_findings")


def summary(*, queue: float = 0.0, guard: float = 0.0) -> Summary:
    made = summary_of(0.1, requests=50)
    for measure, seconds in ((Measure.QUEUE, queue), (Measure.GUARD, guard)):
        if seconds:
            del made.histograms[measure]
            made.histogram(measure).add(seconds, 50)
    del made.histograms[Measure.TTFT]
    made.histogram(Measure.TTFT).add(0.1 + queue + guard, 50)
    made.count(Tally.PROMPT_TOKENS, 1000)
    return made


@pytest.fixture
def guarded(deployment: ModelDeployment, live_redis: Redis) -> None:
    """An hour in which guardrails became slow after an hour in which they were not."""
    now = timezone.now()
    for minutes in range(5, 120, 10):
        made = summary(guard=0.8 if minutes < 60 else 0.0)
        latencies_file(f"g-{minutes}", now - timedelta(minutes=minutes), {SeriesKey("tiny", "t", "k", "w"): made})


def findings(client: Client, **asked: str) -> Any:
    answer = client.get(FINDINGS, asked)
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    return answer.json()


def test_it_names_the_phase_the_cause_and_what_helps(guarded: None, admin_client: Client) -> None:
    answer = findings(admin_client, range="1h")
    (told,) = answer["diagnoses"]
    (finding,) = told["findings"]
    assert finding["cause"] == "guard"
    assert finding["share"] > 0.9
    assert "GUARD" in finding["evidence"][0].upper()
    assert {goal["is_met"] for goal in told["goals"]} == {False, True}, "200 and 500 ms were missed, 2 s was not"
    for said in (
        'data-summary="tiny"',
        "TTFT p95 ",
        "&gt; 500 ms",
        "Guard moved most.",
        "Guardrails",
        finding["action"],
    ):
        assert said in answer["summary"]
    page = admin_client.get(PAGE, {"range": "1h"}).content.decode()
    assert 'data-cause="guard"' in page
    assert finding["action"] in page


def test_nothing_that_became_slower_is_said_so(guarded: None, admin_client: Client) -> None:
    (told,) = findings(admin_client, range="15m", deployment="tiny")["diagnoses"]
    assert told["findings"] == []
    assert told["requests"] > 0
    answer = findings(admin_client, range="15m")
    assert "It is as slow as it was" in answer["html"]
    assert "&gt; 500 ms" in answer["summary"]
    assert "No cause has evidence" in answer["summary"]


def test_without_requests_nothing_was_met_or_compared(
    deployment: ModelDeployment, live_redis: Redis, admin_client: Client
) -> None:
    assert "No requests in this time." in findings(admin_client, range="15m")["html"]
    slow = {SeriesKey("tiny", "t", "k", "w"): summary(guard=0.8)}
    latencies_file("g", timezone.now() - timedelta(minutes=5), slow)
    (told, before) = (findings(admin_client, range="15m", **asked)["html"] for asked in ({}, {"compare": "day"}))
    for html in (told, before):
        assert "choose another one" in html
        assert "&gt; 500 ms" in html
    empty = findings(admin_client, range="15m", end=(timezone.now() - timedelta(hours=3)).isoformat())
    assert "≤ 500 ms" not in empty["html"]
    assert empty["summary"].strip() == ""


def test_the_fleet_is_read_beside_the_latencies(
    deployment: ModelDeployment, live_redis: Redis, admin_client: Client
) -> None:
    """Rows of samples and of workers, for a time that is past."""
    end = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
    Worker.objects.create(
        incarnation="w", deployment_name="tiny", engine="simulated", state="ready", host="here", pid=1,
        max_num_seqs=8, started_at=end - timedelta(days=30), last_seen_at=end,
    )  # fmt: skip
    for hours in range(1, 14 * 24, 4):
        is_busy = hours <= 7 * 24
        at = end - timedelta(hours=hours)
        made = summary(queue=2.0 if is_busy else 0.0)
        LatencyHour.objects.create(at=at, level="deployment", deployment="tiny", packed=made.pack())
        FleetSample.objects.create(
            span=FleetSpan.HOUR, at=at, deployment="tiny", workers=1, running=8 if is_busy else 2,
            waiting=12 if is_busy else 0, waiting_most=30 if is_busy else 0,
        )  # fmt: skip
    for tier in ("minute", "ten_minutes", "hour"):
        LatencyMark.objects.create(tier=tier, until=end)
    asked = {"range": "7d", "deployment": "tiny", "end": end.isoformat()}
    (told,) = findings(admin_client, **asked)["diagnoses"]
    assert [finding["cause"] for finding in told["findings"]] == ["capacity"]
    assert "8 of 8 places were taken, 12 streams waited" in told["findings"][0]["evidence"][1]


def test_nonsense_is_refused_with_a_reason(admin_client: Client, live_redis: Redis) -> None:
    answer = admin_client.get(FINDINGS, {"range": "a while"})
    assert answer.status_code == 400
    assert "range" in answer.json()["problem"]


def test_a_store_that_is_away_is_said_so(admin_client: Client, deployment: ModelDeployment, settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert admin_client.get(FINDINGS).status_code == 503
    assert "cannot be read" in admin_client.get(PAGE).content.decode()


def test_the_latency_page_has_the_panel(admin_client: Client, live_redis: Redis) -> None:
    page = admin_client.get(reverse("admin:ops_latencyhour_changelist")).content.decode()
    assert f'data-url="{FINDINGS}"' in page
    assert 'id="diagnosis-summary"' in page
