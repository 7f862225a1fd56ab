"""Lists of the admin on a phone, and lists with nothing in them."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.live_stack import LiveStack

pytestmark = pytest.mark.browser

REASON = "The wait for a worker was over its goal for five minutes, at the 95th percentile. " * 3
DECISION = f"""
from django.utils import timezone
from apps.deployments.models import ModelDeployment, ScalingDecision
ScalingDecision.objects.create(
    deployment=ModelDeployment.objects.get(name="teller"), at=timezone.now(), mode="shadow", executor="recommend",
    before=1, target=2, rule="scale_out", reason={REASON!r}, result="shadow", result_text={REASON!r})
"""

OBJECTIVE = """
from apps.deployments.models import ModelDeployment
from apps.ops.models import ServiceObjective
ServiceObjective.objects.create(
    deployment=ModelDeployment.objects.get(name="teller"), indicator="gap", goal_seconds=0.25, target_percent=99)
"""


@pytest.fixture
def phone(browser: Browser, live_stack: LiveStack) -> Iterator[Page]:
    """An admin on a phone."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, color_scheme="dark")
    page = context.new_page()
    page.goto(f"{live_stack.base_url}/admin/")
    page.get_by_label("Email").fill(live_stack.admin.email)
    page.get_by_label("Password").fill(live_stack.admin.password)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{live_stack.base_url}/admin/")
    yield page
    context.close()


def test_long_texts_are_not_cut_off_on_a_phone(phone: Page, live_stack: LiveStack) -> None:
    live_stack.run_django(DECISION)
    phone.goto(f"{live_stack.base_url}/admin/deployments/scalingdecision/")
    cell = phone.locator("#result_list td.field-reason").first
    expect(cell).to_contain_text(REASON.strip())
    cut = phone.locator("#result_list td").evaluate_all(
        "(cells) => cells.filter((cell) => cell.scrollHeight > cell.clientHeight + 1).map((cell) => cell.className)"
    )
    assert cut == []
    assert phone.evaluate("document.documentElement.scrollWidth") == 390


def test_a_columns_name_before_its_cell_keeps_its_unit(phone: Page, live_stack: LiveStack) -> None:
    live_stack.run_django(OBJECTIVE)
    phone.goto(f"{live_stack.base_url}/admin/ops/serviceobjective/")
    shown = phone.locator("#result_list td.field-goal_seconds").first.evaluate(
        """(cell) => {
          const { content, display, textTransform } = getComputedStyle(cell, "::before");
          return { content, textTransform, isShown: display !== "none" };
        }"""
    )
    assert shown == {"content": '"Goal (s)"', "textTransform": "none", "isShown": True}


def test_an_empty_list_says_what_would_stand_in_it(phone: Page, live_stack: LiveStack) -> None:
    phone.goto(f"{live_stack.base_url}/admin/ops/alertsilence/")
    expect(phone.get_by_text("There are no silences. While one lasts, alerts are noted")).to_be_visible()
    expect(phone.get_by_role("link", name="Add silence")).to_be_visible()
    phone.goto(f"{live_stack.base_url}/admin/ops/alert/?q=nothing-has-this")
    expect(phone.get_by_role("heading", name="Nothing fits")).to_be_visible()
    expect(phone.get_by_role("link", name="Reset filters")).to_be_visible()
    expect(phone.get_by_text("Create a new item")).to_have_count(0)
