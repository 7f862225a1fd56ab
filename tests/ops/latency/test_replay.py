"""What clients noted of a quiet load, played to the book again: the page has the percentiles of the very same times.

`recorded_answers.json` has when each text came, by the kernel's clock, to eight clients of the simulated engine: four
over each transport, two answers of 40 tokens each, 20 tokens per second (`tests.load.latency_case.seen_answers`).
"""

import asyncio
import heapq
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings
from redis import Redis

from apps.ops.latency.presentation import numbers_json
from apps.ops.latency.roll_up import latency_roll_up
from apps.ops.latency.scopes import LatencyScope, TimeRange
from apps.ops.latency.selectors import latency_series
from apps.streams.latency_book import LatencyBook
from apps.streams.latency_reading import LatencyReading, Part
from headrace_wire.functions import Functions
from headrace_wire.latency.measures import Measure
from headrace_wire.latency.store import SLOT_SECONDS, slot_of
from headrace_wire.latency.summary import SeriesKey
from headrace_wire.messages import Ended, FinishReason, StreamState, Timings, Usage
from headrace_wire.redis_client import connect
from tests.load.clients import SeenAnswer
from tests.load.measurements import percentile

pytestmark = pytest.mark.django_db

KEY = SeriesKey("paced", "a" * 32, "b" * 32)
SHARES = (0.5, 0.9, 0.95, 0.99)
ERROR = 0.02
LEFT_OF_MINUTE = 2
"""Seconds, when the replay begins."""
ENDED = Ended(
    "s", 1, 40, StreamState.FINISHED, FinishReason.LENGTH, None, Usage(7, 40, 0), Timings(0.0, 0.1, 2.0, 0.0), None
)


@pytest.fixture(scope="module")
def recorded() -> list[SeenAnswer]:
    rows = json.loads((Path(__file__).parent / "recorded_answers.json").read_bytes())
    return [SeenAnswer(**row) for row in rows]


@pytest.fixture
def redis(live_redis: Redis, settings: Settings) -> str:
    assert live_redis.ping()
    return str(settings.REDIS_URL)


@dataclass
class Clock:
    """Both clocks of a gateway."""

    started_at: datetime
    now: float = 0.0
    """By the monotonic one."""

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.started_at.timestamp() + self.now


def steps(answer: SeenAnswer, book: LatencyBook) -> Iterator[tuple[float, Callable[[], None]]]:
    """Yields what the edge does for an answer, and when."""
    reading = LatencyReading(book, KEY, Part.OWN, arrived_at=answer.asked_at, admitted_at=answer.asked_at)
    (first_at, first), *rest = zip(answer.arrivals, answer.tokens, strict=True)
    yield first_at, lambda: reading.first_text(first)
    for at, tokens in rest:
        yield at, lambda tokens=tokens, at=at: reading.text(tokens, at)  # type: ignore[misc]
    yield answer.ended_at, lambda: reading.close(ENDED, 0)


async def replay(answers: list[SeenAnswer], clock: Clock, redis_url: str) -> None:
    redis = connect(redis_url)
    book = LatencyBook(Functions(redis), clock=clock.time)
    slot = slot_of(clock.time())
    for at, step in heapq.merge(*(steps(answer, book) for answer in answers), key=lambda each: each[0]):
        clock.now = at
        if slot_of(clock.time()) != slot:
            slot = slot_of(clock.time())
            book.seal()
        step()
    await book.finish()
    await redis.aclose()


def shown(time_range: TimeRange, now: datetime) -> dict[str, Any]:
    """Returns the figures above the page's charts."""
    points = latency_series(LatencyScope(deployment=KEY.deployment), time_range)
    totals: dict[str, Any] = numbers_json(time_range, points, None, now=now)["totals"]
    return totals


@pytest.mark.parametrize("stored", [False, True], ids=["from Redis", "from rows"])
def test_the_page_shows_the_percentiles_of_what_clients_noted(
    recorded: list[SeenAnswer], redis: str, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    now = timezone.now()
    before = now - timedelta(minutes=10)
    # So that a slot, and a minute, ends while answers are on their way.
    began_at = before.replace(second=0, microsecond=0) + timedelta(seconds=60 - LEFT_OF_MINUTE)
    clock = Clock(began_at)
    monkeypatch.setattr("apps.streams.latency_reading.perf_counter", clock.monotonic)
    latency_roll_up(now=now - timedelta(minutes=30))
    asyncio.run(replay(recorded, clock, redis))
    if stored:
        latency_roll_up(now=now)
    time_range = TimeRange.of(now - timedelta(minutes=60 if stored else 15), now, now=now)
    assert time_range.step == timedelta(seconds=60 if stored else SLOT_SECONDS)
    totals = shown(time_range, now)
    assert totals["count.requests"] == len(recorded)
    clients = {
        Measure.TTFT: [answer.ttft_seconds for answer in recorded],
        Measure.GAP: [gap for answer in recorded for gap in answer.gaps(0, float("inf"))],
        Measure.TOTAL: [answer.ended_at - answer.asked_at for answer in recorded],
    }
    for measure, durations in clients.items():
        for share in SHARES:
            told = totals[f"{measure}.p{share * 100:g}"]
            assert told == pytest.approx(percentile(durations, share), rel=ERROR), (measure, share)


def test_what_was_recorded_lies_in_two_minutes(recorded: list[SeenAnswer]) -> None:
    """Else nothing shows that a slot's end, and a minute's, lose and double nothing."""
    at = [arrival for answer in recorded for arrival in answer.arrivals]
    assert min(at) < LEFT_OF_MINUTE < max(at)
