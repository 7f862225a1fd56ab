"""A live stack for the clients: one gateway, simulated workers."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_stack import LiveStack, running_stack
from tests.support.stream_probe import StreamProbe

DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "quick": {"engine_args": {"ttft_ms": 10, "tpot_ms": 3}},
    "slow": {"engine_args": {"ttft_ms": 20, "tpot_ms": 25}},
}


@pytest.fixture(scope="session")
def live_stack() -> Iterator[LiveStack]:
    with (
        tempfile.TemporaryDirectory(prefix="headrace-client-") as folder,
        running_stack(Path(folder), DEPLOYMENTS) as stack,
    ):
        yield stack


@pytest.fixture
def probe(live_stack: LiveStack) -> StreamProbe:
    return StreamProbe(live_stack.redis_url)


@pytest.fixture(autouse=True)
def _logs_of_failures(request: pytest.FixtureRequest) -> Iterator[None]:
    """A failed test shows what the stack logged."""
    yield
    if "live_stack" in request.fixturenames:
        stack: LiveStack = request.getfixturevalue("live_stack")
        request.node.add_report_section("teardown", "live stack", stack.log[-20_000:])
