"""A deployment whose only worker is gone: its requests are refused with a time, or a fallback serves them."""

import json
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from headrace_wire import redis_keys
from headrace_wire.fleet import WorkerState
from headrace_wire.usage_events import usage_event
from tests.support.live_stack import LiveStack, running_stack
from tests.support.stream_probe import StreamProbe

ASK: Any = [{"role": "user", "content": "Say something."}]
QUICK = {"ttft_ms": 5, "tpot_ms": 2, "answer_tokens": 20}
BREAKER = {"is_breaker_on": True, "breaker_absent_seconds": 1.0, "breaker_open_seconds": 1.0, "breaker_probes": 1}
PATIENCE = 120.0
IMPATIENT = httpx.Timeout(30.0, read=1.0)
"""Of a client that gives up while its request waits for a worker."""

WITH_FALLBACK = """
from apps.deployments.models import ModelDeployment
from apps.deployments.services import deployment_update

row = ModelDeployment.objects.get(name="main")
row.fallback = ModelDeployment.objects.get(name="spare")
deployment_update(deployment=row)
"""
STANDING = """
from apps.deployments.breaker_mirror import breakers_sync
from apps.deployments.models import BreakerStanding

breakers_sync()
print(BreakerStanding.objects.get().state)
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[LiveStack]:
    deployments: dict[str, dict[str, Any]] = {
        "main": {"engine_args": QUICK, **BREAKER},
        "spare": {"engine_args": QUICK},
    }
    with (
        tempfile.TemporaryDirectory(prefix="headrace-healing-") as folder,
        running_stack(Path(folder), deployments) as stack,
    ):
        yield stack


def ask(stack: LiveStack) -> httpx.Response | None:
    """Ask for `main`; None where nobody took the request within a second."""
    body = {"model": "main", "messages": ASK, "max_tokens": 10}
    try:
        return httpx.post(
            f"{stack.base_url}/v1/chat/completions",
            json=body,
            headers={"Authorization": f"Bearer {stack.api_key}"},
            timeout=IMPATIENT,
        )
    except httpx.ReadTimeout:
        return None


def ask_until(stack: LiveStack, *, status: int, server: str = "") -> httpx.Response:
    """Ask again and again until the answer is as wanted."""
    deadline, answer = time.monotonic() + PATIENCE, None
    while time.monotonic() < deadline:
        answer = ask(stack)
        if answer is not None and answer.status_code == status:
            if answer.headers.get("x-headrace-model-deployment", "") == server:
                return answer
        elif answer is None:
            continue
        time.sleep(0.1)  # between two requests of a client
    raise AssertionError(f"not within {PATIENCE:.0f} s; the last answer: {answer}")


def kill_worker(stack: LiveStack, probe: StreamProbe, deployment: str) -> None:
    pid = probe.wait_for_worker(deployment, lambda info: info.state is WorkerState.READY).pid
    process = next(one for one in stack.processes if one.pid == pid)
    process.send_signal(signal.SIGKILL)
    process.wait()


def ledger(probe: StreamProbe) -> list[str]:
    rows: Any = probe.redis.xrange(redis_keys.usage_key())
    return [usage_event(fields).deployment for _, fields in rows]


def test_a_lost_worker_is_stood_in_for_until_there_is_another_one(stack: LiveStack) -> None:
    probe = StreamProbe(stack.redis_url)
    assert ask_until(stack, status=200, server="main").json()["usage"]["completion_tokens"] == 10
    kill_worker(stack, probe, "main")

    refused = ask_until(stack, status=503)
    assert refused.json()["error"]["code"] == "server_overloaded"
    assert int(refused.headers["retry-after"]) >= 1
    assert stack.run_django(STANDING).splitlines()[-1] == "open"

    stack.run_django(WITH_FALLBACK)
    served = ask_until(stack, status=200, server="spare")
    assert served.json()["usage"]["completion_tokens"] == 10
    assert "spare" in ledger(probe), "who has served is who is paid"
    headers = {"Authorization": f"Bearer {stack.api_key}"}
    options: dict[str, Any] = {"subprotocols": ["headrace.v1"], "open_timeout": PATIENCE}
    with connect(stack.ws_url, additional_headers=headers, **options) as socket:
        socket.send(json.dumps({"type": "generate", "model": "main", "messages": ASK, "max_tokens": 5}))
        frame = json.loads(socket.recv(timeout=60))
        while frame["type"] == "queued":
            frame = json.loads(socket.recv(timeout=60))
    assert (frame["type"], frame["deployment"]) == ("started", "spare")

    stack.start_worker("main")
    ask_until(stack, status=200, server="main")
    assert stack.run_django(STANDING).splitlines()[-1] == "closed"
