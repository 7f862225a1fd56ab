"""One live stack for all end-to-end tests of a test process, and a browser."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from headrace_worker.vllm_arguments import CPU_BLOCK_SIZE
from tests.support.live_stack import LiveStack, running_stack
from tests.support.processes import free_port
from tests.support.slow_clients import MODEL

MARKDOWN = """# A short answer

Water **leads** the wheel. See [the field](https://example.org/a) and `code`.

```python
def flow(x):
    return x * 2
```

| Word | Means |
| --- | ---: |
| headrace | the channel in |
| tailrace | the channel out |

<script>window.hacked = true</script>
<img src=x onerror="window.hacked = true">
[do not](javascript:window.hacked=true)

- one
- two 🌊 สวัสดี 👩‍👩‍👧 漢字
"""

EXPECT_MS = 60_000
"""How long a page may take to become as expected: a second Chromium and its stack are on the machine, too."""

CARD = "4111 1111 1111 1111"
CARD_ANSWER = f"The number is {CARD}, as you said."

ENGINE_KV_TOKENS = 20 * 1024
"""Of the real engine: room for eight conversations of 2,200 tokens, and little more."""

DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "quick": {"engine_args": {"ttft_ms": 30, "tpot_ms": 8, "answer": MARKDOWN}},
    "slow": {"engine_args": {"ttft_ms": 100, "tpot_ms": 50}, "default_max_tokens": 512, "max_num_seqs": 256},
    "teller": {"engine_args": {"ttft_ms": 30, "tpot_ms": 8, "answer": CARD_ANSWER}},
    "small": {
        "engine_args": {"ttft_ms": 10, "tpot_ms": 5, "answer_tokens": 10, "max_loras": 2},
        "max_model_len": 200,
        "default_max_tokens": 40,
    },
}
"""`quick` answers with `MARKDOWN`, `teller` with a card number, `slow` for 25 s; `small` has room for 200 tokens."""

UNHURRIED_MS = "60000"
"""Questions are compared in time on a busy machine, too."""


@pytest.fixture(scope="session")
def live_stack() -> Iterator[LiveStack]:
    """Redis, a gateway and a worker for each of `DEPLOYMENTS`, on free ports; started once."""
    with tempfile.TemporaryDirectory(prefix="headrace-e2e-") as folder:
        variables = {"HEADRACE_ADAPTER_DIR": f"{folder}/adapters", "HEADRACE_SEMANTIC_MS": UNHURRIED_MS}
        with running_stack(Path(folder), DEPLOYMENTS, tenant={}, **variables) as stack:
            yield stack


@pytest.fixture(scope="session")
def engine_stack(tiny_model: Path) -> Iterator[LiveStack]:
    """Redis, a gateway and a worker with vLLM and the tiny model; started once. What is held stays in the engine."""
    deployment = {
        "model": str(tiny_model),
        "engine": "vllm",
        "dtype": "float32",
        "max_model_len": 8192,
        "max_num_seqs": 8,
        "engine_args": {"num_gpu_blocks_override": ENGINE_KV_TOKENS // CPU_BLOCK_SIZE + 1},
    }
    with (
        tempfile.TemporaryDirectory(prefix="headrace-engine-") as folder,
        running_stack(
            Path(folder),
            {MODEL: deployment},
            HEADRACE_DRAIN_SECONDS="1",
            HEADRACE_HELD_KV_SHARE="1",
            HEADRACE_HELD_KV_SHARE_PER_TENANT="1",
            HEADRACE_HOLD_SECONDS="600",
            HEADRACE_METRICS_PORT=str(free_port()),
        ) as stack,
    ):
        yield stack


@pytest.fixture(autouse=True)
def _logs_of_failures(request: pytest.FixtureRequest) -> Iterator[None]:
    """A failed test shows what its stack logged; modules call one of their own `stack`."""
    yield
    for name in {"live_stack", "stack"} & set(request.fixturenames):
        stack: LiveStack = request.getfixturevalue(name)
        request.node.add_report_section("teardown", "live stack", stack.log[-20_000:])


# Of a module, not of the session: while Playwright's own event loop runs, asyncio tests cannot start theirs.
@pytest.fixture(scope="module")
def browser(chromium: Path) -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    flags = [
        *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    ]
    expect.set_options(timeout=EXPECT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def admin_page(browser: Browser, live_stack: LiveStack) -> Iterator[Page]:
    """An admin who has just signed in; a script error fails the test."""
    errors: list[str] = []
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{live_stack.base_url}/admin/")
    page.get_by_label("Email").fill(live_stack.admin.email)
    page.get_by_label("Password").fill(live_stack.admin.password)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{live_stack.base_url}/admin/")
    yield page
    context.close()
    assert errors == []
