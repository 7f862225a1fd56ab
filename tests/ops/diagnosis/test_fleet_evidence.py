"""Evidence of the fleet, from registrations through samples and rows to findings."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from redis import Redis

from apps.deployments.models import ModelDeployment, Worker
from apps.ops.diagnosis.causes import Cause
from apps.ops.diagnosis.diagnose import diagnose
from apps.ops.diagnosis.reading import observation_of
from apps.ops.latency.fleet_rows import fleet_roll_up
from apps.ops.latency.samples import fleet_sample_take
from apps.ops.latency.scopes import TimeRange, floor_to
from headrace_wire.fleet import GpuReading
from headrace_wire.latency.measures import Measure
from tests.ops.diagnosis.test_diagnose import FLEET, causes, observe
from tests.ops.latency.test_fleet import register

MINUTE = timedelta(minutes=1)
NOON = floor_to(datetime.now(UTC), timedelta(hours=1))
SLOW = {Measure.TPOT: 0.03}


@pytest.mark.django_db
@pytest.mark.parametrize("is_rolled_up", [False, True])
def test_preemptions_and_gpu_memory_are_read_for_the_diagnosis(
    live_redis: Redis, deployment: ModelDeployment, is_rolled_up: bool
) -> None:
    """Ten minutes of three preemptions each, after five of none; the GPU fills with the ninth."""
    preemptions = 0
    for minute in range(16):
        preemptions += 3 if minute >= 6 else 0
        gpu = GpuReading(memory_bytes=95 if minute >= 9 else 50, memory_total_bytes=100)
        register(live_redis, "w1", preemptions=preemptions, gpu=gpu)
        fleet_sample_take(now=NOON + minute * MINUTE)
    if is_rolled_up:
        assert fleet_roll_up(now=NOON + 16 * MINUTE)
    before = observation_of("tiny", TimeRange(NOON, NOON + 5 * MINUTE, MINUTE)).fleet
    now = observation_of("tiny", TimeRange(NOON + 6 * MINUTE, NOON + 16 * MINUTE, MINUTE)).fleet
    assert [before.preemptions, now.preemptions] == pytest.approx([0, 30])
    assert (before.gpu_memory_usage, now.gpu_memory_usage) == (0.5, 0.95)


@pytest.mark.django_db
def test_a_fleet_that_tells_of_no_preemptions_has_an_unknown_number(
    live_redis: Redis, deployment: ModelDeployment
) -> None:
    fleet_sample_take(now=NOON)
    fleet = observation_of("tiny", TimeRange(NOON, NOON + 5 * MINUTE, MINUTE)).fleet
    assert (fleet.preemptions, fleet.gpu_memory_usage) == (None, None)
    assert not Worker.objects.exists()


def test_preemptions_alone_are_contention() -> None:
    (finding,) = diagnose(observe(plus=SLOW, fleet=replace(FLEET, preemptions=30.0)), observe(seed=2))
    assert finding.cause is Cause.CONTENTION
    assert "Preemptions 0 → 30." in finding.evidence
    often = replace(FLEET, preemptions=30.0)
    assert diagnose(observe(plus=SLOW, fleet=often), observe(seed=2, fleet=often)) == [], "there were as many before"
    assert diagnose(observe(plus=SLOW, fleet=replace(FLEET, preemptions=None)), observe(seed=2)) == []


def test_a_gpu_that_has_filled_is_full_memory_and_names_models_that_nobody_asks_for() -> None:
    usual = replace(FLEET, gpu_memory_usage=0.6)
    full = replace(FLEET, gpu_memory_usage=0.97)
    (finding,) = diagnose(observe(plus=SLOW, fleet=full), observe(seed=2, fleet=usual))
    assert finding.cause is Cause.MEMORY_FULL
    assert "GPU memory in use 60% → 97%." in finding.evidence
    unused = replace(full, unused_models=("old",))
    found = diagnose(observe(plus=SLOW, fleet=unused), observe(seed=2, fleet=usual))
    assert set(causes(found)) == {Cause.MEMORY_FULL, Cause.MODEL_NOT_UNLOADED}


def test_a_gpu_that_is_full_by_design_explains_nothing() -> None:
    full = replace(FLEET, gpu_memory_usage=0.97, unused_models=("old",))
    assert diagnose(observe(plus=SLOW, fleet=full), observe(seed=2, fleet=full)) == []
    assert diagnose(observe(plus=SLOW, fleet=full), observe(seed=2)) == [], "before it was not known"
