"""The small application behind our server: the bench's client understands its answers, and every figure is there."""

import asyncio
import math

from tests.load.peers.servers import OURS, ServersLoad, running_server, servers_table
from tests.load.peers.token_path import PathLoad, measure
from tests.load.placement import Placement

PATH = PathLoad(streams=4, seconds=1.0, plain_answers=5, bursts=1, burst_tokens=8, short_streams=3, beside_seconds=0)


def test_our_server_serves_it() -> None:
    with running_server(OURS, Placement.of_this_machine()) as arm:
        figures = asyncio.run(measure(PATH, arm, []))
    assert figures.plain.count == 5
    assert figures.tokens > 0
    assert min(figures.plain.p50, figures.ttft_alone.p50) > PATH.ttft_ms - 1
    assert math.isfinite(figures.us_per_token["gateway"])
    assert "CPU, running, us per token" in servers_table(ServersLoad(PATH), {OURS: [figures]}).render()
