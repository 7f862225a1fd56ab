"""The page of costs in a real browser: figures, charts and tables follow what is asked for."""

import pytest
from playwright.sync_api import Page, expect

from tests.support.live_stack import LiveStack

pytestmark = pytest.mark.browser

PATH = "/admin/ops/fleetcost/"
SEED = """
from django.utils import timezone
from apps.ops.latency.scopes import floor_to
from tests.ops.costs.hours import HOUR, Hour, seed
start = floor_to(timezone.now(), HOUR) - 30 * HOUR
seed({("costed", "costed-w"): [Hour(tokens=10.0, running=0.25)] * 30}, start)
"""


def test_figures_charts_and_tables_follow_the_question(admin_page: Page, live_stack: LiveStack) -> None:
    live_stack.run_django(SEED)
    page = admin_page
    page.goto(f"{live_stack.base_url}{PATH}?range=24h&deployment=costed")
    hours = page.locator('[data-tile="hours-all"] dd').first
    # The hour that runs is one of the 24, and has no sample.
    expect(hours).to_have_text("23")
    expect(page.locator('[data-tile="share-idle"] dd').first).to_have_text("75 %")
    expect(page.locator('[data-tile="tokens-per_kwh"] dd').first).to_have_text("\u2013")
    expect(page.locator('[data-panel="tokens-per-kwh"]')).to_be_hidden()
    tables = page.locator("#cost-tables")
    expect(tables).to_contain_text("of these 24 hours")
    expect(tables).to_contain_text("Power is not measured here")
    expect(page.locator('[data-table="deployments"] tbody tr')).to_contain_text("no cost given")

    page.locator('input[name="range"][value="7d"]').check()
    expect(hours).to_have_text("30")
    expect(tables).to_contain_text("of these 168 hours")
    expect(page).to_have_url(f"{live_stack.base_url}{PATH}?deployment=costed&range=7d")
    panel = page.locator('[data-panel="hours"]')
    panel.get_by_text("Numbers").click()
    expect(panel.locator("tbody tr")).to_have_count(30)

    with page.expect_download() as download:
        tables.get_by_role("link", name="Export as CSV").first.click()
    assert download.value.suggested_filename == "costs-deployments.csv"
    assert ",30.0," in download.value.path().read_text("utf-8")

    page.go_back()
    expect(hours).to_have_text("23")
    expect(tables).to_contain_text("of these 24 hours")
