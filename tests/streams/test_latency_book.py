"""The latency book: what is counted, in which slot, and that Redis gets it once."""

import asyncio
import time
import tracemalloc
from collections.abc import Sequence

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from apps.api.answer import Answer
from apps.streams.gateway import Gateway
from apps.streams.latency_book import MOST_WAITING, Began, LatencyBook, TokenCounter
from apps.streams.latency_reading import LatencyReading, Part, reading_of_resumed, refusals_counted
from apps.streams.services.response_caching import CACHE_OWNER
from headrace_wire.errors import DeadlineExceededError, DrainingError, HeadraceError, RateLimitError, ServerError
from headrace_wire.functions import Call, Functions, Reply
from headrace_wire.latency.measures import PHASES, Measure, Tally
from headrace_wire.latency.store import SLOT_SECONDS, series_read, slot_of, window
from headrace_wire.latency.summary import SeriesKey, Summary
from headrace_wire.messages import Ended, FinishReason, Started, StreamError, StreamState, Timings, Usage
from tests.support.processes import PATIENCE_SECONDS

KEY = SeriesKey("sim", "a" * 32, "b" * 32)
OWNED = KEY._replace(worker="worker-1")


class Clock:
    def __init__(self) -> None:
        self.now = float(slot_of(time.time()))

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(gateway: Gateway, clock: Clock) -> LatencyBook:
    return LatencyBook(gateway.functions, clock=clock)


@pytest.fixture
def redis(gateway: Gateway, redis_url: str) -> "Redis":
    return Redis.from_url(redis_url)


def read_all(redis: "Redis") -> dict[SeriesKey, Summary]:
    found: dict[SeriesKey, Summary] = {}
    for part in series_read(redis, start=0, end=2**40):
        found.setdefault(part.key, Summary()).merge_packed(part.packed)
    return found


def started(owner: str = "worker-1", *, attempt: int = 1, queue_time: float = 0.2) -> Started:
    return Started("s", 1, 0, owner, attempt, queue_time)


def ended(state: StreamState = StreamState.FINISHED, *, code: str = "", timings: Timings | None = None) -> Ended:
    reason = FinishReason.ERROR if code else FinishReason.STOP
    usage = Usage(prompt_tokens=7, completion_tokens=11, cached_tokens=3)
    error = StreamError(code, "said") if code else None
    return Ended("s", 1, 12, state, reason, None, usage, timings or Timings(0.2, 0.3, 2.0, 0.1), error)


def reading(book: LatencyBook, part: Part = Part.OWN, *, arrived_ago: float = 1.0) -> LatencyReading:
    """Return one that arrived a while ago and was admitted 0.1 s later."""
    arrived_at = time.perf_counter() - arrived_ago
    return LatencyReading(book, KEY, part, arrived_at=arrived_at, admitted_at=arrived_at + 0.1)


def one_stream(book: LatencyBook, part: Part, begun: Started, end: Ended | None) -> None:
    stream = reading(book, part)
    stream.started(begun)
    stream.first_text(1)
    stream.text(3, time.monotonic())
    stream.close(end, 1)


async def filed(book: LatencyBook, redis: "Redis") -> dict[SeriesKey, Summary]:
    book.seal()
    await book.file()
    return read_all(redis)


def sums(summary: Summary, measures: Sequence[Measure]) -> list[float]:
    return [summary.histogram(measure).sum_seconds for measure in measures]


async def test_a_stream_counts_once_and_its_phases_are_its_first_token(book: LatencyBook, redis: "Redis") -> None:
    one_stream(book, Part.OWN, started(), ended())
    found = await filed(book, redis)
    assert set(found) == {OWNED}
    summary = found[OWNED]
    counts = {measure: histogram.count for measure, histogram in summary.histograms.items()}
    assert counts == dict.fromkeys(set(Measure) - {Measure.RETRIEVAL}, 1)
    assert sums(summary, PHASES[:5]) == pytest.approx([0.1, 0.2, 0.0, 0.3, 0.1])
    ttft = summary.histograms[Measure.TTFT].sum_seconds
    assert ttft == pytest.approx(sum(sums(summary, PHASES)))
    assert 1.0 <= ttft <= summary.histograms[Measure.TOTAL].sum_seconds
    assert summary.histograms[Measure.TPOT].sum_seconds == pytest.approx(0.2)
    assert summary.tallies == {
        Tally.REQUESTS: 1,
        Tally.TOKENS: 5,
        Tally.PROMPT_TOKENS: 7,
        Tally.CACHED_TOKENS: 3,
    }


