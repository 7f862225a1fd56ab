"""A tenant's LoRA adapter from the admin's services to the ledger, through real processes: nobody else has it."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live_stack import LiveStack
from tests.support.tiny_adapter import tiny_adapter

SECONDS = 60.0

MAKE = """
import json
from apps.accounts.models import ApiKey
from apps.accounts.services import api_key_create
from apps.deployments.adapters.services import adapter_create, adapter_judge
from apps.deployments.models import LoraAdapter, ModelDeployment
from apps.tenants.models import Tenant
from apps.tenants.services import tenant_create
other = tenant_create(tenant=Tenant(slug="strangers", name="Strangers"))
key = api_key_create(api_key=ApiKey(tenant=other, name="foreign", scopes=["inference", "models"]))[1].reveal()
row = LoraAdapter(tenant=Tenant.objects.get(slug="demo"), deployment=ModelDeployment.objects.get(name="small"))
row.name, row.place = "tides", "demo/tides"
found = adapter_judge(adapter=adapter_create(adapter=row))
print(json.dumps([key, found.problems]))
"""

CHECK = """
from apps.deployments.adapters.services import adapter_judge
from apps.deployments.models import LoraAdapter
print(adapter_judge(adapter=LoraAdapter.all_tenants.get(name="tides")).revision)
"""

LEDGER = """
import json
from apps.usage.ledger import usage_collect
from apps.usage.models import UsageRecord
usage_collect()
rows = UsageRecord.all_tenants.filter(deployment_label="small").values_list("stream_id", "adapter_label")
print(json.dumps(dict(rows)))
"""


def until(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.1)  # a poll of other processes
    return value


class Asker:
    """Somebody with a key."""

    def __init__(self, stack: LiveStack, key: str) -> None:
        self._client = httpx.Client(
            base_url=f"{stack.base_url}/v1", headers={"authorization": f"Bearer {key}"}, timeout=SECONDS
        )

    def close(self) -> None:
        self._client.close()

    def post(self, model: str, **fields: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "Say it."}], "temperature": 0, **fields}
        return self._client.post("/chat/completions", json=body)

    def text(self, model: str, **fields: Any) -> str:
        answer = self.post(model, **fields)
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    def models(self) -> set[str]:
        answer = self._client.get("/models")
        return {row["id"] for row in answer.json()["data"]} if answer.status_code == 200 else set()


@pytest.fixture(scope="module")
def folder(live_stack: LiveStack) -> Path:
    return tiny_adapter(Path(live_stack.environ["HEADRACE_ADAPTER_DIR"]) / "demo/tides", base="simulated")


@pytest.fixture(scope="module")
def foreign_key(live_stack: LiveStack, folder: Path) -> str:
    assert folder.is_dir()
    key, problems = json.loads(live_stack.run_django(MAKE).splitlines()[-1])
    assert problems == []
    return str(key)


@pytest.fixture
def own(live_stack: LiveStack) -> Iterator[Asker]:
    with closing(Asker(live_stack, live_stack.api_key)) as asker:
        yield asker


@pytest.fixture
def foreign(live_stack: LiveStack, foreign_key: str) -> Iterator[Asker]:
    with closing(Asker(live_stack, foreign_key)) as asker:
        yield asker


def test_an_adapter_is_its_tenants_alone(live_stack: LiveStack, folder: Path, own: Asker, foreign: Asker) -> None:
    until(lambda: "small:tides" in own.models())
    until(foreign.models)
    assert not any(":" in name for name in foreign.models())
    base, adapted = own.text("small"), own.text("small:tides")
    assert base != adapted == own.text("small:tides")
    assert own.text("small") == foreign.text("small") == base
    refused = foreign.post("small:tides")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    unknown = foreign.post("small:nobody")
    assert refused.text.replace("tides", "…") == unknown.text.replace("nobody", "…")

    own_field = foreign.post("small", adapter=["x", "tides", "demo/tides", "f" * 64], lora_request={"name": "tides"})
    assert own_field.status_code == 400 or own_field.json()["choices"][0]["message"]["content"] == base

    stream_id = own.post("small:tides").headers["x-headrace-stream-id"]
    labels = until(lambda: (found := json.loads(live_stack.run_django(LEDGER).splitlines()[-1])) and (
        found if stream_id in found else None
    ))  # fmt: skip
    assert labels[stream_id] == "tides"
    assert set(labels.values()) == {"", "tides"}

    tiny_adapter(folder, seed=2, base="simulated")
    live_stack.run_django(CHECK)
    until(lambda: own.text("small:tides") != adapted)
    assert own.text("small") == base
