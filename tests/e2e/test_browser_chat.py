"""The chat page in a real Chromium, over the live stack: streaming, stop, reload, history, a second tab, a phone."""

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Route, WebSocket, expect

from tests.e2e.conftest import MARKDOWN
from tests.support.live_stack import LiveStack
from tests.support.stream_probe import StreamProbe

pytestmark = pytest.mark.browser
expect.set_options(timeout=20_000)

PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}

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
    context.set_default_timeout(20_000)
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


def test_answer_grows_and_ends_as_safe_html(open_page: OpenPage) -> None:
    page = open_page()
    page.evaluate(WATCH)
    send(page, "What is a headrace?", model="quick")
    expect(last_answer(page, "complete")).to_be_visible()
    lengths = page.evaluate("window.lengths")
    assert len(lengths) >= 5, f"the text did not grow in steps: {lengths}"
    assert lengths[-1] > 200
    body = last_answer(page, "complete").locator(".body")
    expect(body.locator("h1")).to_have_text("A short answer")
    expect(body.locator("strong")).to_have_text("leads")
    expect(body.locator("pre code")).to_contain_text("return x * 2")
    expect(body.locator("td")).to_have_count(4)
    expect(body.locator("li").last).to_have_text("two 🌊 สวัสดี 👩‍👩‍👧 漢字")
    expect(body.locator("script, img, a[href^=javascript]")).to_have_count(0)
    assert page.evaluate("window.hacked") is None
    expect(page.get_by_role("heading", name="What is a headrace?")).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("The answer is complete.")


def test_stopped_shows_only_after_the_streams_end(open_page: OpenPage) -> None:
    frames: list[str] = []
    sent: list[str] = []

    def listen(socket: WebSocket) -> None:
        socket.on("framesent", lambda payload: sent.append(str(payload)))
        socket.on("framereceived", lambda payload: frames.append(str(payload)))

    page = open_page()
    page.on("websocket", listen)
    page.reload()
    page.evaluate(WATCH)
    send(page, "Write for long.", model="slow")
    wait_for_growth(page)
    page.get_by_role("button", name="Stop the answer").click()
    expect(last_answer(page, "stopped")).to_be_visible()
    assert page.evaluate("window.notes") == ["Stopping…", "Stopped"]
    ends = [frame for frame in frames if '"type":"end"' in frame]
    assert len(ends) == 1
    assert '"state":"cancelled"' in ends[0]
    acknowledged = [json.loads(frame)["seq"] for frame in sent if '"type":"ack"' in frame]
    assert acknowledged
    assert acknowledged == sorted(set(acknowledged))
    length = len(last_answer(page, "stopped").locator(".body").inner_text())
    assert length < 3_000, "the answer went on"
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_reload_in_mid_answer_goes_on_from_the_start(open_page: OpenPage) -> None:
    page = open_page()
    page.evaluate(WATCH)
    send(page, "Write for long, please.", model="slow")
    path = conversation_path(page)
    wait_for_growth(page)
    before = page.locator(".live").inner_text()
    page.reload()
    page.evaluate(WATCH)
    wait_for_growth(page)
    after = page.locator(".live").inner_text()
    assert after.startswith(before[:-1])
    page.keyboard.press("Tab")
    page.get_by_role("button", name="Stop the answer").click()
    expect(last_answer(page, "stopped")).to_be_visible()
    stored = last_answer(page, "stopped").locator(".body").inner_text()
    page.goto("/")
    page.goto(path)
    expect(last_answer(page, "stopped").locator(".body")).to_have_text(stored)
    expect(page.locator(".message.user .text")).to_have_text("Write for long, please.")


def test_reloads_at_random_points_change_no_byte(open_page: OpenPage, live_stack: LiveStack) -> None:
    probe, rng = StreamProbe(live_stack.redis_url), random.Random(20261130)
    known = probe.stream_ids()
    page = open_page()
    page.evaluate(WATCH)
    send(page, "Write while I reload.", model="slow")
    conversation_id = conversation_path(page).removeprefix("/c/")
    wait_for_growth(page)
    (stream_id,) = probe.stream_ids() - known
    live = page.locator(".live")
    for _ in range(5):
        more = len(live.inner_text()) + rng.randrange(1, 120)
        expect(live).to_have_text(re.compile(f"^.{{{more},}}$", re.DOTALL))
        page.reload()
        expect(live).to_have_text(re.compile(f"^.{{{more},}}$", re.DOTALL))
        shown = live.text_content()
        assert shown
        assert probe.text(stream_id).startswith(shown.rstrip())
    page.get_by_role("button", name="Stop the answer").click()
    expect(last_answer(page, "stopped")).to_be_visible()
    code = (
        "from apps.chat.models import Message\n"
        f"answer = Message.all_tenants.get(conversation_id='{conversation_id}', role='assistant')\n"
        "import json; print(json.dumps(answer.content))"
    )
    assert json.loads(live_stack.run_django(code).splitlines()[-1]) == probe.text(stream_id)