async def test_durations_end_with_the_write_and_not_behind_it(book: LatencyBook, redis: "Redis") -> None:
    stream = reading(book)
    stream.started(started())
    stream.first_text(1, stream.arrived_at + 0.4)
    stream.text(1, time.monotonic() - 0.1)
    stream.close(ended(), 0, stream.arrived_at + 0.95)
    summary = (await filed(book, redis))[OWNED]
    ttft, total, gap = sums(summary, (Measure.TTFT, Measure.TOTAL, Measure.GAP))
    assert (ttft, total) == pytest.approx((0.4, 0.95))
    assert gap >= 0.499, "0.6 s since, but for 0.1"


@pytest.mark.parametrize(
    ("begun", "end"),
    [(started(), None), (started(attempt=2), ended()), (started(), ended(timings=Timings(0.2)))],
    ids=["left", "of another worker", "untimed"],
)
async def test_where_the_workers_times_are_not_known_the_rest_is_prefill(
    book: LatencyBook, redis: "Redis", begun: Started, end: Ended | None
) -> None:
    one_stream(book, Part.OWN, begun, end)
    summary = (await filed(book, redis))[OWNED]
    assert summary.histograms[Measure.PREFILL].count == 1
    assert not {Measure.GUARD, Measure.FLUSH} & set(summary.histograms)
    assert summary.histograms[Measure.TTFT].sum_seconds == pytest.approx(sum(sums(summary, PHASES)))


async def test_a_client_is_told_the_first_text_that_the_book_has(book: LatencyBook) -> None:
    arrived_at = time.perf_counter() - 1.0
    answer = Answer("sim", "http", arrived_at, LatencyReading(book, KEY, Part.OWN, arrived_at=arrived_at))
    answer.sent_text()
    answer.close(client_timed_out=False)
    assert answer.ttft_seconds == book.summary(KEY).histograms[Measure.TTFT].sum_seconds


async def test_phases_never_exceed_the_first_token_whatever_clocks_say(book: LatencyBook, redis: "Redis") -> None:
    one_stream(book, Part.OWN, started(queue_time=0.5), ended(timings=Timings(0.5, 3.0, 2.0, 3.0)))
    summary = (await filed(book, redis))[OWNED]
    assert summary.histograms[Measure.TTFT].sum_seconds == pytest.approx(sum(sums(summary, PHASES)))
    assert sums(summary, (Measure.GUARD, Measure.FLUSH)) == [0.0, 0.0]


async def test_a_kept_answer_is_nobodys_work(book: LatencyBook, redis: "Redis") -> None:
    stream = reading(book, Part.KEPT)
    stream.started(started(CACHE_OWNER, queue_time=0.0))
    stream.first_text(11)
    stream.close(ended(), 0)
    summary = (await filed(book, redis))[KEY]
    assert set(summary.histograms) == {Measure.TTFT, Measure.ADMISSION, Measure.TOTAL}
    assert sums(summary, [Measure.ADMISSION]) == sums(summary, [Measure.TTFT])
    assert summary.tallies == {Tally.REQUESTS: 1, Tally.TOKENS: 11}


async def test_a_shared_stream_is_computed_once(book: LatencyBook, redis: "Redis") -> None:
    one_stream(book, Part.SHARED, started(), ended())
    summary = (await filed(book, redis))[OWNED]
    assert set(summary.histograms) == {Measure.TTFT, Measure.ADMISSION, Measure.FLUSH, Measure.GAP, Measure.TOTAL}
    assert summary.histograms[Measure.TTFT].sum_seconds == pytest.approx(sum(sums(summary, PHASES)))
    assert summary.tallies == {Tally.REQUESTS: 1, Tally.TOKENS: 5}


async def test_who_comes_back_adds_no_request(book: LatencyBook, redis: "Redis") -> None:
    one_stream(book, Part.RETURNING, started(), ended())
    summary = (await filed(book, redis))[OWNED]
    assert set(summary.histograms) == {Measure.GAP}
    assert summary.tallies == {Tally.TOKENS: 5}


