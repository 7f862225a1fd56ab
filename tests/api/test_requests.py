"""Bodies of requests: whatever comes in, the answer names the field, and nothing unexpected reaches a worker."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.api.protocol import Ack, CancelFrame, Generate, Resume, parse_frame
from apps.api.requests import parse_chat_completion
from headrace_wire.errors import InvalidRequestError
from headrace_wire.messages import ChatTurn, StructuredOutput

BASE: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def parse(**changes: Any) -> Any:
    return parse_chat_completion(json.dumps({**BASE, **changes}).encode())


def refused(**changes: Any) -> InvalidRequestError:
    def use() -> None:
        request = parse(**changes)
        request.conversation()
        request.sampling()

    with pytest.raises(InvalidRequestError) as error:
        use()
    return error.value


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": 7}, "model"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "pirate", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"n": 2}, "n"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"seed": -1}, "seed"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#"}}}},
            "response_format",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"pattern": "(a{1,10000}){1,10000}"}},
                }
            },
            "response_format",
        ),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_a_bad_field_is_named(changes: dict[str, Any], param: str) -> None:
    error = refused(**changes)
    assert error.param == param
    assert error.http_status == 400


def test_a_range_is_told_exactly() -> None:
    assert refused(seed=2**63).message == "`seed` must be between 0 and 9223372036854775807."


def test_a_null_stream_is_none() -> None:
    assert not parse(stream=None).stream


@pytest.mark.parametrize("name", ["model", "messages"])
def test_a_missing_field_is_named(name: str) -> None:
    body = {key: value for key, value in BASE.items() if key != name}
    with pytest.raises(InvalidRequestError) as error:
        parse_chat_completion(json.dumps(body).encode())
    assert error.value.param == name


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'"text"', b"[" * 100_000, b'{"model":"\\ud800"}']
)
def test_what_is_not_a_request_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse_chat_completion(body)


@given(st.binary(max_size=200))
def test_no_body_crashes_the_parser(body: bytes) -> None:
    with suppress(InvalidRequestError):
        parse_chat_completion(body)


@given(st.text(max_size=200))
def test_no_frame_crashes_the_parser(text: str) -> None:
    with suppress(InvalidRequestError):
        parse_frame(text)


def test_fields_reach_the_worker_as_sampling_parameters() -> None:
    sampling = parse(
        max_completion_tokens=5, temperature=0, top_p=0.5, top_k=-1, stop="END", seed=3, logit_bias={"7": -100},
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    ).sampling()  # fmt: skip
    assert sampling.max_tokens == 5
    assert sampling.temperature == 0
    assert sampling.top_k == 0
    assert sampling.stop == ("END",)
    assert sampling.seed == 3
    assert sampling.logit_bias == {7: -100}
    assert sampling.structured == StructuredOutput(json_schema='{"type":"object"}')


def test_unknown_and_internal_fields_are_dropped() -> None:
    sampling = parse(extra_args={"hr_credit": 10**9}, cache_salt="mine", kv_transfer_params={}, priority=-1).sampling()
    assert not hasattr(sampling, "extra_args")
    assert sampling.max_tokens == 0, "not named: the deployment decides"
    assert sampling.seed == -1, "not named: one is drawn"


def test_content_parts_and_developer_messages_become_text() -> None:
    request = parse(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]
    )
    assert request.conversation() == [ChatTurn("system", "be brief"), ChatTurn("user", "ab")]


def test_frames_parse_by_type() -> None:
    assert isinstance(parse_frame(json.dumps({"type": "generate", **BASE})), Generate)
    assert parse_frame('{"type":"resume","stream_id":"s"}') == Resume(stream_id="s")
    assert parse_frame('{"type":"cancel","stream_id":"s"}') == CancelFrame(stream_id="s")
    assert parse_frame('{"type":"ack","stream_id":"s","seq":4}') == Ack(stream_id="s", seq=4)


@pytest.mark.parametrize("text", ["", "{}", '{"type":"dance"}', '{"type":"ack","stream_id":1,"seq":"x"}', None, "[]"])
def test_a_bad_frame_is_refused(text: str | None) -> None:
    with pytest.raises(InvalidRequestError):
        parse_frame(text)


def test_a_long_ref_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as error:
        parse_frame(json.dumps({"type": "resume", "stream_id": "s", "ref": "x" * 300}))
    assert error.value.param == "ref"


@pytest.mark.parametrize("window", [0, -1, -(10**30)])
def test_a_window_that_is_none_is_refused(window: int) -> None:
    frame = parse_frame(json.dumps({"type": "generate", **BASE, "window": window}))
    assert isinstance(frame, Generate)
    with pytest.raises(InvalidRequestError, match="at least 1") as error:
        frame.sampling()
    assert error.value.param == "window"


@pytest.mark.parametrize("window", [None, 1, 100_000])
def test_any_other_window_is_taken(window: int | None) -> None:
    frame = parse_frame(json.dumps({"type": "generate", **BASE, "window": window, "temperature": 0.5}))
    assert isinstance(frame, Generate)
    assert frame.sampling().temperature == 0.5
