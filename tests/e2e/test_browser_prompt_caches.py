"""Prompt caches in a real browser: one is written and pinned, workers compute it, and requests begin with it."""

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.support.live_stack import LiveStack

pytestmark = pytest.mark.browser

SYSTEM = "You know the tides of every harbour, and you answer in one sentence. " * 20
WARM_MS = 1000
RELOADS = 60
FORGET = """
from apps.caching.models import PromptCache
PromptCache.all_tenants.all().delete()
from apps.tenants.snapshots import snapshot_publish
snapshot_publish()
"""


def choose(page: Page, field: str, text: str) -> None:
    """Choose from a list that is searched."""
    page.locator(f"#id_{field} + .select2").click()
    page.get_by_role("searchbox").last.fill(text)
    page.get_by_role("option", name=text).first.click()


def test_a_pinned_one_is_warm_soon_and_used_by_its_name(admin_page: Page, live_stack: LiveStack) -> None:
    page, celery = admin_page, live_stack.start_celery()
    try:
        page.goto(f"{live_stack.base_url}/admin/caching/promptcache/add/")
        choose(page, "tenant", "Demo")
        choose(page, "deployment", "quick")
        page.get_by_label("Name").fill("tides")
        page.get_by_label("System prompt").fill(SYSTEM)
        page.get_by_label("Pinned").check()
        page.get_by_role("button", name="Save and continue editing").click()
        expect(page.get_by_text("was added successfully")).to_be_visible()
        warm = page.locator("#warmth tbody tr").filter(has_text=" of ")
        for _ in range(RELOADS):
            if warm.count():
                break
            page.wait_for_timeout(WARM_MS)
            page.reload()
        expect(warm).to_have_count(1)

        def asked(name: str) -> httpx.Response:
            message = {"role": "user", "content": "Brest?"}
            body = {"model": "quick", "messages": [message], "max_tokens": 2, "prompt_cache": name}
            headers = {"Authorization": f"Bearer {live_stack.api_key}"}
            return httpx.post(f"{live_stack.base_url}/v1/chat/completions", json=body, headers=headers, timeout=30)

        answer, refused = asked("tides"), asked("missing")
        assert answer.status_code == 200
        assert answer.json()["usage"]["prompt_tokens"] > 300, "its messages went before"
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_cache")
    finally:
        celery.stop()
        live_stack.run_django(FORGET)
