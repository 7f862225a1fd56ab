"""The ledger's database and its consumer fail under load: requests keep flowing, and each is in the ledger once."""

import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from redis import Redis

from headrace_wire import redis_keys
from tests.support.live_stack import LiveStack, running_stack
from tests.support.postgres_server import PostgresServer, postgres_server
from tests.support.processes import Process, free_port
from tests.usage.events import event, write

WAIT_SECONDS = 90.0
AWAY_SECONDS = [15.0, pytest.param(60.0, marks=pytest.mark.faults)]
"""How long the database is away: the ledger's task comes every two seconds."""
A_FEW = 10
"""Requests that are answered between two looks."""
ANSWER_TOKENS = 16


class Load:
    """Clients of each gateway that ask again as soon as they are answered; keeps what they were told."""

    def __init__(self, base_urls: list[str], key: str) -> None:
        self._headers = {"authorization": f"Bearer {key}"}
        self._ended = threading.Event()
        self._changed = threading.Condition()
        self.usages: list[dict[str, int]] = []
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._ask, args=(url,)) for url in base_urls * 2]

    def _ask(self, base_url: str) -> None:
        messages = [{"role": "user", "content": "Say something."}]
        body = {"model": "quick", "messages": messages, "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
        with httpx.Client(base_url=base_url, headers=self._headers, timeout=60) as client:
            while not self._ended.is_set():
                answer = client.post("/v1/chat/completions", json=body)
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
            self.end()

    def end(self) -> None:
        """Returns when the last ones are answered."""
        self._ended.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def stack(postgres: PostgresServer) -> Iterator[LiveStack]:
    # 20 ms a step: a load that leaves the cores to the tests beside this one.
    quick = {"quick": {"engine_args": {"ttft_ms": 20, "tpot_ms": 20}}}
    with (
        tempfile.TemporaryDirectory(prefix="headrace-outage-") as folder,
        running_stack(Path(folder), quick, DATABASE_URL=postgres.url) as stack,
    ):
        yield stack


@pytest.fixture(autouse=True)
def _logs_of_failures(request: pytest.FixtureRequest, stack: LiveStack) -> Iterator[None]:
    yield
    request.node.add_report_section("teardown", "stack", stack.log[-20_000:])


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


def keys_made(stack: LiveStack) -> tuple[str, str]:
    """A key that may generate and read usage, and one that was revoked."""
    made = stack.run_django(
        "from apps.accounts.models import ApiKey\n"
        "from apps.accounts.services import api_key_create, api_key_revoke\n"
        "from apps.tenants.models import Tenant\n"
        "tenant = Tenant.objects.get(slug='demo')\n"
        "scopes = ['inference', 'models', 'usage']\n"
        "made = [api_key_create(api_key=ApiKey(tenant=tenant, name=name, scopes=scopes)) for name in ('load', 'old')]\n"
        "api_key_revoke(api_key=made[1][0])\n"
        "print(*(token.reveal() for _, token in made))"
    )
    good, revoked = made.split()[-2:]
    return good, revoked


@pytest.mark.parametrize("away_seconds", AWAY_SECONDS)
def test_a_time_without_database_loses_nothing_and_requests_keep_flowing(
    stack: LiveStack, postgres: PostgresServer, away_seconds: float
) -> None:
    port = free_port()
    stack.start_gateway(port)
    gateways = [stack.base_url, f"http://127.0.0.1:{port}"]
    key, revoked = keys_made(stack)
    celery = stack.start_celery()
    load = Load(gateways, key)

    with ExitStack() as cleaning:
        redis = cleaning.enter_context(Redis.from_url(stack.redis_url))
        clients = [cleaning.enter_context(httpx.Client(base_url=url, timeout=30)) for url in gateways]

        def status(client: httpx.Client, path: str, token: str = key) -> int:
            return client.get(path, headers={"authorization": f"Bearer {token}"}).status_code

        def ledger() -> Any:
            answer = clients[0].get("/v1/usage", headers={"authorization": f"Bearer {key}"})
            if answer.status_code != 200:
                return answer.status_code
            rows = [row for bucket in answer.json()["data"] for row in bucket["results"]]
            return [sum(row[name] for row in rows) for name in ("num_model_requests", "input_tokens", "output_tokens")]

        def serve_as_before() -> None:
            for client in clients:
                assert [status(client, path) for path in ("/livez", "/readyz", "/v1/models")] == [200, 200, 200]
                assert status(client, "/v1/models", revoked) == 401

        for client in clients:  # both have read the new keys
            becomes(partial(status, client, "/v1/models"), 200)
        cleaning.enter_context(load.running())
        load.wait_for(A_FEW)
        becomes(lambda: ledger()[0] > 0, True)
        serve_as_before()

        postgres.stop()
        until, answered = time.monotonic() + away_seconds, len(load.usages)
        while time.monotonic() < until:
            load.wait_for(A_FEW)
            serve_as_before()
        answered = len(load.usages) - answered
        assert ledger() == 503
        assert redis.xlen(redis_keys.usage_key()) >= answered, "what ended meanwhile waits in Redis"
        celery.wait_for_line("usage_waits", timeout=WAIT_SECONDS)
        postgres.start()
        load.wait_for(A_FEW)
        serve_as_before()
        load.end()

        prompt = sum(usage["prompt_tokens"] for usage in load.usages)
        becomes(ledger, [len(load.usages), prompt, len(load.usages) * ANSWER_TOKENS])
        becomes(lambda: redis.xlen(redis_keys.usage_key()), 0)
        assert redis.xlen(redis_keys.usage_set_aside_key()) == 0
        celery.stop()


# ---- the consumer


STREAMS = 40


@contextmanager
def sums_locked(database: "psycopg.Connection[Any]") -> Iterator[None]:
    """Whoever stores usage waits in the middle of its transaction: records are written, sums are not."""
    with database.transaction():
        database.execute("LOCK TABLE usage_usagerollup IN ACCESS EXCLUSIVE MODE")
        yield


def test_a_consumer_killed_in_mid_batch_books_each_stream_once(stack: LiveStack, postgres: PostgresServer) -> None:
    with (
        psycopg.connect(postgres.url, autocommit=True) as database,
        psycopg.connect(postgres.url, autocommit=True) as observer,
        Redis.from_url(stack.redis_url) as redis,
    ):

        def number(query: str) -> int:
            row = observer.execute(query.encode()).fetchone()
            return int(row[0]) if row else -1

        def stored() -> int:
            return number("SELECT count(*) FROM usage_usagerecord WHERE tenant_ref = 'killed'")

        def start_until_it_waits() -> Process:
            redis.delete(redis_keys.usage_lock_key())  # a killed one's ends after half a minute
            celery = stack.start_celery()
            becomes(lambda: number("SELECT count(*) FROM pg_locks WHERE NOT granted"), 1)
            return celery

        def kill(celery: Process) -> None:
            celery.send_signal(signal.SIGKILL)
            celery.wait()

        write(redis, *(event(f"strm-killed-{n}", tenant_id="killed") for n in range(STREAMS)))
        with sums_locked(database):
            kill(start_until_it_waits())  # before its commit
        # Its server process sees that it has gone once it need not wait for the lock any more.
        becomes(lambda: number("SELECT count(*) FROM pg_stat_activity WHERE xact_start < now()"), 0)
        assert (stored(), redis.xlen(redis_keys.usage_key())) == (0, STREAMS)

        with sums_locked(database):
            celery = start_until_it_waits()
            redis.client_pause(int(WAIT_SECONDS * 1000), all=False)  # nobody writes
        try:
            becomes(stored, STREAMS)
            kill(celery)  # between its commit and the delete of what it has read
        finally:
            redis.client_unpause()
        assert redis.xlen(redis_keys.usage_key()) == STREAMS

        redis.delete(redis_keys.usage_lock_key())
        celery = stack.start_celery()
        becomes(lambda: redis.xlen(redis_keys.usage_key()), 0)
        celery.stop()
        sums = "SELECT sum(requests) FROM usage_usagerollup WHERE tenant_ref = 'killed' AND bucket = "
        assert [stored(), number(f"{sums} 'hour'"), number(f"{sums} 'day'")] == [STREAMS] * 3
        assert redis.xlen(redis_keys.usage_set_aside_key()) == 0
