"""What a stream does about frames, losses and acknowledgements, without a socket and with a clock that is moved."""

import json
from typing import Any

import pytest

from headrace_client import errors
from headrace_client.backoff import LONGEST_DELAY_SECONDS
from headrace_client.frames import Delta, Event, Queued, Started
from headrace_client.session import ConnectionUnusableError, Loss, StreamSession
from headrace_wire import errors as wire_errors

RESTART = Loss("service restart; retry_after_ms=1500", 1012)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def session(clock: Clock, **options: Any) -> StreamSession:
    opening = {"generate": {"model": "m", "messages": []}} if "stream_id" not in options else {}
    return StreamSession(**{"clock": clock, "connect_seconds": 10, "reconnect_seconds": 60, **opening, **options})


def say(stream: StreamSession, kind: str, **fields: Any) -> Event | None:
    event = stream.received(json.dumps({"type": kind, "stream_id": "s", **fields}))
    if event is not None:
        stream.given(event)
        stream.consumed()
    return event


def running(clock: Clock, **options: Any) -> StreamSession:
    stream = session(clock, **options)
    stream.opened()
    say(stream, "queued", position=1)
    return stream


def failure(code: str, **fields: Any) -> str:
    error = {"message": "No.", "type": "x", "param": None, "code": code}
    return json.dumps({"type": "error", "error": error, **fields})


def fail(stream: StreamSession, code: str) -> None:
    stream.received(failure(code, stream_id="s"))


def acked(frames: list[str]) -> list[int]:
    return [json.loads(frame)["seq"] for frame in frames if '"ack"' in frame]


def test_it_starts_once_and_then_resumes(clock: Clock) -> None:
    stream = session(clock, generate={"model": "m", "messages": [], "window": None, "seed": 7})
    assert json.loads(stream.opened()) == {"type": "generate", "model": "m", "messages": [], "seed": 7}
    assert say(stream, "queued", position=3) == Queued("s", 3)
    assert say(stream, "started", seq=0, attempt=1, queue_ms=2.5) == Started("s", 0, 1, 2.5)
    assert say(stream, "delta", seq=2, text="ab") == Delta("s", 2, "ab")
    stream.lost(Loss("broken"))
    assert json.loads(stream.opened()) == {"type": "resume", "stream_id": "s", "after": 2}
    assert say(stream, "started", seq=0, attempt=1, queue_ms=2.5) is None, "told before"
    taken = say(stream, "started", seq=2, attempt=2, queue_ms=2.5, deployment="m")
    assert taken == Started("s", 2, 2, 2.5, deployment="m")
    assert say(stream, "delta", seq=2, text="ab") is None, "repeated"
    assert say(stream, "delta", seq=3, text="c") == Delta("s", 3, "c")
    usage = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4, "cached_tokens": 0}
    timings = {"queue_ms": 1, "prefill_ms": 1, "decode_ms": 1, "ttft_ms": None}
    say(stream, "end", seq=4, state="finished", finish_reason="stop", stop_reason=None, usage=usage, timings=timings)
    assert stream.is_over
    assert stream.end is not None
    assert stream.end.usage.completion_tokens == 3
    assert stream.content.text == "abc"


def test_it_may_wait_for_a_full_gateway_before_it_has_an_id(clock: Clock) -> None:
    stream = session(clock)
    stream.opened()
    waiting = {"type": "queued", "position": 7, "eta_ms": [500, 2000]}
    assert stream.received(json.dumps(waiting)) == Queued(None, 7, (500.0, 2000.0))
    assert stream.stream_id is None
    assert say(stream, "queued", position=1) == Queued("s", 1)
    left = session(clock)
    left.opened()
    left.received(json.dumps(waiting))
    with pytest.raises(errors.StartUnknownError):
        left.lost(Loss("gone"))


def test_an_unanswered_request_is_never_sent_again(clock: Clock) -> None:
    stream = session(clock)
    stream.lost(Loss("refused"))  # nothing was sent yet
    stream.opened()
    with pytest.raises(errors.StartUnknownError):
        stream.lost(RESTART)
    assert stream.is_over
    abandoned = session(clock)
    abandoned.opened()
    with pytest.raises(errors.StartUnknownError):
        abandoned.opened()


def test_a_draining_gateway_is_left_for_another(clock: Clock) -> None:
    stream = session(clock)
    stream.opened()
    with pytest.raises(ConnectionUnusableError) as unusable:
        stream.received(failure("draining"))
    stream.lost(unusable.value.loss)
    assert json.loads(stream.opened())["type"] == "generate", "it was refused, not unanswered"
    say(stream, "queued", position=1)
    for code in ("draining", "dependency_unavailable"):
        with pytest.raises(ConnectionUnusableError):
            fail(stream, code)
    assert not stream.is_over


def test_an_overloaded_gateway_is_asked_again_a_few_times(clock: Clock) -> None:
    stream = running(clock)
    for _ in range(4):
        stream.lost(Loss("full"))
        stream.opened()
        with pytest.raises(ConnectionUnusableError):
            fail(stream, "server_overloaded")
    stream.opened()
    with pytest.raises(errors.ServerOverloadedError):
        fail(stream, "server_overloaded")


@pytest.mark.parametrize(
    ("close_code", "error"),
    [
        (4401, errors.InvalidApiKeyError),
        (4403, errors.PermissionDeniedError),
        (4400, errors.InvalidRequestError),
        (4499, errors.ProtocolError),
        (1009, errors.PayloadTooLargeError),
    ],
)
def test_final_close_codes(clock: Clock, close_code: int, error: type[errors.HeadraceError]) -> None:
    stream = running(clock)
    with pytest.raises(error) as raised:
        stream.lost(Loss("why", close_code))
    assert raised.value.stream_id == "s"
    assert stream.is_over


