"""From a request to the ledger, through real processes: gateway, worker, Redis, Celery, database."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.support.live_stack import LiveStack
from tests.support.processes import Process
from tests.support.slow_clients import HEAR_SECONDS
from tests.support.stream_probe import StreamProbe

ASK: Any = [{"role": "user", "content": "Say something."}]
LEDGER_SECONDS = 60.0
"""Celery's beat comes every few seconds; a busy machine gets time to start it."""


@pytest.fixture(scope="module", autouse=True)
def celery(live_stack: LiveStack) -> Iterator[Process]:
    process = live_stack.start_celery()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def key(live_stack: LiveStack) -> str:
    """A key that may generate and read usage, as an admin makes it."""
    made = live_stack.run_django(
        "from apps.accounts.models import ApiKey\n"
        "from apps.accounts.services import api_key_create\n"
        "from apps.deployments.models import ModelDeployment\n"
        "from apps.deployments.services import deployment_update\n"
        "from apps.tenants.models import Tenant\n"
        "for row in ModelDeployment.objects.all():\n"
        "    row.prompt_price, row.cached_price, row.completion_price = 2, 1, 3\n"
        "    deployment_update(deployment=row)\n"
        "from decimal import Decimal\n"
        "from apps.quotas.models import Quota\n"
        "from apps.quotas.services import quota_create\n"
        "key = ApiKey(tenant=Tenant.objects.get(slug='demo'), name='metered', scopes=['inference', 'usage'])\n"
        "token = api_key_create(api_key=key)[1].reveal()\n"
        "quota_create(quota=Quota(scope='api_key', tenant=key.tenant, api_key=key, soft_budget=Decimal('0.00001'),\n"
        "    budget_duration='1d'))\n"
        "print(token)"
    )
    return made.splitlines()[-1]


def usage(stack: LiveStack, key: str) -> dict[str, Any]:
    """What the ledger says of this key's own requests, by model."""
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx.get(f"{stack.base_url}/v1/usage?group_by=api_key,deployment", headers=headers, timeout=HEAR_SECONDS)
    if answer.status_code == 401:  # the gateway has not read the new key yet
        return {}
    rows = [row for bucket in answer.json()["data"] for row in bucket["results"]]
    return {row["model"]: row for row in rows if "metered" in (row["api_key_name"] or "")}


def counted(stack: LiveStack, key: str, requests: int) -> dict[str, Any]:
    """Waits until the ledger has that many requests."""
    deadline = time.monotonic() + LEDGER_SECONDS
    while True:
        found = usage(stack, key)
        if sum(row["num_model_requests"] for row in found.values()) >= requests:
            return found
        assert time.monotonic() < deadline, f"the ledger has only {found}"
        time.sleep(0.2)


def test_every_stream_is_in_the_ledger_once_with_what_its_client_was_told(live_stack: LiveStack, key: str) -> None:
    client = openai.OpenAI(base_url=f"{live_stack.base_url}/v1", api_key=key, max_retries=5)
    told = []
    for _ in range(3):
        plain = client.chat.completions.create(model="quick", messages=ASK, max_tokens=7)
        told.append(plain.usage)
        stream = client.chat.completions.create(
            model="quick", messages=ASK, max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
        told.append(list(stream)[-1].usage)
    with client.chat.completions.create(model="slow", messages=ASK, stream=True, max_tokens=400) as cut:
        for chunk in cut:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        stream_id = cut.response.headers["x-headrace-stream-id"]
    ended = StreamProbe(live_stack.redis_url).wait_for_end(stream_id)
    found = counted(live_stack, key, 7)
    quick, slow = found["quick"], found["slow"]
    prompt = sum(usage.prompt_tokens for usage in told if usage)
    completion = sum(usage.completion_tokens for usage in told if usage)
    assert (quick["num_model_requests"], quick["input_tokens"], quick["output_tokens"]) == (6, prompt, completion)
    cached = quick["input_cached_tokens"]
    assert quick["cost_micros"] == 2 * (prompt - cached) + cached + 3 * completion
    assert (slow["num_model_requests"], slow["output_tokens"]) == (1, ended.usage.completion_tokens)
    assert 0 < slow["output_tokens"] < 400


def test_a_soft_budget_that_was_passed_is_announced(live_stack: LiveStack, celery: Process, key: str) -> None:
    """A hundred-thousandth is less than one answer costs; without a mail server, mail goes to Celery's log."""
    client = openai.OpenAI(base_url=f"{live_stack.base_url}/v1", api_key=key, max_retries=5)
    client.chat.completions.create(model="quick", messages=ASK, max_tokens=7)
    celery.wait_for_line(r"Subject: \[Headrace\] Soft budget passed: metered", timeout=LEDGER_SECONDS)
    celery.wait_for_line("Soft budget:  0.00001", timeout=LEDGER_SECONDS)
