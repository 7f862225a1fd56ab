"""Guardrails in a real browser: somebody who never saw them masks card numbers, and tries it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.conftest import CARD, CARD_ANSWER
from tests.support.live_stack import LiveStack

pytestmark = pytest.mark.browser

ANSWER_MS = 60_000
RELOADS = 60
FORGET = """
from apps.guardrails.models import GuardrailPolicy
GuardrailPolicy.all_tenants.filter(name__startswith="Browser: ").delete()
from apps.tenants.snapshots import snapshot_publish
snapshot_publish()
"""


@pytest.fixture(autouse=True)
def _forgotten(live_stack: LiveStack) -> Iterator[None]:
    """Other tests share the stack: what was made here does not act on their answers."""
    yield
    live_stack.run_django(FORGET)


@pytest.fixture(scope="module")
def _celery(live_stack: LiveStack) -> Iterator[None]:
    """Celery stores interventions."""
    process = live_stack.start_celery()
    yield
    process.stop()


def rule(page: Page, number: int) -> Locator:
    """The form of one rule, without the hidden one that new ones are made from."""
    return page.locator("#rules-data .form-group:not(.empty-form)").nth(number)


def add_card_mask(page: Page, live_stack: LiveStack, name: str) -> None:
    """From the start page to a saved policy, by what one sees."""
    page.goto(f"{live_stack.base_url}/admin/")
    page.get_by_role("link", name=re.compile(r"^shield\s+Policies$")).click()
    page.locator("a[href$='guardrailpolicy/add/']:visible").first.click()
    page.get_by_label("Name").first.fill(name)
    page.get_by_label("Mode").select_option(label="Enforced")
    expect(rule(page, 0).get_by_label("Words and phrases")).to_be_hidden()
    rule(page, 0).get_by_label("Card numbers").select_option(label="mask")


@contextmanager
def asking(admin_page: Page, live_stack: LiveStack) -> Iterator[Page]:
    """The chat, in a window of its own, of somebody who may use it and asks for a card number."""
    browser = admin_page.context.browser
    assert browser is not None
    page = browser.new_context(base_url=live_stack.base_url).new_page()
    page.goto("/")
    page.get_by_label("Email").fill(live_stack.user.email)
    page.get_by_label("Password").fill(live_stack.user.password)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Model").select_option("teller")
    page.get_by_label("Message", exact=True).fill("Which card did I name?")
    page.keyboard.press("Enter")
    yield page
    page.context.close()


def test_a_newcomer_masks_card_numbers_and_tries_it(admin_page: Page, live_stack: LiveStack) -> None:
    page = admin_page
    add_card_mask(page, live_stack, "Browser: cards")
    with page.expect_popup() as opened:
        page.get_by_role("button", name="Try on the test bench without saving").click()
    bench = opened.value
    bench.get_by_label("Text", exact=True).fill(f"Pay with {CARD} today.")
    bench.get_by_role("button", name="Judge it").click()
    expect(bench.locator("#result")).to_have_text("Pay with ⟦CREDIT_CARD⟧ today.")
    bench.close()

    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("link", name="Browser: cards").first.click()
    page.get_by_role("link", name="Test bench").click()
    page.get_by_label("Text", exact=True).fill(f"Pay with {CARD} today.")
    page.get_by_role("button", name="Judge it").click()
    expect(page.locator("#verdict")).to_have_text("Passes, masked.")
    expect(page.locator("#result")).to_have_text("Pay with ⟦CREDIT_CARD⟧ today.")
    expect(page.locator("#findings")).to_contain_text(CARD)

    with asking(admin_page, live_stack) as chat:
        answer = chat.locator(".message.assistant[data-state=complete]:last-child .body")
        expect(answer).to_have_text(CARD_ANSWER.replace(CARD, "⟦CREDIT_CARD⟧"), timeout=ANSWER_MS)
        assert "1111" not in chat.content()


@pytest.mark.usefixtures("_celery")
def test_a_shadow_changes_nothing_and_is_recorded(admin_page: Page, live_stack: LiveStack) -> None:
    page = admin_page
    add_card_mask(page, live_stack, "Browser: shadow")
    page.get_by_label("Mode").select_option(label="Shadow: records, changes nothing")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("was added successfully")).to_be_visible()
    with asking(admin_page, live_stack) as chat:
        answer = chat.locator(".message.assistant[data-state=complete]:last-child .body")
        expect(answer).to_have_text(CARD_ANSWER, timeout=ANSWER_MS)
    page.goto(f"{live_stack.base_url}/admin/guardrails/intervention/?is_shadow__exact=1")
    rows = page.locator("#result_list tbody tr").filter(has_text="Browser: shadow")
    for _ in range(RELOADS):
        if rows.count():
            break
        page.wait_for_timeout(500)
        page.reload()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("CREDIT_CARD")
    expect(rows).to_contain_text("4…1 (19 characters)")
    rows.locator(".action-select").check()
    page.get_by_label("Select action to run").select_option(label="Mark as false positive")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text("1 intervention is marked.")).to_be_visible()


def test_a_rule_shows_the_fields_of_its_kind(admin_page: Page, live_stack: LiveStack) -> None:
    page = admin_page
    page.goto(f"{live_stack.base_url}/admin/guardrails/guardrailpolicy/add/")
    first, second = rule(page, 0), rule(page, 1)
    expect(first.get_by_label("Card numbers")).to_be_visible()
    first.get_by_label("Looks for").select_option(label="Words and phrases")
    expect(first.get_by_label("Card numbers")).to_be_hidden()
    first.get_by_label("Words and phrases", exact=True).fill("blue moon")
    page.get_by_role("link", name="Add another Rule").click()
    expect(second.get_by_label("Card numbers")).to_be_visible()
    second.get_by_label("Looks for").select_option(label="Regular expressions")
    second.get_by_label("Patterns").fill("(a")
    page.get_by_label("Name").first.fill("Browser: broken")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Pattern 1")).to_be_visible()
    page.locator("summary").filter(has_text="judge windows").click()
    page.get_by_label("Chunk size").fill("32")
    expect(page.locator("#hold-back")).to_contain_text("32 tokens at 40 ms are 1.3 s")
