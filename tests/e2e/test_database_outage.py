"""PostgreSQL is stopped under load: requests keep flowing, and the ledger has every one of them in the end."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from headrace_wire import redis_keys
from tests.support.live_stack import LiveStack, running_stack
from tests.support.postgres_server import PostgresServer, postgres_server

WAIT_SECONDS = 90.0
BEFORE, WHILE_AWAY, AFTER = 10, 60, 10
"""Requests that are answered in each part of the test."""


class Load:
    """Two clients that ask again as soon as they are answered; keeps what they were told."""

    def __init__(self, base_url: str, key: str) -> None:
        self._url, self._headers = f"{base_url}/v1/chat/completions", {"authorization": f"Bearer {key}"}
        self._ended = threading.Event()
        self._changed = threading.Condition()
        self.usages: list[dict[str, int]] = []
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(2)]

    def _ask(self) -> None:
        body = {"model": "quick", "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 3}
        with httpx.Client(headers=self._headers, timeout=60) as client:
            while not self._ended.is_set():
                answer = client.post(self._url, json=body)
                with self._changed:
                    if answer.status_code == 200:
                        self.usages.append(answer.json()["usage"])
                    else:
                        self.failures.append(answer.text)
                    self._changed.notify_all()

    def wait_for(self, more: int) -> None:
        """Returns when that many more were answered."""
        with self._changed:
            wanted = len(self.usages) + more
            assert self._changed.wait_for(lambda: len(self.usages) >= wanted or self.failures, WAIT_SECONDS)
        assert self.failures == []

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def stack(postgres: PostgresServer) -> Iterator[LiveStack]:
    quick = {"quick": {"engine_args": {"ttft_ms": 5, "tpot_ms": 2}}}
    with (
        tempfile.TemporaryDirectory(prefix="headrace-outage-") as folder,
        running_stack(Path(folder), quick, DATABASE_URL=postgres.url) as stack,
    ):
        yield stack


def becomes(read: Callable[[], Any], wanted: Any) -> None:
    """Waits for a value."""
    paused = threading.Event()
    found = None
    for _ in range(int(WAIT_SECONDS * 5)):
        found = read()
        if found == wanted:
            return
        paused.wait(0.2)
    assert found == wanted


def test_nothing_is_lost_and_requests_keep_flowing(
    stack: LiveStack, postgres: PostgresServer, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: request.node.add_report_section("teardown", "stack", stack.log[-20_000:]))
    made = stack.run_django(
        "from apps.accounts.models import ApiKey\n"
        "from apps.accounts.services import api_key_create\n"
        "from apps.tenants.models import Tenant\n"
        "key = ApiKey(tenant=Tenant.objects.get(slug='demo'), name='load', scopes=['inference', 'usage'])\n"
        "print(api_key_create(api_key=key)[1].reveal())"
    )
    key = made.split()[-1]
    headers = {"authorization": f"Bearer {key}"}
    celery = stack.start_celery()

    def ledger() -> Any:
        answer = httpx.get(f"{stack.base_url}/v1/usage", headers=headers, timeout=30)
        if answer.status_code != 200:
            return answer.status_code
        rows = [row for bucket in answer.json()["data"] for row in bucket["results"]]
        return tuple(sum(row[name] for row in rows) for name in ("num_model_requests", "input_tokens", "output_tokens"))

    becomes(lambda: ledger() == 401, False)  # the gateway has read the new key
    load = Load(stack.base_url, key)
    with Redis.from_url(stack.redis_url) as redis, load.running():
        load.wait_for(BEFORE)
        becomes(lambda: ledger()[0] > 0, True)
        postgres.stop()
        load.wait_for(WHILE_AWAY)
        assert ledger() == 503
        assert redis.xlen(redis_keys.usage_key()) >= WHILE_AWAY, "what ended meanwhile waits in Redis"
        celery.wait_for_line("usage_waits", timeout=WAIT_SECONDS)
        postgres.start()
        load.wait_for(AFTER)
    prompt = sum(usage["prompt_tokens"] for usage in load.usages)
    completion = sum(usage["completion_tokens"] for usage in load.usages)
    becomes(ledger, (len(load.usages), prompt, completion))
    with Redis.from_url(stack.redis_url) as redis:
        becomes(lambda: redis.xlen(redis_keys.usage_key()), 0)
        assert redis.xlen(redis_keys.usage_set_aside_key()) == 0
