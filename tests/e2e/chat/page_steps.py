"""What a person does with the chat page."""

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

# Watches the last answer on its way: the lengths of its text, and what its note said, in order.
WATCH = """() => {
  window.lengths = [];
  window.notes = [];
  new MutationObserver(() => {
    const last = document.querySelector(".message.assistant:last-child");
    if (!last) return;
    const length = last.querySelector(".live")?.textContent.length;
    if (length !== undefined && length !== window.lengths.at(-1)) window.lengths.push(length);
    document.body.classList.toggle("has-grown", window.lengths.length > 3);
    const note = last.querySelector(".note:not([hidden])")?.textContent;
    if (note && note !== window.notes.at(-1)) window.notes.push(note);
  }).observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
}"""

OpenPage = Callable[..., Page]


def send(page: Page, text: str, *, model: str | None = None) -> None:
    if model is not None:
        page.get_by_label("Model").select_option(model)
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def last_answer(page: Page, state: str) -> Any:
    return page.locator(f".message.assistant[data-state={state}]:last-child")


def wait_for_growth(page: Page) -> None:
    """Returns when the answer on its way has grown several times. The page's policy forbids conditions in strings."""
    expect(page.locator("body.has-grown")).to_be_attached()


def conversation_path(page: Page) -> str:
    page.wait_for_url(re.compile(r"/c/[0-9a-f-]{36}$"))
    return "/" + page.url.split("/", 3)[3]
