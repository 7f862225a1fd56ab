"""Answers on the chat page in a real Chromium: streaming, stop, reload, a second tab, what cannot be sent."""

import json
import random
import re
import time

import pytest
from playwright.sync_api import BrowserContext, Route, WebSocket, expect

from tests.e2e.chat.page_steps import WATCH, OpenPage, conversation_path, last_answer, send, wait_for_growth
from tests.e2e.conftest import MARKDOWN
from tests.support.live_stack import LiveStack
from tests.support.processes import PATIENCE_SECONDS
from tests.support.stream_probe import StreamProbe

pytestmark = pytest.mark.browser


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
    deadline = time.monotonic() + PATIENCE_SECONDS
    state, content = "streaming", ""
    while state == "streaming" and time.monotonic() < deadline:
        time.sleep(0.2)  # who asks without a pause keeps Celery from a core
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