@pytest.mark.parametrize("close_code", [None, 1000, 1001, 1006, 1011, 1012, 1013, 4408])
def test_after_other_losses_it_comes_back_until_patience_ends(clock: Clock, close_code: int | None) -> None:
    stream = running(clock)
    say(stream, "delta", seq=4, text="four")
    delays: list[float] = []

    def lose_for_ever() -> None:
        while True:
            delays.append(stream.lost(Loss("gone", close_code)))
            clock.now += delays[-1]

    with pytest.raises(errors.ConnectionLostError) as raised:
        lose_for_ever()
    assert (raised.value.stream_id, raised.value.seq) == ("s", 4)
    assert 0.1 < delays[0] <= 0.25
    assert max(delays) <= LONGEST_DELAY_SECONDS
    assert 30 < sum(delays) <= 60
    assert len(set(delays)) == len(delays), "no jitter"


def test_a_suggested_delay_is_kept(clock: Clock) -> None:
    assert 1.5 < running(clock).lost(RESTART) <= 1.75
    assert 5 < running(clock).lost(Loss("HTTP 503", retry_after_seconds=5.0)) < 6


def test_progress_renews_patience(clock: Clock) -> None:
    stream = running(clock)
    for seq in range(1, 200):
        clock.now += stream.lost(Loss("gone"))
        stream.opened()
        say(stream, "delta", seq=seq, text="x")
    assert stream.content.seq == 199


def test_acknowledgements_are_coalesced(clock: Clock) -> None:
    stream = running(clock)
    sent = []
    for seq in range(1, 101):
        say(stream, "delta", seq=seq, text="x")
        sent += acked(stream.due_frames())
    assert sent == [16, 32, 48, 64, 80, 96]
    assert acked(stream.ack_frames(is_quiet=True)) == [100]
    assert stream.ack_frames(is_quiet=True) == []


def test_a_small_window_and_a_slow_consumer_are_acknowledged_sooner(clock: Clock) -> None:
    stream = running(clock, generate={"model": "m", "messages": [], "window": 8})
    sent = []
    for seq in range(1, 7):
        say(stream, "delta", seq=seq, text="x")
        sent += acked(stream.due_frames())
    assert sent == [2, 4, 6]
    slow = running(clock)
    say(slow, "delta", seq=1, text="x")
    assert slow.due_frames() == []
    clock.now += 10
    assert acked(slow.due_frames()) == [1]


def test_only_what_was_given_is_acknowledged(clock: Clock) -> None:
    stream = running(clock)
    event = stream.received('{"type":"delta","stream_id":"s","seq":50,"text":"x"}')
    stream.consumed()
    assert stream.ack_frames(is_quiet=True) == [], "the caller has not seen it"
    assert event is not None
    stream.given(event)
    stream.consumed()
    assert acked(stream.ack_frames(is_quiet=True)) == [50]


def test_the_caller_may_acknowledge_itself(clock: Clock) -> None:
    stream = running(clock, auto_ack=False)
    say(stream, "delta", seq=50, text="x")
    assert stream.ack_frames(is_quiet=True) == []
    stream.acknowledge(30)
    assert acked(stream.ack_frames(is_quiet=True)) == [30]
    stream.acknowledge(10**9)
    assert acked(stream.ack_frames(is_quiet=True)) == [50]


def test_a_wanted_cancel_is_said_over_every_connection(clock: Clock) -> None:
    stream = session(clock)
    stream.opened()
    assert stream.cancel() == [], "it has no id yet"
    say(stream, "queued", position=1)
    cancel = {"type": "cancel", "stream_id": "s"}
    assert [json.loads(frame) for frame in stream.due_frames()] == [cancel]
    assert stream.due_frames() == []
    stream.lost(Loss("gone"))
    stream.opened()
    assert [json.loads(frame) for frame in stream.due_frames()] == [cancel]


def test_what_is_not_known_is_ignored(clock: Clock) -> None:
    stream = running(clock)
    assert say(stream, "weather", sky="blue") is None
    assert stream.received('{"type":"delta","stream_id":"another","seq":9,"text":"x"}') is None
    assert say(stream, "delta", seq=1, text="x", colour="red") == Delta("s", 1, "x")


@pytest.mark.parametrize("text", ["", "[]", "{", "7", '{"type":"delta"}', '{"type":"end","stream_id":"s","seq":1}'])
def test_nonsense_is_a_protocol_error(clock: Clock, text: str) -> None:
    stream = running(clock)
    with pytest.raises(errors.ProtocolError):
        stream.received(text)
    assert stream.is_over


HTTP_ONLY = {wire_errors.NotFoundError, wire_errors.MethodNotAllowedError, wire_errors.IdempotencyMismatchError}


def test_every_error_of_the_server_has_a_class_here(clock: Clock) -> None:
    every = wire_errors._leaves(wire_errors.HeadraceError)
    # Apps add errors of their own pages to the tree where they are loaded; no stream ends with one.
    kinds = {cls.code: cls for cls in every if "code" in vars(cls) and cls.__module__ == wire_errors.__name__}
    bases = {wire_errors.HeadraceError, wire_errors.ClientError}
    for code, cls in kinds.items():
        if cls in bases | HTTP_ONLY:
            continue
        error = errors.error_from_code(code, "No.", param="p", stream_id="s")
        assert type(error).__name__ == cls.__name__
        assert issubclass(type(error), errors.ServerError) == issubclass(cls, wire_errors.ServerError)
        assert (error.code, error.param, error.stream_id, str(error)) == (code, "p", "s", "No.")
    unknown = errors.error_from_code("brand_new", "No.")
    assert type(unknown) is errors.HeadraceError
    assert unknown.code == "brand_new"
