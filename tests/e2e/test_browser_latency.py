"""The latency pages in a real browser: drawn, filtered, kept current, clicked, on a desk and on a phone."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.support.live_stack import LiveStack

pytestmark = pytest.mark.browser

PATH = "/admin/ops/latencyhour/"
NEWS_MS = 120_000
"""Pages ask when they are told, and every 15 s where they are not."""
KNOWN = re.compile(r"\d")

FILE = """
import uuid
from datetime import timedelta
from django.utils import timezone
from apps.ops.latency.live import latency_pages_tell
from apps.tenants.models import Tenant
from headrace_wire.latency.summary import SeriesKey
from tests.support.latencies import latencies_file, summary_of
tenant = Tenant.objects.get(slug="demo").id.hex
for name, own, others, ago in {rows}:
    series = {{SeriesKey(name, tenant): summary_of(ttft=0.3, requests=own)}}
    if others:
        series[SeriesKey(name, uuid.uuid4().hex)] = summary_of(ttft=0.3, requests=others)
    latencies_file(uuid.uuid4().hex, timezone.now() - timedelta(seconds=ago), series)
latency_pages_tell()
"""
"""What gateways do, and what tells pages of it. A row: deployment, requests of the demo tenant, of another, age."""
ROWS = [
    ("drawn", 10, 1000, 40),
    ("drawn-too", 4, 0, 40),
]


@pytest.fixture(scope="module", autouse=True)
def _filed(live_stack: LiveStack) -> None:
    live_stack.run_django(FILE.format(rows=ROWS))


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


def points(page: Page, name: str) -> list[dict[str, float]]:
    """Returns where on a chart's canvas the points of its first line are, in their order."""
    found: list[dict[str, float]] = page.evaluate(
        """(name) => {
          const chart = Chart.getChart(document.querySelector(`[data-panel="${name}"] canvas`));
          chart.update("none");
          const drawn = chart.getDatasetMeta(0).data, told = chart.data.datasets[0].data;
          return told.flatMap(({ y }, index) => y === null ? [] : [{ x: drawn[index].x, y: drawn[index].y }]);
        }""",
        name,
    )
    return found


def choose(page: Page, label: str, value: str) -> None:
    """Chooses what a list may not offer: nobody deployed what these tests draw."""
    page.get_by_label(label, exact=True).evaluate("(field, value) => field.add(new Option(value, value))", value)
    page.get_by_label(label, exact=True).select_option(value)


@pytest.fixture
def phone(browser: Browser, live_stack: LiveStack) -> Iterator[Page]:
    """A member on a phone, who has just signed in; a script error fails the test."""
    errors: list[str] = []
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, color_scheme="dark")
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{live_stack.base_url}/account/")
    page.get_by_label("Email").fill(live_stack.user.email)
    page.get_by_label("Password").fill(live_stack.user.password)
    page.get_by_role("button", name="Sign in").click()
    yield page
    context.close()
    assert errors == []


def test_latencies_are_drawn_and_stand_in_tables(admin_page: Page, live_stack: LiveStack) -> None:
    page = admin_page
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


def test_what_is_chosen_stands_in_the_address_and_comes_back(admin_page: Page, live_stack: LiveStack) -> None:
    page = admin_page
    page.goto(f"{live_stack.base_url}{PATH}?range=15m&deployment=drawn")
    shows(page, "count-requests", "1,010")
    page.evaluate("window.notReloaded = true")
    choose(page, "Deployment", "drawn-too")
    shows(page, "count-requests", "4")
    assert "deployment=drawn-too" in page.url
    page.go_back()
    shows(page, "count-requests", "1,010")
    expect(page.get_by_label("Deployment", exact=True)).to_have_value("drawn")
    page.get_by_role("button", name="Earlier").click()
    status = page.locator(".lt-state [role=status]")
    expect(status).to_contain_text("No requests in this time.", timeout=NEWS_MS)
    page.get_by_role("button", name="Now", exact=True).click()
    shows(page, "count-requests", "1,010")
    assert page.evaluate("window.notReloaded")


def test_a_choice_made_before_the_script_is_there_is_kept(admin_page: Page, live_stack: LiveStack) -> None:
    page = admin_page

    def choose_and_go_on(script: Route) -> None:
        page.get_by_role("radio", name="15 min").check()
        script.continue_()

    page.route("**/latency/dashboard*.js", choose_and_go_on)
    page.goto(f"{live_stack.base_url}{PATH}?deployment=drawn")
    expect(page).to_have_url(re.compile("range=15m"))
    shows(page, "count-requests", "1,010")
    page.unroute("**/latency/dashboard*.js")


