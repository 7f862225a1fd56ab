"""A worker that is killed and started again, on the real engine: what was pinned is warm before it says it is ready."""

import json
import signal
from typing import Any

import httpx
import pytest

from headrace_wire import codec, redis_keys
from headrace_wire.fleet import WorkerInfo, WorkerState
from headrace_wire.prefill_reports import PrefillReport
from tests.support.live_stack import ENGINE_START_SECONDS, LiveStack
from tests.support.slow_clients import MODEL
from tests.support.stream_probe import StreamProbe

pytestmark = pytest.mark.engine

PIN = """
import json
from apps.caching.models import PromptCache
from apps.caching.prompt_services import prompt_cache_create
from apps.deployments.models import ModelDeployment
from apps.tenants.models import Tenant

cache = PromptCache(
    tenant=Tenant.objects.first(), deployment=ModelDeployment.objects.get(), name="restarted", is_pinned=True,
    system_prompt="You know every sluice of the mill, and you answer in one sentence. " * 12,
)
prompt_cache_create(cache=cache)
print(json.dumps([cache.pk.hex, cache.token_count]))
"""

FORGET = """
from apps.caching.models import PromptCache
from apps.deployments.fleet_mirror import workers_sync
from apps.caching.prompt_services import prompt_cache_delete
for cache in PromptCache.all_tenants.all():
    prompt_cache_delete(cache=cache)
workers_sync()
"""
"""What it sweeps is the registration of the killed worker: no Celery runs here."""


def test_a_killed_worker_comes_back_ready_with_its_pinned_prefixes_warm(engine_stack: LiveStack) -> None:
    stack, probe = engine_stack, StreamProbe(engine_stack.redis_url)
    cache_id, tokens = json.loads(stack.run_django(PIN).splitlines()[-1])
    before, streams = probe.wait_for_worker(MODEL, _is_ready), probe.stream_ids()
    killed = next(one for one in stack.processes if one.pid == before.pid)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    changes: Any = probe.redis.pubsub()  # type: ignore[no-untyped-call]
    changes.subscribe(redis_keys.fleet_channel())
    worker = stack.start_worker(MODEL, ready="worker for deployment")
    try:
        states, report = _until_ready(probe, changes, worker.pid, cache_id)
        assert states[:-1] == [WorkerState.LOADING], "it was seen before it was ready"
        assert report is not None, "ready, and its pinned prefix was not computed"
        assert (report.tokens, report.cached_tokens) == (tokens, 0), "an engine that has just started"
        assert probe.stream_ids() == streams, "nobody has asked for anything"
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Which one is open?"}],
            "max_tokens": 2,
            "prompt_cache": "restarted",
        }
        headers = {"Authorization": f"Bearer {stack.api_key}"}
        answer = httpx.post(f"{stack.base_url}/v1/chat/completions", json=body, headers=headers, timeout=60)
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == tokens
    finally:
        stack.run_django(FORGET)


def _is_ready(info: WorkerInfo) -> bool:
    return info.state is WorkerState.READY


def _until_ready(
    probe: StreamProbe, changes: Any, pid: int, cache_id: str
) -> tuple[list[WorkerState], PrefillReport | None]:
    """Follow a worker's announcements; return its states and, as it was when it said that it is ready, its report."""
    states: list[WorkerState] = []
    while changes.get_message(timeout=ENGINE_START_SECONDS) is not None:
        rows: Any = probe.redis.hvals(redis_keys.workers_key())
        for raw in rows:
            info = codec.decode(raw, WorkerInfo)
            if info.pid != pid:
                continue
            if info.state not in states:
                states.append(info.state)
            if info.state is WorkerState.READY:
                report: Any = probe.redis.hget(redis_keys.prefix_warmth_key(cache_id), info.incarnation)
                return states, codec.decode(report, PrefillReport) if report else None
    raise AssertionError(f"not ready in {ENGINE_START_SECONDS:.0f} s: {states}")
