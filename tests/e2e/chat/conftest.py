"""Signed-in windows on the chat page of the live stack."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from tests.e2e.chat.page_steps import OpenPage
from tests.support.live_stack import LiveStack


@pytest.fixture(scope="module")
def session_state(browser: Browser, live_stack: LiveStack) -> Any:
    """The cookies of the signed-in demo user, signed in by hand."""
    context = browser.new_context(base_url=live_stack.base_url)
    page = context.new_page()
    page.goto("/")
    page.get_by_label("Email").fill(live_stack.user.email)
    page.get_by_label("Password").fill(live_stack.user.password)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture
def problems() -> list[str]:
    """What the pages of a test complained about; checked at its end."""
    return []


@pytest.fixture
def context(browser: Browser, live_stack: LiveStack, session_state: Any) -> Iterator[BrowserContext]:
    """A window in which the demo user is signed in."""
    context = browser.new_context(
        base_url=live_stack.base_url, storage_state=session_state, viewport={"width": 1280, "height": 820}
    )
    context.set_default_timeout(60_000)
    yield context
    context.close()


@pytest.fixture
def open_page(context: BrowserContext, problems: list[str]) -> Iterator[OpenPage]:
    """Opens tabs that note every error of a script; none may be there in the end."""

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(message.text)

    def open_tab(path: str = "/", *, within: BrowserContext | None = None) -> Page:
        page = (within or context).new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", note)
        page.goto(path)
        return page

    yield open_tab
    assert problems == []
