"""Records on their way into Redis, and what becomes of them where that is away."""

import asyncio
from contextlib import suppress

import pytest
from redis.asyncio import Redis

from headrace_wire import intervention_log, redis_keys
from headrace_wire.functions import Reply
from headrace_wire.intervention_log import InterventionLog, decode_intervention
from headrace_wire.interventions import Intervention
from headrace_wire.redis_client import connect


def record(number: int) -> Intervention:
    return Intervention(
        stream_id=f"s{number}", tenant_id="t", deployment="m", policy="p", policy_version=1, rule="r", start=number
    )


async def ended(log: InterventionLog) -> None:
    """Run it for a turn of the loop, then end it as its process would."""
    running = asyncio.create_task(log.run())
    await asyncio.sleep(0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_what_is_left_at_the_end_is_written(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervention_log, "RETRY_SECONDS", 60.0)  # a busy Redis may not take it at once
    redis = connect(redis_url)
    await redis.delete(redis_keys.interventions_key())
    log = InterventionLog(redis)
    for number in range(300):
        log.put(record(number))
    await ended(log)
    rows: Reply = await redis.xrange(redis_keys.interventions_key())
    # A batch that was under way is written again: whoever reads them knows them by their ids.
    written = {found.id: found for found in (decode_intervention(fields[b"d"]) for _, fields in rows)}
    assert list(written.values()) == [record(number) for number in range(300)]
    assert log.lost == 0
    await redis.aclose()


async def test_a_redis_that_is_away_fails_nobody_at_the_end(tmp_path: pytest.TempPathFactory) -> None:
    redis = Redis(unix_socket_path=f"{tmp_path}/nobody.sock")
    log = InterventionLog(redis)
    log.put(record(1))
    await ended(log)
    assert log.lost == 1
    await redis.aclose()
