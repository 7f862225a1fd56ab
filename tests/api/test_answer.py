"""What a reader was given, and when: by one clock, looked at once for each text."""

import time

import pytest

from apps.api import answer as answer_module
from apps.api.answer import Answer
from apps.streams.latency_book import LatencyBook
from apps.streams.latency_reading import LatencyReading, Part
from headrace_wire.functions import Functions
from headrace_wire.latency.summary import SeriesKey
from headrace_wire.messages import Delta
from headrace_wire.redis_client import connect

KEY = SeriesKey("sim", "t", "")


class Clock:
    """Both clocks, which say the same; each look moves them a second."""

    def __init__(self) -> None:
        self.looks = 0

    def perf_counter(self) -> float:
        self.looks += 1
        return float(self.looks)

    monotonic = perf_counter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(answer_module, "time", clock)
    return clock


def test_both_clocks_are_one() -> None:
    clocks = [time.get_clock_info(name) for name in ("perf_counter", "monotonic")]
    assert clocks[0] == clocks[1]
    before, between, after = time.perf_counter(), time.monotonic(), time.perf_counter()
    assert before <= between <= after


async def test_a_text_costs_one_look_and_gaps_are_from_write_to_write(clock: Clock, redis_url: str) -> None:
    redis = connect(redis_url)
    book = LatencyBook(Functions(redis))
    reading = LatencyReading(book, KEY, Part.OWN, arrived_at=0.0, admitted_at=0.0)
    answer = Answer("sim", "sse", 0.0, reading)
    for seq in (1, 2, 3):
        answer.take([Delta("s", 1, seq, 1, "a")])
        answer.writes()
        answer.sent_text()
    assert clock.looks == 3
    answer.take_live(1, clock.monotonic())
    answer.take([Delta("s", 1, 5, 1, "a")])
    answer.sent_text()  # a plain answer, which is written later
    assert clock.looks == 5
    assert answer.ttft_seconds == 1.0
    gaps, _ = book.counter(KEY).take()
    assert (gaps.sum_seconds, sum(gaps.counts.values())) == (4.0, 4)
    answer.close(client_timed_out=False)
    await redis.aclose()
