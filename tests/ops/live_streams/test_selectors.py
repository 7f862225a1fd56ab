"""What is read of live streams, and how much of Redis that takes."""

from typing import Any

import pytest
from redis import Redis
from redis.client import Pipeline

from apps.ops.live_streams.selectors import Phase, StreamFilter, live_stream_page, live_streams_get
from headrace_wire import redis_keys
from headrace_wire.ids import shard_of
from headrace_wire.messages import StreamState

from .conftest import GATEWAY, OTHER_GATEWAY, PaperFleet

ALL = StreamFilter()
OTHER = "b" * 32


def page(wanted: StreamFilter = ALL, **options: Any) -> list[str]:
    return [row.stream_id for row in live_stream_page(wanted=wanted, deployments=["tiny"], **options).rows]


def test_each_stream_is_told_as_it_is(paper: PaperFleet) -> None:
    paper.worker("worker-1")
    streams = paper.admit(5, window=8)
    decoding = paper.claim("worker-1", 1, tokens=5)
    prefilling = paper.claim("worker-1", 1)
    held = paper.claim("worker-1", 1, tokens=8)
    suspended = paper.claim("worker-1", 1, tokens=8)
    paper.mark(held[0], StreamState.HELD, "credit")
    paper.mark(suspended[0], StreamState.SUSPENDED, "slow_consumer")
    (queued,) = set(streams) - {*decoding, *prefilling, *held, *suspended}
    found = {row.stream_id: row for row in live_stream_page(wanted=ALL, deployments=["tiny"]).rows}
    assert {name: row.phase for name, row in found.items()} == {
        queued: Phase.QUEUED,
        decoding[0]: Phase.DECODE,
        prefilling[0]: Phase.PREFILL,
        held[0]: Phase.HELD,
        suspended[0]: Phase.SUSPENDED,
    }
    row = found[decoding[0]]
    assert (row.worker, row.tokens, row.lag, row.credit, row.window) == ("worker-1", 5, 5, 8, 8)
    assert (row.gateways, row.tenant_id, row.deployment) == ((GATEWAY,), "a" * 32, "tiny")
    assert found[suspended[0]].reason == "slow_consumer"
    assert found[queued].worker == ""


def test_viewers_of_all_gateways_are_counted(paper: PaperFleet, live_redis: Redis) -> None:
    shared, left, usual, lonely = paper.admit(4)
    paper.gateway(readers={shared: 3, left: 0})
    paper.gateway(OTHER_GATEWAY, readers={shared: 2})
    for stream_id, readers in ((shared, f"{GATEWAY} {OTHER_GATEWAY}"), (usual, f"{GATEWAY} gateway-gone")):
        live_redis.set(redis_keys.readers_key(stream_id, shard_of(stream_id, redis_keys.LOG_SHARDS)), readers)
    live_redis.delete(redis_keys.readers_key(lonely, shard_of(lonely, redis_keys.LOG_SHARDS)))
    found = {row.stream_id: row.viewers for row in live_stream_page(wanted=ALL, deployments=["tiny"]).rows}
    assert found == {shared: 5, left: 0, usual: 1, lonely: 0}


def test_filters(paper: PaperFleet) -> None:
    paper.worker("worker-1")
    paper.worker("worker-2", "other")
    paper.admit(1)
    (mine,) = paper.claim("worker-1", 1, tokens=1)
    (waiting,) = paper.admit(1, tenant_id=OTHER)
    paper.admit(1, deployment="other", tenant_id=OTHER)
    (theirs,) = paper.claim("worker-2", 1, deployment="other")
    assert page() == [waiting, mine, theirs]
    assert page(StreamFilter(worker="worker-2")) == [theirs]
    assert page(StreamFilter(tenant_id=OTHER)) == [waiting, theirs]
    assert page(StreamFilter(deployment="other")) == [theirs]
    assert page(StreamFilter(state=StreamState.QUEUED)) == [waiting]
    assert page(StreamFilter(state=StreamState.RUNNING, tenant_id=OTHER)) == [theirs]
    assert page(StreamFilter(worker="worker-gone")) == []
    paper.mark(mine, StreamState.HELD, "credit")
    assert page(StreamFilter(state=StreamState.HELD)) == [mine]


def test_pages_hold_everything_once(paper: PaperFleet) -> None:
    paper.worker("worker-1")
    streams = paper.admit(25)
    paper.claim("worker-1", 12, tokens=1)
    pages = [page(number=number, per_page=10) for number in (1, 2, 3)]
    assert [len(rows) for rows in pages] == [10, 10, 5]
    assert {name for rows in pages for name in rows} == set(streams)
    beyond = live_stream_page(wanted=ALL, deployments=["tiny"], number=99, per_page=10)
    assert (beyond.number, beyond.pages, beyond.total) == (3, 3, 25)


@pytest.mark.parametrize("wanted", [ALL, StreamFilter(tenant_id="a" * 32)])
def test_round_trips_do_not_grow_with_streams(
    paper: PaperFleet, live_redis: Redis, monkeypatch: pytest.MonkeyPatch, wanted: StreamFilter
) -> None:
    trips: list[int] = []
    execute = Pipeline.execute

    def counted(pipeline: Any, *args: Any, **options: Any) -> Any:
        trips.append(len(pipeline))
        return execute(pipeline, *args, **options)

    monkeypatch.setattr(Pipeline, "execute", counted)
    needed = []
    live_redis.config_resetstat()
    for more in (1, 300):
        paper.worker(f"worker-{more}")
        paper.admit(2 * more)
        paper.claim(f"worker-{more}", more, tokens=1)
        trips.clear()
        live_stream_page(wanted=wanted, deployments=["tiny"])
        needed.append(len(trips))
    assert needed[0] == needed[1] <= 4
    used: Any = live_redis.info("commandstats")
    assert not {"cmdstat_keys", "cmdstat_scan", "cmdstat_smembers"} & set(used)


def test_ids_that_are_none_and_streams_that_have_ended_are_left_out(paper: PaperFleet) -> None:
    (stream_id,) = paper.admit()
    found = live_streams_get(stream_ids=[stream_id, "strm-" + "0" * 24, "'; DROP TABLE", ""])
    assert [row.stream_id for row in found] == [stream_id]
