"""Entries that a worker would append, and readers of what is delivered."""

import asyncio

from apps.streams.gateway import Gateway
from apps.streams.subscription import Subscription
from headrace_wire.ids import new_stream_id
from headrace_wire.messages import AnyLogEntry, Delta, Ended, FinishReason, StreamState, Timings, Usage
from headrace_wire.token_log import Append
from tests.support.processes import PATIENCE_SECONDS

EPOCH = 10


def end(stream_id: str, seq: int, epoch: int = EPOCH) -> Ended:
    return Ended(stream_id, epoch, seq, StreamState.FINISHED, FinishReason.STOP, None, Usage(), Timings())


async def opened(gateway: Gateway) -> str:
    stream_id = new_stream_id()
    await gateway.functions.call_many([gateway.token_log.open_call(stream_id, readers=[gateway.incarnation])])
    return stream_id


async def append(gateway: Gateway, *entries: AnyLogEntry) -> None:
    await gateway.token_log.append([Append(entry) for entry in entries])
    await gateway.token_log.publish([entry for entry in entries if isinstance(entry, Ended)])


async def read_all(subscription: Subscription) -> tuple[str, list[int]]:
    """Read to the end; return the text and the seq of every delta."""
    text, seqs = "", []
    while True:
        for entry in await asyncio.wait_for(subscription.next(), 30):
            if isinstance(entry, Delta):
                text += entry.text
                seqs.append(entry.seq)
            if isinstance(entry, Ended):
                return text, seqs


async def cut_delivery(gateway: Gateway) -> None:
    """Cut the connection that waits for deliveries, as soon as there is one."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (blocked := [c for c in await gateway.redis.client_list() if c["cmd"] == "xread"]):
            pass
    for client in blocked:
        await gateway.redis.client_kill_filter(_id=client["id"])
