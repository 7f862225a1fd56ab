"""The admin in a real browser: sign-in, a key shown once, workers that come and go before one's eyes."""

import re
import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.support.live_stack import LiveStack

pytestmark = pytest.mark.browser

LEASE_AND_MIRROR_MS = 120_000
"""A killed worker's lease ends, then Celery's next look marks it."""


@pytest.fixture(scope="module")
def _celery(live_stack: LiveStack) -> Iterator[None]:
    """Celery mirrors workers."""
    process = live_stack.start_celery()
    yield
    process.stop()


@pytest.fixture
def page(admin_page: Page) -> Page:
    return admin_page


def test_a_key_made_here_works_until_it_is_revoked(page: Page, live_stack: LiveStack) -> None:
    page.goto(f"{live_stack.base_url}/admin/accounts/apikey/add/")
    page.get_by_label("Name").fill("made in a browser")
    page.locator("#id_tenant + .select2").click()
    page.get_by_role("option", name="Demo").click()
    page.get_by_role("button", name="Save", exact=True).click()
    key = page.locator("#api-key").inner_text()
    assert re.fullmatch(r"sk-hr-[a-z0-9]{12}-[A-Za-z0-9]{40}", key)

    def status() -> int:
        answer = page.request.get(f"{live_stack.base_url}/v1/models", headers={"Authorization": f"Bearer {key}"})
        return answer.status

    def becomes(wanted: int) -> None:
        for _ in range(300):
            if status() == wanted:
                return
            page.wait_for_timeout(100)
        assert status() == wanted

    becomes(200)
    page.get_by_role("link", name="Done").click()
    page.get_by_role("link", name="made in a browser").click()
    assert key not in page.content()
    page.get_by_role("link", name="Revoke").click()
    page.get_by_role("button", name="Revoke API key").click()
    expect(page.get_by_text("The key is revoked")).to_be_visible()
    becomes(401)


@pytest.mark.usefixtures("_celery")
def test_workers_come_and_go_without_a_reload(page: Page, live_stack: LiveStack) -> None:
    page.goto(f"{live_stack.base_url}/admin/deployments/worker/?q=quick")
    rows = page.locator("#result_list tbody tr")
    expect(rows).to_have_count(1, timeout=LEASE_AND_MIRROR_MS)
    page.evaluate("window.notReloaded = true")
    chosen = rows.first.locator(".action-select")
    chosen.check()

    second = live_stack.start_worker("quick")
    expect(rows).to_have_count(2, timeout=LEASE_AND_MIRROR_MS)
    second.send_signal(signal.SIGKILL)
    expect(rows.filter(has_text=str(second.pid))).to_contain_text("Lost", timeout=LEASE_AND_MIRROR_MS)
    third = live_stack.start_worker("quick")
    expect(rows).to_have_count(3, timeout=LEASE_AND_MIRROR_MS)
    third.send_signal(signal.SIGTERM)
    expect(rows.filter(has_text=str(third.pid))).to_contain_text("Ended", timeout=LEASE_AND_MIRROR_MS)
    expect(chosen).to_be_checked()
    assert page.evaluate("window.notReloaded")


FILL_LEDGER = """
import time
from apps.tenants.models import Tenant
from apps.usage.services import usage_record
from headrace_wire.messages import FinishReason, StreamState
from headrace_wire.usage_events import UsageEvent
tenant, now = Tenant.objects.get(slug="demo").id.hex, int(time.time() * 1000)
usage_record(events=[
    UsageEvent(stream_id=f"strm-drawn-{day}-{name}", tenant_id=tenant, deployment=name, state=StreamState.FINISHED,
        finish_reason=FinishReason.STOP, prompt_tokens=100 * day, completion_tokens=50, cost_micros=250_000 * day,
        admitted_ms=now - day * 86_400_000, ended_ms=now)
    for day in range(1, 6) for name in ("drawn", "large")
])
print(tenant)
"""


def test_usage_is_drawn_as_charts_and_exported(page: Page, live_stack: LiveStack) -> None:
    tenant = live_stack.run_django(FILL_LEDGER).split()[-1]
    page.goto(f"{live_stack.base_url}/admin/usage/usagerecord/overview?tenant={tenant}&days=30")
    expect(page.locator("#parts")).to_contain_text("drawn")
    page.wait_for_function("[...document.querySelectorAll('canvas.chart')].every((c) => Chart.getChart(c))")
    drawn = page.evaluate(
        "[...document.querySelectorAll('canvas.chart')].map((c) => Chart.getChart(c).data.labels.length)"
    )
    assert drawn == [30, 30]
    page.get_by_label("Split by").select_option("api_key")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#parts")).to_contain_text("chat")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export as CSV").click()
    text = download.value.path().read_text()
    assert text.splitlines()[0].startswith("bucket,start_at,tenant_id,tenant_name")
    assert text.count(",drawn,") == 5
