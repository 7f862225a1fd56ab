"""What a queue's deadline does to a stream that a worker has just taken: nothing."""

from apps.streams.gateway import Gateway
from apps.streams.services import stream_expire_in_queue
from headrace_wire import redis_keys
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import StreamState
from tests.support.snapshots import TENANT_A

from .conftest import WORKER, admit


async def test_a_stream_that_was_taken_and_has_not_begun_goes_on(gateway: Gateway) -> None:
    stream_id = new_stream_id()
    await admit(gateway, stream_id)
    (claimed,) = await gateway.queue.claim(WORKER, deployment="sim", want=1)
    await stream_expire_in_queue(gateway=gateway, tenant_id=TENANT_A, stream_id=stream_id)
    record = await gateway.queue.record(stream_id)
    assert record is not None
    assert (record.state, record.epoch) == (StreamState.RUNNING, claimed.epoch)
    assert not await gateway.redis.hexists(redis_keys.stream_key(stream_id), "cancel")
    assert await gateway.redis.xlen(redis_keys.control_key(WORKER)) == 1, "the entry that made the channel"


async def test_one_that_waits_ends(gateway: Gateway) -> None:
    stream_id = new_stream_id()
    await admit(gateway, stream_id)
    await stream_expire_in_queue(gateway=gateway, tenant_id=TENANT_A, stream_id=stream_id)
    record = await gateway.queue.record(stream_id)
    assert record is not None
    assert record.state is StreamState.FAILED
