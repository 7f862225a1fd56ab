"""What a gateway knows of workers that sleep."""

import pytest

from apps.streams.gateway import Gateway
from headrace_wire import codec, redis_keys
from headrace_wire.fleet import WorkerInfo, WorkerState

from .conftest import WORKER

SLEEPING, LOADING, READY, BROKEN = WorkerState.SLEEPING, WorkerState.LOADING, WorkerState.READY, WorkerState.BROKEN


@pytest.mark.parametrize(
    ("workers", "is_ready", "waking"),
    [
        ([], False, None),
        ([(SLEEPING, 9.0)], True, 9.0),
        ([(SLEEPING, 9.0), (READY, 9.0)], True, None),
        ([(LOADING, 9.0)], False, 9.0),
        ([(LOADING, 0.0)], False, None),
        ([(SLEEPING, 9.0), (LOADING, 7.0)], True, 7.0),
        ([(BROKEN, 9.0)], False, None),
    ],
    ids=["nobody", "asleep", "one is awake", "being woken", "starting for the first time", "both", "broken"],
)
async def test_a_model_is_there_or_waking(
    gateway: Gateway,
    workers: list[tuple[WorkerState, float]],
    is_ready: bool,
    waking: float | None,
) -> None:
    await gateway.redis.delete(redis_keys.workers_key())
    for number, (state, seconds) in enumerate(workers):
        name = f"{WORKER}-{number}"
        await gateway.queue.enlist(name, lease_seconds=60, channels=[])
        info = WorkerInfo(name, "sleepy", "simulated", state, "host", 1, 0.0, cold_start_seconds=seconds)
        await gateway.redis.hset(redis_keys.workers_key(), name, codec.encode(info))
    await gateway.fleet.refresh()
    assert (gateway.fleet.ready("sleepy"), gateway.fleet.waking_seconds("sleepy")) == (is_ready, waking)
