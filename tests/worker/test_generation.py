from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_wire.messages import (
    AnyLogEntry,
    Delta,
    Ended,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Started,
    StreamError,
    StreamState,
    StructuredOutput,
    Usage,
)
from headrace_wire.request_queue import Claimed
from headrace_wire.token_log import Append
from headrace_worker.engine import EngineOutput
from headrace_worker.failures import ENGINE_GAVE_UP, UNANSWERABLE
from headrace_worker.generation import Generation
from headrace_worker.simulated_tokenizer import built_in_tokenizer

TOKENIZER = built_in_tokenizer()
PROMPT = [1, 2, 3]


class Run:
    """A generation whose engine says what the test says."""

    def __init__(self, **sampling: Any) -> None:
        request = GenerateRequest(
            "s",
            "t",
            "m",
            SamplingParams(**{"max_tokens": 100, **sampling}),
            "salt",
            ttft_timeout_seconds=5,
            inter_token_timeout_seconds=2,
        )
        self.appends: list[Append] = []
        self.generation = Generation(
            Claimed("s", 7, 0.25, 1, is_late=False, request=request), owner="w", emit=self.appends.append
        )
        self.generation.prepare(TOKENIZER, PROMPT, max_model_len=4096)
        self.generation.start()

    def feed(self, ids: list[int], finish: FinishReason | None = None, stop_reason: str | int | None = None) -> bool:
        return self.generation.feed(EngineOutput("s", ids, finish, stop_reason, 2), now=100.0 + len(self.appends))

    def say(self, text: str, *, per_output: int = 1) -> None:
        """Have the engine generate this text, one byte per token; stops when told to."""
        ids = ids_of(text)
        for i in range(0, len(ids), per_output):
            if self.feed(ids[i : i + per_output]):
                return

    @property
    def entries(self) -> list[AnyLogEntry]:
        return [append.entry for append in self.appends]

    @property
    def text(self) -> str:
        return "".join(entry.text for entry in self.entries if isinstance(entry, Delta))

    @property
    def token_ids(self) -> list[int]:
        position = 0
        ids: list[int] = []
        for append in self.appends:
            if append.token_ids:
                assert append.token_ids_at == position
                assert append.entry.seq == position + len(append.token_ids)
                position = append.entry.seq
                ids += append.token_ids
        return ids

    @property
    def end(self) -> Ended:
        last = self.entries[-1]
        assert isinstance(last, Ended)
        return last


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def test_entries_of_a_plain_answer() -> None:
    run = Run()
    run.say("ab")
    run.feed(ids_of("c"), FinishReason.LENGTH)
    assert run.entries == [
        Started("s", 7, 0, "w", 1, 0.25),
        Delta("s", 7, 1, 1, "a"),
        Delta("s", 7, 2, 1, "b"),
        Delta("s", 7, 3, 1, "c"),
        run.end,
    ]
    assert run.token_ids == ids_of("abc")
    assert (run.end.seq, run.end.state, run.end.finish_reason) == (4, StreamState.FINISHED, FinishReason.LENGTH)
    assert run.end.usage == Usage(3, 3, 2)
    assert run.appends[-1].log_ttl_seconds == 3600
    assert run.end.timings.queue_time == 0.25
    assert run.end.timings.decode_time == 2.0


def test_an_output_before_the_start_writes_the_start_first() -> None:
    run = Run()
    other = Generation(run.generation.claimed, owner="w", emit=run.appends.append)
    run.appends.clear()
    other.prepare(TOKENIZER, PROMPT, max_model_len=4096)
    other.feed(EngineOutput("s", ids_of("a")), now=1.0)
    other.start()
    assert [type(entry) for entry in run.entries] == [Started, Delta]


def test_a_character_of_several_tokens_comes_with_its_last() -> None:
    run = Run()
    run.say("a👍")
    run.feed(ids_of("b"), FinishReason.LENGTH)
    assert [entry.text for entry in run.entries if isinstance(entry, Delta)] == ["a", "", "", "", "👍", "b"]
    assert run.end.usage.completion_tokens == 6


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    run = Run()
    run.say("a")
    run.feed(ids_of("👍")[:1], FinishReason.LENGTH)
    assert run.text == "a\N{REPLACEMENT CHARACTER}"


def test_the_end_token_has_no_text_and_counts() -> None:
    run = Run()
    run.say("hi")
    end = TOKENIZER.token_to_id("<|im_end|>")
    assert end is not None
    run.feed([end], FinishReason.STOP)
    assert run.text == "hi"
    assert run.end.finish_reason is FinishReason.STOP
    assert run.end.stop_reason is None
    assert run.end.usage.completion_tokens == 3


@pytest.mark.parametrize(("include", "text"), [(False, "hi"), (True, "hi.")])
def test_a_stop_token(include: bool, text: str) -> None:
    (dot,) = ids_of(".")
    run = Run(stop_token_ids=(dot,), include_stop=include)
    run.say("hi")
    run.feed([dot], FinishReason.STOP, dot)
    assert run.text == text
    assert run.end.stop_reason == dot
    assert run.end.usage.completion_tokens == 3


