"""The chat page over the real engine: typing has the prompt computed, and what is sent finds it."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, WebSocket, expect

from headrace_wire import codec, redis_keys
from headrace_wire.messages import Prefill
from headrace_wire.prefix_hashes import BLOCK_TOKENS
from tests.support.live_stack import LiveStack
from tests.support.metrics import wait_for, worker_metric
from tests.support.slow_clients import MODEL
from tests.support.stream_probe import StreamProbe

pytestmark = pytest.mark.browser

SENTENCES = "The water comes down the hill and turns the wheel, which turns the stone, which grinds the corn. " * 6


class TypedPage:
    """A page of the demo user, and the frames that it has sent."""

    def __init__(self, page: Page, stack: LiveStack) -> None:
        self.page, self.stack = page, stack
        self.field = page.get_by_label("Message", exact=True)
        self.frames: list[dict[str, Any]] = []
        page.on("websocket", self._listen)

    def _listen(self, socket: WebSocket) -> None:
        socket.on("framesent", lambda payload: self.frames.append(json.loads(payload)))

    @property
    def drafts(self) -> list[dict[str, Any]]:
        return [frame for frame in self.frames if frame["type"] == "draft"]

    def draft(self, type_it: Any) -> None:
        """Type something, and wait until the engine has computed it."""
        before = self._done()
        type_it()
        wait_for(self._done, before + 1)

    def _done(self) -> float:
        self.page.wait_for_timeout(1)  # Playwright hears of frames only while it waits
        return worker_metric(self.stack, "headrace_worker_prefills_ended_total", purpose="draft", outcome="done")

    def send(self) -> dict[str, Any]:
        """Send what was typed, and stop the answer once there is some of it; return its usage."""
        self.field.press("Enter")
        answer = self.page.locator(".message.assistant:last-child")
        expect(answer.locator(".live")).to_have_text(re.compile(r"\S"))
        self.page.get_by_role("button", name="Stop the answer").click()
        expect(answer).to_have_attribute("data-state", "stopped")
        self.page.wait_for_url(re.compile(r"/c/[0-9a-f-]{36}$"))
        path = f"/chat/conversations/{self.page.url.rsplit('/', 1)[1]}"
        opened = self.page.request.get(path).json()
        usage: dict[str, Any] = opened["messages"][-1]["usage"]
        return usage


@pytest.fixture
def typed(browser: Browser, engine_stack: LiveStack) -> Iterator[TypedPage]:
    context = browser.new_context(base_url=engine_stack.base_url)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto("/")
    page.get_by_label("Email").fill(engine_stack.user.email)
    page.get_by_label("Password").fill(engine_stack.user.password)
    typed = TypedPage(page, engine_stack)
    page.get_by_role("button", name="Sign in").click()
    expect(typed.field).to_be_focused()
    page.get_by_label("Model").select_option(MODEL)
    yield typed
    context.close()
    assert problems == []


def prefixes(stack: LiveStack) -> list[bytes]:
    """Return the prompt ids of all prefills that a worker was asked for."""
    probe = StreamProbe(stack.redis_url)
    worker = probe.wait_for_worker(MODEL, lambda _: True)
    rows: Any = probe.redis.xrange(redis_keys.control_key(worker.incarnation))
    messages = [codec.decode_control(fields[b"d"]) for _, fields in rows if fields[b"d"]]
    return [message.prompt_ids for message in messages if isinstance(message, Prefill)]


def test_typing_has_the_prompt_computed_and_sending_finds_it(typed: TypedPage) -> None:
    typed.field.press_sequentially("Listen. ")
    typed.draft(lambda: typed.page.keyboard.insert_text(SENTENCES))
    usage = typed.send()
    assert usage["prompt_tokens"] - 3 * BLOCK_TOKENS < usage["cached_tokens"]
    assert typed.drafts[-1]["text"] == "", "what was sent is no draft any more"
    # The conversation goes on, and its draft with it.
    typed.draft(lambda: typed.field.fill(f"And then? {SENTENCES[::-1]}"))
    again = typed.send()
    assert again["prompt_tokens"] - 3 * BLOCK_TOKENS < again["cached_tokens"]
    assert again["cached_tokens"] > usage["prompt_tokens"]
    assert {draft["conversation"] for draft in typed.drafts} == {"", typed.page.url.rsplit("/", 1)[1]}


def test_an_edit_in_the_middle_moves_the_prefix(typed: TypedPage, engine_stack: LiveStack) -> None:
    text = "Another one. " + SENTENCES
    typed.draft(lambda: typed.field.fill(text))
    first = prefixes(engine_stack)[-1]
    middle = len(text) // 2

    def edit() -> None:
        typed.field.evaluate("(field, at) => field.setSelectionRange(at, at)", middle)
        typed.page.keyboard.insert_text(" (so it is said) ")

    typed.draft(edit)
    second = prefixes(engine_stack)[-1]
    assert second != first
    same = next(at for at in range(0, len(first), 4) if first[at : at + 4] != second[at : at + 4])
    assert len(first) // 4 < same < 9 * len(first) // 10
    usage = typed.send()
    assert usage["prompt_tokens"] - 3 * BLOCK_TOKENS < usage["cached_tokens"]


def test_few_frames_are_sent_while_somebody_types(typed: TypedPage) -> None:
    keys = 200
    typed.page.clock.install()
    began = typed.page.evaluate("Date.now()")
    for _ in range(keys):
        typed.page.keyboard.type("w ")
        typed.page.clock.run_for(50)
    typed.page.clock.run_for(1_000)
    typed.page.wait_for_timeout(1)
    passed_ms = typed.page.evaluate("Date.now()") - began  # what was run for, and the time that this took
    texts = [draft["text"] for draft in typed.drafts]
    assert texts[-1] == "w " * keys
    assert len(texts) <= 2 + passed_ms // 1_000, "one a second while the typing does not pause"