@pytest.mark.parametrize(
    ("end", "tallies"),
    [
        (ended(StreamState.CANCELLED), {}),
        (ended(StreamState.FAILED, code="engine_error"), {Tally.ERRORS: 1}),
        (ended(StreamState.FAILED, code=DeadlineExceededError.code), {Tally.ERRORS: 1, Tally.TIMEOUTS: 1}),
    ],
    ids=["cancelled", "failed", "too late"],
)
async def test_an_answer_without_a_good_end_has_no_total(
    book: LatencyBook, redis: "Redis", end: Ended, tallies: dict[Tally, int]
) -> None:
    one_stream(book, Part.OWN, started(), end)
    summary = (await filed(book, redis))[OWNED]
    assert Measure.TOTAL not in summary.histograms
    assert (Measure.TPOT in summary.histograms) == (end.state is StreamState.CANCELLED)
    told = {name: summary.tally(name) for name in (Tally.ERRORS, Tally.TIMEOUTS) if summary.tally(name)}
    assert told == tallies
    assert summary.tally(Tally.REQUESTS) == 1


@pytest.mark.parametrize(
    ("error", "counted"),
    [(ServerError("no"), True), (RateLimitError("slower"), False), (DrainingError("elsewhere"), False)],
    ids=str,
)
async def test_a_request_that_is_not_begun_counts_where_the_server_is_to_blame(
    book: LatencyBook, redis: "Redis", error: HeadraceError, counted: bool
) -> None:
    with pytest.raises(type(error)), refusals_counted(book, KEY):
        raise error
    found = await filed(book, redis)
    assert {key: summary.tallies for key, summary in found.items()} == (
        {KEY: {Tally.REQUESTS: 1, Tally.ERRORS: 1}} if counted else {}
    )


async def test_slow_clients_are_counted(book: LatencyBook, redis: "Redis") -> None:
    stream = reading(book)
    stream.stalled()
    stream.stalled()
    stream.timed_out()
    stream.timed_out()
    stream.close(None, 0)
    assert (await filed(book, redis))[KEY].tallies == {Tally.STALLS: 2, Tally.TIMEOUTS: 1, Tally.REQUESTS: 1}


async def test_tokens_and_gaps_count_in_the_slot_and_for_the_worker_of_their_time(
    book: LatencyBook, redis: "Redis", clock: Clock
) -> None:
    stream = reading(book)
    stream.started(started())
    stream.first_text(1)
    stream.text(1, time.monotonic())
    first = slot_of(clock.now)
    clock.now += SLOT_SECONDS
    book.seal()
    stream.text(1, time.monotonic())
    stream.started(started("worker-2", attempt=2))
    stream.text(4, time.monotonic())
    stream.close(ended(), 0)
    await filed(book, redis)
    tokens = [
        (part.slot - first, part.key.worker, Summary.unpack(part.packed).tally(Tally.TOKENS))
        for part in series_read(redis, start=0, end=2**40)
    ]
    assert sorted(tokens) == [(0, "worker-1", 2), (SLOT_SECONDS, "worker-1", 1), (SLOT_SECONDS, "worker-2", 4)]


async def test_the_page_of_the_chat_is_who_asked(book: LatencyBook, redis: "Redis") -> None:
    now = time.perf_counter()
    book.begin("mine", Began(KEY, now - 1.0, now - 0.9))
    book.begin("nobodys", Began(KEY, now - 100.0, now - 99.0))
    for _ in range(2):
        stream, _trace = reading_of_resumed(book, KEY, "mine", arrived_at=now)
        stream.started(started())
        stream.first_text(1)
        stream.close(ended(), 0)
    found = await filed(book, redis)
    assert found[OWNED].tally(Tally.REQUESTS) == 1, "the second tab only looks on"
    assert found[OWNED].histograms[Measure.TTFT].sum_seconds > 1.0
    assert found[KEY].tallies == {Tally.REQUESTS: 1}, "the one that nobody came for"


async def test_a_kept_answer_that_the_page_of_the_chat_reads_is_no_workers(gateway: Gateway, redis: "Redis") -> None:
    told: list[str] = []
    book = LatencyBook(gateway.functions, ended=lambda deployment, _ended: told.append(deployment))
    now = time.perf_counter()
    book.begin("mine", Began(KEY, now - 1.0, now - 0.9, is_kept=True))
    stream, _trace = reading_of_resumed(book, KEY, "mine", arrived_at=now)
    stream.started(started(CACHE_OWNER))
    stream.first_text(1)
    stream.close(ended(), 0)
    found = await filed(book, redis)
    assert set(found) == {KEY}
    assert set(found[KEY].histograms) == {Measure.TTFT, Measure.ADMISSION, Measure.TOTAL}
    assert found[KEY].tallies == {Tally.REQUESTS: 1, Tally.TOKENS: 1}
    assert told == [], "nothing was tried"


