"""The latency page in a real browser: figures, charts, and the same as tables."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.live_stack import LiveStack

pytestmark = pytest.mark.browser

PATH = "/admin/ops/latencyhour/"
NEWS_MS = 40_000
"""Pages ask when they are told, and every 15 s where they are not."""

FILE = """
import uuid
from datetime import timedelta
from django.utils import timezone
from apps.ops.latency.live import latency_pages_tell
from apps.tenants.models import Tenant
from headrace_wire.latency.summary import SeriesKey
from tests.support.latencies import latencies_file, summary_of
at = timezone.now() - timedelta(seconds={ago})
tenant = Tenant.objects.get(slug="demo").id.hex
latencies_file(uuid.uuid4().hex, at, {{
    SeriesKey("{name}", tenant): summary_of(ttft=0.3, requests={requests}),
    SeriesKey("{name}-too", tenant): summary_of(ttft=0.1, requests=4),
    SeriesKey("{name}", uuid.uuid4().hex): summary_of(ttft=0.3, requests=1000),
}})
latency_pages_tell()
"""


def file(stack: LiveStack, requests: int, name: str = "drawn", ago: int = 40) -> None:
    """Does what gateways do, and what tells pages of it."""
    stack.run_django(FILE.format(requests=requests, name=name, ago=ago))


def tile(page: Page, name: str) -> Locator:
    return page.locator(f'[data-tile="{name}"] dd').first


def shows(page: Page, name: str, text: str | re.Pattern[str]) -> None:
    """Waits for a figure."""
    expect(tile(page, name)).to_have_text(text, timeout=NEWS_MS)


def panel(page: Page, name: str) -> Locator:
    return page.locator(f'[data-panel="{name}"]')


def drawn(page: Page, name: str) -> list[str]:
    """Returns the lines of a chart that have a point."""
    lines: list[str] = page.evaluate(
        """(name) => Chart.getChart(document.querySelector(`[data-panel="${name}"] canvas`)).data.datasets
          .filter((line) => line.data.some((point) => point.y !== null)).map((line) => line.label)""",
        name,
    )
    return lines


def test_latencies_are_drawn_and_stand_in_tables(admin_page: Page, live_stack: LiveStack) -> None:
    page = admin_page
    file(live_stack, 10)
    page.goto(f"{live_stack.base_url}{PATH}?range=15m&deployment=drawn")
    shows(page, "count-requests", "1,010")
    shows(page, "ttft-p50", re.compile(r"^(29\d|30\d) ms$"))
    expect(page.locator('[data-tile="ttft-p50"]')).to_contain_text("over 200 ms")
    assert drawn(page, "ttft") == ["p50", "p90", "p95", "p99"]
    assert {"Queue", "Prefill"} <= set(drawn(page, "phases"))

    panel(page, "ttft").get_by_role("button", name="p99").click()
    expect(panel(page, "ttft").get_by_role("button", name="p99")).to_have_attribute("aria-pressed", "false")
    panel(page, "ttft").get_by_text("Numbers").click()
    row = panel(page, "ttft").locator("tbody tr").first
    expect(row).to_contain_text(re.compile(r"(29\d|30\d) ms"))
    expect(row.get_by_role("link", name="Ended streams")).to_be_visible()
