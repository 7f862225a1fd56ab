"""The deployment's form in a real browser: presets fill it, the check judges it, nothing is saved by either."""

import pytest
from playwright.sync_api import Page, expect

from tests.support.live_stack import LiveStack

pytestmark = pytest.mark.browser

CHECK_MS = 120_000
"""Each check is a process of its own."""


def test_presets_and_the_check_work_on_the_form_as_it_stands(admin_page: Page, live_stack: LiveStack) -> None:
    page = admin_page
    page.goto(f"{live_stack.base_url}/admin/deployments/modeldeployment/add/")
    told = page.locator("#engine-check-told")
    check = page.get_by_role("button", name="Check without saving")

    check.click()
    expect(told).to_contain_text("Refused", timeout=CHECK_MS)
    expect(told).to_contain_text("Name: This field is required.")

    page.locator("#id_name").fill("unsaved")
    page.locator("#id_model").fill("m")
    page.locator("#id_engine").select_option("simulated")
    check.click()
    expect(told).to_contain_text("Accepted (simulated)", timeout=CHECK_MS)

    page.get_by_role("button", name="Small GPU").click()
    expect(page.locator("#id_kv_cache_dtype")).to_have_value("fp8")
    expect(page.locator("#id_gpu_memory_reserve_gib")).to_have_value("1")
    expect(page.get_by_text("nothing is saved yet")).to_contain_text("max_model_len")
    check.click()
    expect(told).to_contain_text("Only vLLM has it", timeout=CHECK_MS)

    expect(page.locator("#id_prompt_lookup_max")).to_be_hidden()
    page.locator("#id_speculation").select_option("ngram")
    expect(page.locator("#id_prompt_lookup_max")).to_be_visible()
    expect(page.locator("#id_draft_model")).to_be_hidden()
    page.goto(f"{live_stack.base_url}/admin/deployments/modeldeployment/")
    expect(page.get_by_role("link", name="unsaved")).to_have_count(0)
