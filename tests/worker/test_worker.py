"""The whole worker with the simulated engine, from an admitted stream to its settled end."""

from headrace_wire import codec
from headrace_wire.messages import Ended, FinishReason, Opened, Started, StreamState
from tests.worker.conftest import Desk, RunWorker


async def test_stream_from_claim_to_settlement(desk: Desk, run_worker: RunWorker) -> None:
    async with run_worker():
        stream_id = await desk.admit("Hello there", max_tokens=20)
        answer = await desk.answer(stream_id)
    answer.check_order()
    assert isinstance(answer.entries[0], Opened)
    started = answer.entries[1]
    assert isinstance(started, Started)
    assert started.attempt == 1
    assert answer.end.state is StreamState.FINISHED
    assert answer.end.finish_reason is FinishReason.LENGTH
    assert answer.end.usage.prompt_tokens == len("Hello there")
    assert answer.end.usage.completion_tokens == 20
    ids = await desk.log.token_ids(stream_id)
    assert len(ids) == 20
    record = await desk.queue.record(stream_id)
    assert record is not None
    assert record.state is StreamState.FINISHED
    delivered = await desk.delivered()
    assert [codec.encode(entry) for entry in delivered] == [codec.encode(entry) for entry in answer.entries[1:]]
    assert isinstance(delivered[-1], Ended)
