"""Messages survive the wire, whatever they hold, and versions can live side by side."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_wire import codec
from headrace_wire.messages import Delta, GenerateRequest, SamplingParams


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_token_ids_round_trip(ids: list[int]) -> None:
    packed = codec.pack_token_ids(ids)
    assert len(packed) == 4 * len(ids)
    assert codec.unpack_token_ids(packed) == ids


@given(st.integers(0, 2**53), st.integers(0, 2**31), st.text())
def test_delta_round_trip(epoch: int, seq: int, text: str) -> None:
    delta = Delta("strm-0", epoch, seq, 1, text)
    assert codec.decode_log_entry(codec.encode(delta)) == delta


def test_a_newer_writer_may_add_fields() -> None:
    longer = msgspec.msgpack.encode(["d", "s", 1, 2, 1, "text", "a field of the next version"])
    assert codec.decode_log_entry(longer) == Delta("s", 1, 2, 1, "text")
    request = GenerateRequest("s", "t", "m", SamplingParams(max_tokens=1), "salt")
    grown = msgspec.msgpack.encode(msgspec.to_builtins(request) | {"of_the_next_version": 1})
    assert codec.decode_request(grown) == request


@pytest.mark.parametrize("raw", [b"", b"\xc1", msgspec.msgpack.encode(["q", "s"]), msgspec.msgpack.encode({"a": 1})])
def test_bytes_that_are_no_message_are_refused(raw: bytes) -> None:
    with pytest.raises(codec.DecodeError):
        codec.decode_log_entry(raw)