@pytest.mark.parametrize("per_output", [1, 2, 3, 50])
@pytest.mark.parametrize(("include", "text"), [(False, "one "), (True, "one STOP")])
def test_a_stop_string_counts_tokens_up_to_its_end(per_output: int, include: bool, text: str) -> None:
    run = Run(stop=("STOP",), include_stop=include)
    run.say("one STOP two", per_output=per_output)
    assert run.text == text
    assert run.end.finish_reason is FinishReason.STOP
    assert run.end.stop_reason == "STOP"
    assert run.end.usage.completion_tokens == len("one STOP")
    assert run.token_ids == ids_of("one STOP")


def test_a_stop_string_tells_the_engine_to_stop() -> None:
    run = Run(stop=("b",))
    assert run.feed(ids_of("a")) is False
    assert run.feed(ids_of("b")) is True
    assert run.feed(ids_of("c")) is False
    assert run.text == "a"


def test_a_stop_string_in_the_last_output_needs_no_abort() -> None:
    run = Run(stop=("b",))
    assert run.feed(ids_of("ab"), FinishReason.LENGTH) is False
    assert run.end.finish_reason is FinishReason.STOP


def test_text_held_for_a_stop_string_comes_at_the_end() -> None:
    run = Run(stop=("STOP",))
    run.say("one S")
    assert run.text == "one "
    run.feed(ids_of("T"), FinishReason.LENGTH)
    assert run.text == "one ST"
    assert run.end.usage.completion_tokens == 6


def test_no_stop_string_before_min_tokens() -> None:
    run = Run(stop=("x",), min_tokens=3)
    run.say("axbxc")
    assert run.text == "axb"
    assert run.end.usage.completion_tokens == 4


def test_cancelled_with_usage() -> None:
    run = Run(stop=("STOP",))
    run.say("ab S")
    run.generation.cancel()
    assert (run.end.state, run.end.finish_reason) == (StreamState.CANCELLED, FinishReason.ABORT)
    assert run.end.usage.completion_tokens == 4
    assert run.end.seq == 5
    count = len(run.appends)
    run.feed(ids_of("c"))
    run.generation.cancel()
    run.generation.fail(StreamError("timeout", "late"))
    assert len(run.appends) == count


def test_cancelled_before_anything() -> None:
    run = Run()
    run.generation.cancel()
    assert run.end.usage == Usage(3, 0, 0)
    assert run.end.seq == 1


def test_failed_with_its_error() -> None:
    run = Run()
    run.say("a")
    run.generation.fail(StreamError("timeout", "too slow"))
    assert (run.end.state, run.end.finish_reason) == (StreamState.FAILED, FinishReason.ERROR)
    assert run.end.error == StreamError("timeout", "too slow")
    assert run.end.usage.completion_tokens == 1


@pytest.mark.parametrize("finish", [FinishReason.ABORT, FinishReason.ERROR])
def test_an_engine_that_gives_a_request_up(finish: FinishReason) -> None:
    run = Run()
    run.feed([], finish)
    assert (run.end.state, run.end.finish_reason) == (StreamState.FAILED, FinishReason.ERROR)
    assert run.end.error is not None


def test_each_token_moves_the_deadline() -> None:
    run = Run()
    first = run.generation.deadline
    run.generation.feed(EngineOutput("s", ids_of("a")), now=1000.0)
    assert run.generation.deadline == 1002.0
    assert first != 1002.0


@given(st.text(max_size=30), st.lists(st.integers(1, 6), max_size=40), st.lists(st.text("ab ", min_size=1), max_size=3))
def test_text_does_not_depend_on_how_outputs_are_cut(text: str, cuts: list[int], stops: list[str]) -> None:
    whole, pieces = Run(stop=tuple(stops)), Run(stop=tuple(stops))
    ids = ids_of(text) or [0]
    for token_id in ids[:-1]:
        whole.feed([token_id])
    whole.feed(ids[-1:], FinishReason.LENGTH)
    position = 0
    for cut in cuts:
        if position + cut >= len(ids):
            break
        pieces.feed(ids[position : position + cut])
        position += cut
    pieces.feed(ids[position:], FinishReason.LENGTH)
    assert pieces.text == whole.text
    assert pieces.token_ids == whole.token_ids
    assert pieces.end.usage == whole.end.usage
    assert (pieces.end.finish_reason, pieces.end.stop_reason) == (whole.end.finish_reason, whole.end.stop_reason)


@pytest.mark.parametrize(
    ("finish", "structured", "error"),
    [
        (FinishReason.ERROR, StructuredOutput(json_object=True), UNANSWERABLE),
        (FinishReason.ERROR, None, ENGINE_GAVE_UP),
        (FinishReason.ABORT, StructuredOutput(json_object=True), ENGINE_GAVE_UP),
    ],
)
def test_what_its_grammar_does_not_let_go_on_is_the_requests_fault(
    finish: FinishReason, structured: StructuredOutput | None, error: StreamError
) -> None:
    run = Run(structured=structured)
    run.feed([5])
    run.feed([6], finish)
    ended = run.generation.ended
    assert ended is not None
    assert (ended.state, ended.error) == (StreamState.FAILED, error)