def test_another_time_is_drawn_beside_it(admin_page: Page, live_stack: LiveStack) -> None:
    page = admin_page
    live_stack.run_django(FILE.format(rows=[("beside", 8, 0, 40), ("beside", 2, 0, 3000)]))
    page.goto(f"{live_stack.base_url}{PATH}?range=15m&deployment=beside")
    shows(page, "count-requests", "8")
    field = page.get_by_label("Which ended at")
    expect(field).to_be_hidden()
    page.get_by_label("Compare with").select_option(label="another time")
    expect(field).not_to_have_value("")
    earlier = page.evaluate(
        """(milliseconds) => {
          const at = new Date(Date.now() - milliseconds);
          return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
        }""",
        2_700_000,
    )
    field.fill(earlier)
    expect(page).to_have_url(re.compile(r"compare=other&other=\d"))
    expect(page.locator('[data-tile="count-requests"] .lt-change')).to_have_text("4 times as much", timeout=NEWS_MS)
    assert "p50, before" in drawn(page, "ttft")
    page.get_by_label("Compare with").select_option("")
    expect(field).to_be_hidden()
    assert "other" not in page.url


def test_what_is_measured_comes_to_an_open_page(admin_page: Page, live_stack: LiveStack) -> None:
    page = admin_page
    with page.expect_websocket(lambda socket: "hear=latency" in socket.url) as heard:
        page.goto(f"{live_stack.base_url}{PATH}?range=15m&deployment=new")
    expect(page.locator(".lt-state [role=status]")).to_contain_text("No requests in this time.")
    page.evaluate("window.notReloaded = true")
    with heard.value.expect_event("framereceived", lambda frame: "latency.rolled" in str(frame), timeout=NEWS_MS):
        live_stack.run_django(FILE.format(rows=[("new", 7, 0, 20)]))
    shows(page, "count-requests", "7")
    assert drawn(page, "ttft") == ["p50", "p90", "p95", "p99"]
    assert page.evaluate("window.notReloaded")


@pytest.mark.parametrize(
    ("age", "which", "there"),
    [
        (15, -1, r"/admin/ops/livestream/\?deployment=clicked$"),
        (600, 0, r"/admin/usage/usagerecord/\?deployment_label=clicked&ended_at__gte=\d"),
    ],
    ids=["of now", "of before"],
)
def test_a_click_on_a_point_leads_to_its_streams(
    admin_page: Page, live_stack: LiveStack, age: int, which: int, there: str
) -> None:
    page = admin_page
    live_stack.run_django(FILE.format(rows=[("clicked", 3, 0, age)]))
    # A time that is past stands still, so that the point is where it was when it is clicked.
    end = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    page.goto(f"{live_stack.base_url}{PATH}?range=15m&deployment=clicked&end={end}")
    shows(page, "ttft-p50", KNOWN)
    at = points(page, "ttft")[which]
    panel(page, "ttft").locator("canvas").click(position={"x": at["x"], "y": at["y"]})
    expect(page).to_have_url(re.compile(there))
    expect(page.locator("#changelist, #streams").first).to_be_attached()


def test_a_member_sees_the_own_tenant_on_a_phone(phone: Page, live_stack: LiveStack) -> None:
    phone.goto(f"{live_stack.base_url}/account/")
    phone.get_by_role("link", name="How fast answers are").click()
    phone.get_by_role("radio", name="15 min").check()
    expect(phone).to_have_url(re.compile("range=15m"))
    shows(phone, "ttft-p50", KNOWN)
    asked = phone.evaluate("fetch('/account/latency/numbers?range=15m').then((answer) => answer.json())")
    assert 0 < asked["totals"]["count.requests"] < 1000, "nothing of the other tenant"
    assert phone.evaluate("document.documentElement.scrollWidth") == 390
    expect(panel(phone, "kv")).to_have_count(0)
    canvas = panel(phone, "requests").locator("canvas")
    canvas.scroll_into_view_if_needed()
    at = points(phone, "requests")[-1]
    canvas.tap(position={"x": at["x"], "y": at["y"]})
    point = panel(phone, "requests").locator(".lt-point")
    expect(point).to_contain_text(re.compile(r"\d\d:\d\d:\d\d \u2013 .*: Requests "))


def test_what_cannot_be_read_is_told_and_tried_again(admin_page: Page, live_stack: LiveStack) -> None:
    page = admin_page
    page.route("**/numbers/*", lambda route: route.fulfill(status=503, json={"problem": "away"}))
    page.goto(f"{live_stack.base_url}{PATH}?range=15m&deployment=drawn")
    state = page.locator(".lt-state")
    expect(state).to_have_attribute("data-kind", "error")
    expect(state).to_contain_text("cannot be read at the moment (503). Trying again every 10 s.")
    page.unroute("**/numbers/*")
    expect(state).not_to_have_attribute("data-kind", "error", timeout=NEWS_MS)
    shows(page, "count-requests", "1,010")
