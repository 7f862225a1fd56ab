"""Replays of recorded samples, as a function."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from apps.deployments.autoscale.replay import replay
from apps.deployments.autoscale.terms import PolicyTerms, Rule, Sample

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def recorded(minutes: int, per_second: float, *, begin: datetime = NOON, workers: int = 1) -> list[Sample]:
    """A worker serves 1 request/s in 10 places."""
    return [
        Sample(
            at=begin + timedelta(seconds=15 * tick),
            workers=workers,
            ready=workers,
            running=min(10 * workers, round(10 * per_second)),
            places=10 * workers,
            requests_per_second=per_second,
            worker_capacity=1.0,
        )
        for tick in range(minutes * 4)
    ]


def test_a_policy_that_fits_the_load_changes_nothing() -> None:
    result = replay(PolicyTerms(), recorded(60, 0.5))
    assert result.changes == []
    assert result.worker_hours == result.recorded_hours == pytest.approx(1.0, abs=0.01)
    assert result.longest_wait == 0


def test_what_more_workers_would_have_saved_in_waits() -> None:
    load = recorded(30, 2.0)
    none = replay(PolicyTerms(max_workers=1), load)
    assert none.longest_wait == pytest.approx(30 * 60, rel=0.05), "1 request/s too much for half an hour"
    out = replay(PolicyTerms(), load)
    assert [(before, one.target, one.rule) for _, before, one in out.changes][:1] == [(1, 3, Rule.SCALE_OUT)]
    at = out.changes[0][0]
    assert at - NOON <= timedelta(minutes=5)
    worst = max(out.points, key=lambda point: point.wait_seconds)
    assert worst.at <= at + timedelta(minutes=2), "as long as the new ones take"
    assert out.longest_wait < none.longest_wait / 3
    assert out.points[-1].wait_seconds == 0
    assert out.worker_hours > out.recorded_hours


def test_fewer_workers_are_hours_saved() -> None:
    night = recorded(180, 0.1, workers=4)
    result = replay(PolicyTerms(cooldown_seconds=0), night)
    assert [one.target for _, _, one in result.changes] == [3, 2, 1]
    assert result.worker_hours < result.recorded_hours


def test_time_without_samples_counts_for_nothing() -> None:
    late = NOON + timedelta(hours=5)
    result = replay(PolicyTerms(), [*recorded(10, 0.5), *recorded(10, 0.5, begin=late)])
    assert result.recorded_hours == pytest.approx(20 / 60, abs=0.02)


def test_samples_without_capacity_or_workers_are_taken_as_they_are() -> None:
    asleep = [replace(one, workers=0, ready=0, running=0, places=0, worker_capacity=None) for one in recorded(30, 0.0)]
    asleep[60] = replace(asleep[60], waiting=1)
    result = replay(PolicyTerms(min_workers=0), asleep)
    assert [(before, one.target, one.rule) for _, before, one in result.changes][:1] == [(0, 1, Rule.WAKE_UP)]
    assert replay(PolicyTerms(), []).points == []
