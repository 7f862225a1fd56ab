"""The chat page itself in a real Chromium: scrolling, the keyboard, how text is drawn, a phone, signing out."""

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.chat.page_steps import WATCH, OpenPage, last_answer, send, wait_for_growth
from tests.e2e.conftest import MARKDOWN
from tests.support.live_stack import LiveStack

pytestmark = pytest.mark.browser


PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}


def test_reader_who_scrolled_up_is_left_alone(open_page: OpenPage) -> None:
    page = open_page()
    page.set_viewport_size({"width": 420, "height": 420})
    page.evaluate(WATCH)
    thread = page.get_by_role("region", name="Messages")
    from_end = "e => Math.round(e.scrollHeight - e.clientHeight - e.scrollTop)"
    send(page, "line\n" * 20, model="slow")
    wait_for_growth(page)
    assert thread.evaluate(from_end) <= 2, "the page does not follow the answer"
    thread.hover()
    page.mouse.wheel(0, -300)
    jump = page.get_by_role("button", name="Go to the latest message")
    expect(jump).to_be_visible()
    place = thread.evaluate("e => e.scrollTop")
    height = thread.evaluate("e => e.scrollHeight")
    grown = re.compile(f"^.{{{len(page.locator('.live').inner_text()) + 150},}}$", re.DOTALL)
    expect(page.locator(".live")).to_have_text(grown)
    assert thread.evaluate("e => e.scrollHeight") > height
    assert thread.evaluate("e => e.scrollTop") == place
    jump.click()
    expect(jump).to_be_hidden()
    assert thread.evaluate(from_end) <= 2
    page.get_by_role("button", name="Stop the answer").click()
    expect(last_answer(page, "stopped")).to_be_visible()


def test_keyboard_alone_is_enough(open_page: OpenPage) -> None:
    page = open_page()
    page.get_by_label("Model").select_option("quick")
    field = page.get_by_label("Message", exact=True)
    field.focus()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    expect(field).to_have_value("one\ntwo")
    page.keyboard.press("Enter")
    expect(field).to_have_value("")
    expect(page.locator(".message.user .text")).to_have_text("one\ntwo")
    expect(last_answer(page, "complete")).to_be_visible()
    # A draft outlives a reload.
    page.keyboard.type("a draft")
    page.reload()
    expect(field).to_have_value("a draft")


def test_live_text_costs_the_same_at_every_token(open_page: OpenPage) -> None:
    """FIELD 10. Each token may touch what it adds; what stands already is touched once more, when its block ends."""
    page = open_page()
    touched = page.evaluate(
        """async () => {
          const { LiveText } = await import("/static/chat/live_text.js");
          const box = document.body.appendChild(document.createElement("div"));
          const live = new LiveText(box);
          const seen = [];
          const observer = new MutationObserver(() => {});
          observer.observe(box, { subtree: true, childList: true, characterData: true });
          for (let token = 0; token < 10000; token++) {
            live.append(token % 50 === 49 ? "\\n\\n" : `word${token} `);
            seen.push(observer.takeRecords().length);
          }
          box.remove();
          const sum = (part) => part.reduce((a, b) => a + b, 0);
          return [sum(seen.slice(0, 1000)), sum(seen.slice(-1000)), Math.max(...seen)];
        }"""
    )
    first, last, most = touched
    assert last <= first
    assert most <= 4


@pytest.mark.parametrize("seed", range(5))
def test_live_text_does_not_depend_on_how_it_was_cut(open_page: OpenPage, seed: int) -> None:
    page = open_page()
    whole, cut = page.evaluate(
        """async ([text, seed]) => {
          const { LiveText } = await import("/static/chat/live_text.js");
          const render = (parts) => {
            const box = document.createElement("div");
            const live = new LiveText(box);
            parts.forEach((part) => live.append(part));
            live.finish();
            return box.innerHTML;
          };
          let x = seed + 1;
          const parts = [];
          for (let at = 0; at < text.length; ) {
            x = (x * 1103515245 + 12345) % 2147483648;
            const length = seed === 0 ? 1 : 1 + (x % 7);
            parts.push(text.slice(at, at + length));
            at += length;
          }
          return [render([text]), render(parts)];
        }""",
        [MARKDOWN + "\n1. first\n2. second\n* star *emphasis*\n####### no heading\n``no fence\n~~~\n`", seed],
    )
    assert cut == whole
    assert "<script" not in whole
    assert "<h1" not in whole


def test_phone_in_the_dark(browser: Browser, live_stack: LiveStack, session_state: Any, open_page: OpenPage) -> None:
    phone = browser.new_context(base_url=live_stack.base_url, storage_state=session_state, color_scheme="dark", **PHONE)
    page = open_page(within=phone)
    send(page, "On the road", model="quick")
    expect(last_answer(page, "complete")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in re.findall(r"\d+", background)[:3]) < 64
    sidebar = page.get_by_role("complementary", name="Conversations")
    expect(sidebar).to_be_hidden()
    page.get_by_role("button", name="Open the list of conversations").tap()
    expect(sidebar).to_be_in_viewport()
    page.get_by_role("button", name="New conversation").tap()
    expect(sidebar).to_be_hidden()
    expect(page.get_by_text("What would you like to work on?")).to_be_visible()
    phone.close()


def test_signing_out_ends_it(browser: Browser, live_stack: LiveStack) -> None:
    context = browser.new_context(base_url=live_stack.base_url)
    page = context.new_page()
    page.goto("/")
    page.get_by_label("Email").fill(live_stack.admin.email)
    page.get_by_label("Password").fill(live_stack.admin.password)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("link", name="Administration")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/accounts/login/**")
    page.goto("/")
    expect(page.get_by_label("Password")).to_be_visible()
    context.close()
