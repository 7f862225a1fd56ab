"""The real engine behind a real worker process, on the tiny model."""

import pytest

from headrace_wire.messages import ChatTurn, FinishReason, StreamState
from tests.worker.conftest import Desk

pytestmark = pytest.mark.engine


async def test_streams_an_answer(engine_desk: Desk) -> None:
    stream_id = await engine_desk.admit(
        [ChatTurn("user", "Hello")], deployment="tiny", max_tokens=40, temperature=0.0, ignore_eos=True
    )
    answer = await engine_desk.answer(stream_id)
    answer.check_order()
    print(answer.end, repr(answer.text))
    assert answer.end.state is StreamState.FINISHED
    assert answer.end.finish_reason is FinishReason.LENGTH
    assert answer.end.usage.completion_tokens == 40