class Unreachable(Functions):
    """Functions of a Redis that goes away: it gets calls, or it does not, and answers none while `is_away`."""

    def __init__(self, functions: Functions, *, gets: bool) -> None:
        self._inner, self._gets, self.is_away = functions, gets, True

    async def call_many(self, calls: Sequence[Call]) -> list[Reply]:
        replies = await self._inner.call_many(calls) if self._gets or not self.is_away else []
        if self.is_away:
            raise RedisConnectionError("gone")
        return replies


@pytest.mark.parametrize("gets", [False, True], ids=["lost before Redis", "lost after Redis"])
async def test_what_could_not_be_filed_is_filed_later_in_its_slot_and_once(
    gateway: Gateway, clock: Clock, redis: "Redis", gets: bool
) -> None:
    functions = Unreachable(gateway.functions, gets=gets)
    book, first = LatencyBook(functions, clock=clock), slot_of(clock.now)
    for _ in range(2):
        one_stream(book, Part.OWN, started(), ended())
        clock.now += SLOT_SECONDS
        book.seal()
        with pytest.raises(RedisConnectionError):
            await book.file()
    functions.is_away = False
    book.seal()
    await book.file()
    await book.file()
    slots = [part.slot for part in series_read(redis, start=0, end=2**40)]
    assert slots == [first, first + SLOT_SECONDS]
    assert window(redis, deployment="sim", seconds=100, now=clock.now).tally(Tally.REQUESTS) == 2


async def test_a_redis_that_hangs_is_not_waited_for(
    gateway: Gateway, clock: Clock, redis: "Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    book = LatencyBook(gateway.functions, clock=clock)
    one_stream(book, Part.OWN, started(), ended())
    book.seal()
    await gateway.redis.client_pause(60_000, all=False)  # writes hang until it is unpaused
    try:
        with monkeypatch.context() as impatient:
            impatient.setattr("apps.streams.latency_book.FILE_SECONDS", 0.2)
            with pytest.raises(TimeoutError):
                await book.file()
    finally:
        await gateway.redis.client_unpause()
    assert (await filed(book, redis))[OWNED].tally(Tally.REQUESTS) == 1


async def test_what_waits_is_bounded(gateway: Gateway, clock: Clock) -> None:
    book = LatencyBook(Unreachable(gateway.functions, gets=False), clock=clock)
    for _ in range(MOST_WAITING + 5):
        one_stream(book, Part.OWN, started(), ended())
        book.seal()
        clock.now += SLOT_SECONDS
        with pytest.raises(RedisConnectionError):
            await book.file()
    assert len(book._waiting) == MOST_WAITING


async def test_more_series_than_fit_in_a_call_are_all_filed(book: LatencyBook, redis: "Redis") -> None:
    keys = [SeriesKey(f"d{number % 3}", f"{number:032x}") for number in range(700)]
    for key in keys:
        book.summary(key).count(Tally.REQUESTS)
    assert set(await filed(book, redis)) == set(keys)


async def test_it_files_by_itself_and_when_the_gateway_stops(gateway: Gateway, redis: "Redis") -> None:
    now = time.time()
    book = LatencyBook(gateway.functions, clock=lambda: now + (time.time() - now) * 200)  # slots of 50 ms
    running = asyncio.create_task(book.run())
    book.summary(KEY).count(Tally.REQUESTS)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while KEY not in read_all(redis):  # noqa: ASYNC110  # Redis tells nobody
            await asyncio.sleep(0.02)
    running.cancel()
    gateway.latencies.summary(OWNED).count(Tally.REQUESTS)
    await gateway.stop()
    assert set(read_all(redis)) == {KEY, OWNED}


def test_a_token_allocates_nothing() -> None:
    counter = TokenCounter()
    gaps = [0.0, 0.004, 0.0041, 0.03, 2.0, 5000.0]
    for seconds in gaps:
        counter.gap(seconds, 1)

    def grown() -> int:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(1000):
            for seconds in gaps:
                counter.gap(seconds, 1)
        return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        least = min(grown() for _ in range(5))  # other threads allocate, too
    finally:
        tracemalloc.stop()
    assert least < 200, "a number or two, whatever is counted"
    histogram, tokens = counter.take()
    assert histogram.count == tokens == 5001 * len(gaps)
    assert histogram.quantile(0.5) == pytest.approx(0.0041, rel=0.01)
    assert not counter.take()[0].counts