def test_answer_survives_the_death_of_its_gateway(
    open_page: OpenPage, live_stack: LiveStack, problems: list[str]
) -> None:
    page = open_page()
    page.evaluate(WATCH)
    send(page, "Write, and lose the line.", model="slow")
    wait_for_growth(page)
    live_stack.kill_gateway()
    expect(page.get_by_text("The connection is lost.")).to_be_visible()
    shown = page.locator(".live").inner_text()
    live_stack.start_gateway()
    expect(page.locator(".live")).to_have_text(re.compile(f"^.{{{len(shown) + 20},}}$", re.DOTALL))
    expect(page.get_by_text("The connection is lost.")).to_be_hidden()
    page.get_by_role("button", name="Stop the answer").click()
    expect(last_answer(page, "stopped")).to_be_visible()
    # What was shown before stands at its start, and every word of the simulated engine is there once.
    stored = last_answer(page, "stopped").locator(".body").inner_text()
    assert stored.startswith(shown.strip())
    problems[:] = [problem for problem in problems if "ERR_CONNECTION_REFUSED" not in problem]


def test_answer_is_stored_when_the_browser_has_gone(open_page: OpenPage, live_stack: LiveStack) -> None:
    live_stack.start_celery()
    page = open_page()
    send(page, "I will not wait.", model="quick")
    conversation_id = conversation_path(page).removeprefix("/c/")
    page.close()
    code = (
        "from apps.chat.models import Message\n"
        f"answer = Message.all_tenants.get(conversation_id='{conversation_id}', role='assistant')\n"
        "import json; print(json.dumps([answer.state, answer.content]))"
    )
    deadline = time.monotonic() + 40
    state, content = "streaming", ""
    while state == "streaming" and time.monotonic() < deadline:
        state, content = json.loads(live_stack.run_django(code).splitlines()[-1])
    assert (state, content) == ("complete", MARKDOWN)


def test_second_tab_follows(open_page: OpenPage) -> None:
    first, second = open_page(), open_page()
    send(first, "A matter for two tabs", model="quick")
    path = conversation_path(first)
    row = second.get_by_role("link", name="A matter for two tabs")
    expect(row).to_be_visible()
    row.click()
    second.wait_for_url(f"**{path}")
    expect(last_answer(second, "complete")).to_be_visible()
    expect(last_answer(first, "complete")).to_be_visible()
    # The next turn shows in the tab that only looks on, while it is being written.
    second.evaluate(WATCH)
    send(first, "And another one")
    expect(second.locator(".message.user .text").last).to_have_text("And another one")
    expect(last_answer(second, "complete")).to_be_visible()
    assert len(second.evaluate("window.lengths")) >= 3

    row.hover()
    second.get_by_role("button", name="Rename or delete “A matter for two tabs”").click()
    second.get_by_role("button", name="Rename", exact=True).click()
    second.get_by_label("Title").fill("Another name")
    second.keyboard.press("Enter")
    expect(first.get_by_role("heading", name="Another name")).to_be_visible()
    first.get_by_role("button", name="Rename or delete “Another name”").click()
    first.get_by_role("button", name="Delete", exact=True).click()
    first.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(second.get_by_role("link", name="Another name")).to_have_count(0)
    expect(second.get_by_role("heading", name="New conversation")).to_be_visible()
    expect(first).to_have_url(re.compile(r"/$"))


def test_refused_message_comes_back_into_the_field(open_page: OpenPage, problems: list[str]) -> None:
    page = open_page()
    page.get_by_label("Model").select_option("quick")
    page.evaluate("document.querySelector('#model option:checked').value = 'gone'")
    send(page, "Keep this text.")
    expect(page.get_by_role("alert")).to_contain_text("The model `gone` does not exist")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Keep this text.")
    expect(page.locator(".message")).to_have_count(0)
    page.get_by_label("Model").select_option("slow")
    page.get_by_label("Model").select_option(index=0)
    page.get_by_label("Model").select_option("slow")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".message.user .text")).to_have_text("Keep this text.")
    page.get_by_role("button", name="Stop the answer").click()
    expect(last_answer(page, "stopped")).to_be_visible()
    problems[:] = [problem for problem in problems if "404" not in problem]


def test_long_conversation_goes_on_without_its_beginning(open_page: OpenPage, problems: list[str]) -> None:
    page = open_page()
    send(page, "a" * 120, model="small")
    expect(last_answer(page, "complete")).to_be_visible()
    expect(page.get_by_text("its beginning was left out")).to_have_count(0)
    send(page, "b" * 120)
    expect(page.get_by_text("its beginning was left out")).to_be_visible()
    # What does not fit even alone is refused, stays on the page, and can be tried with another model.
    send(page, "c" * 300)
    expect(last_answer(page, "failed")).to_contain_text("maximum context length is 200 tokens")
    expect(page.locator(".message.user .text").last).to_have_text("c" * 300)
    page.get_by_label("Model").select_option("quick")
    page.get_by_role("button", name="Try again").click()
    expect(last_answer(page, "complete").locator("h1")).to_have_text("A short answer")
    problems[:] = [problem for problem in problems if "400" not in problem]


def test_unanswered_request_is_sent_again_as_the_same_turn(
    open_page: OpenPage, context: BrowserContext, problems: list[str]
) -> None:
    page = open_page()
    page.get_by_label("Model").select_option("quick")

    def lose_the_response(route: Route) -> None:
        route.fetch()
        route.abort()

    context.route("**/turns", lose_the_response)
    send(page, "Did it arrive?")
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")
    context.unroute("**/turns")
    page.get_by_role("button", name="Try again").click()
    expect(last_answer(page, "complete")).to_be_visible()
    expect(page.locator(".message.user")).to_have_count(1)
    problems[:] = [problem for problem in problems if "ERR_FAILED" not in problem]


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
