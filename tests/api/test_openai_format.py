"""Chunks as OpenAI's clients expect them, byte for byte where they are strict."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.api.openai_format import ChatChunks, chat_completion
from apps.api.protocol import FrameWriter
from headrace_wire.messages import Ended, FinishReason, StreamState, Timings, Usage

STREAM = "strm-" + "0" * 24


def ended(reason: FinishReason = FinishReason.LENGTH, stop: str | int | None = None) -> Ended:
    return Ended(STREAM, 1, 6, StreamState.FINISHED, reason, stop, Usage(3, 5, 2), Timings(0.5, 0.25, 1.0))


def events(raw: bytes) -> list[Any]:
    assert raw.endswith(b"\n\n")
    lines = [line.removeprefix("data: ") for line in raw.decode().split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


@pytest.mark.parametrize("include_usage", [True, False])
def test_chunks_share_their_head_and_end_as_the_sdk_wants(include_usage: bool) -> None:
    chunks = ChatChunks(STREAM, "m", include_usage=include_usage, created_at=7)
    seen = events(chunks.first() + chunks.delta('a\n"é🌊') + chunks.last(ended()))
    assert seen[-1] == "[DONE]"
    objects = seen[:-1]
    assert len({(o["id"], o["created"], o["model"], o["object"]) for o in objects}) == 1
    assert objects[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert objects[1]["choices"][0]["delta"] == {"content": 'a\n"é🌊'}
    assert objects[2]["choices"][0]["finish_reason"] == "length"
    if include_usage:
        assert [o["usage"] for o in objects[:3]] == [None] * 3
        assert objects[3]["choices"] == []
        assert objects[3]["usage"]["total_tokens"] == 8
        assert objects[3]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    else:
        assert len(objects) == 3
        assert all("usage" not in o for o in objects)


@given(st.text())
def test_any_text_survives(text: str) -> None:
    chunks = ChatChunks(STREAM, "m", include_usage=False, created_at=1)
    try:
        text.encode()
    except UnicodeEncodeError:
        return  # a lone surrogate is no text that a decoder yields
    raw = chunks.delta(text)
    assert raw.count(b"\n") == 2, "one event per delta, whatever the text holds"
    assert events(raw)[0]["choices"][0]["delta"]["content"] == text
    frame = json.loads(FrameWriter(STREAM, None).delta(2, 4, text))
    assert frame == {"type": "delta", "stream_id": STREAM, "after": 2, "seq": 4, "text": text}
    assert json.loads(FrameWriter(STREAM, "mine").delta(2, 4, text)) == {**frame, "ref": "mine"}


def test_a_plain_answer_has_usage_and_stop_reason() -> None:
    body = json.loads(chat_completion(STREAM, "m", "text", ended(FinishReason.STOP, "END"), created_at=7))
    assert body["choices"][0]["message"]["content"] == "text"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["stop_reason"] == "END"
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_the_end_frame_tells_state_usage_and_timings() -> None:
    frame = json.loads(FrameWriter(STREAM, "r1").end(ended(), queue_seconds=0.5, ttft_seconds=0.75))
    assert frame["ref"] == "r1"
    assert (frame["state"], frame["finish_reason"], frame["seq"]) == ("finished", "length", 6)
    assert frame["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, "cached_tokens": 2}
    assert frame["timings"] == {"queue_ms": 500.0, "prefill_ms": 250.0, "decode_ms": 1000.0, "ttft_ms": 750.0}
