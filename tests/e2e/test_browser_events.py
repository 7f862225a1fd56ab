"""A page follows a stream with the browser's own EventSource and a ticket, and its gateway dies."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page

from tests.support.live_stack import LiveStack
from tests.support.processes import Process, free_port
from tests.support.stream_probe import StreamProbe

pytestmark = pytest.mark.browser

TOKENS = 80  # of `slow`: four seconds

NGINX = """
daemon off; master_process off; error_log stderr; pid {folder}/nginx.pid;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream gateways {{ server 127.0.0.1:{first}; server {second} backup; }}
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://gateways; }} }}
}}
"""
"""All that a proxy needs to go on with another gateway; buffering and the rest as they come."""

# What a tenant's page does: nothing but the browser's own means. Its positions say whether anything came twice.
FOLLOW = """(url) => {
  window.told = { text: "", positions: [], opened: 0, failed: 0, end: null };
  const source = new EventSource(url);
  source.onopen = () => (window.told.opened += 1);
  source.onerror = () => (window.told.failed += 1);
  source.onmessage = ({ data, lastEventId }) => {
    const event = JSON.parse(data);
    if (event.type === "delta") {
      window.told.text += event.text;
      window.told.positions.push([event.after, event.seq, Number(lastEventId)]);
    } else if (event.type === "end" || event.type === "error") {
      window.told.end = event;
      source.close();
    }
  };
}"""


@pytest.fixture
def first_gateway(live_stack: LiveStack) -> Iterator[tuple[Process, int]]:
    port = free_port()
    gateway = live_stack.start_gateway(port)
    yield gateway, port
    gateway.stop()


@pytest.fixture
def front(live_stack: LiveStack, first_gateway: tuple[Process, int], nginx: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a proxy that goes to the first gateway for as long as it lives."""
    port, config = free_port(), tmp_path / "nginx.conf"
    second = live_stack.base_url.removeprefix("http://")
    config.write_text(NGINX.format(folder=tmp_path, port=port, first=first_gateway[1], second=second))
    with Process([nginx, "-c", str(config), "-p", str(tmp_path)], name="nginx") as proxy:
        proxy.wait_for_address(("127.0.0.1", port))
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def page(browser: Browser, live_stack: LiveStack) -> Iterator[Page]:
    """A page of another origin than the API's."""
    context = browser.new_context()
    context.set_default_timeout(30_000)
    page = context.new_page()
    page.goto(live_stack.base_url + "/livez")
    yield page
    context.close()


def start(stack: LiveStack, front: str, **fields: Any) -> tuple[str, str]:
    """What the tenant's server does: start a stream, and ask for a link to it. Returns its id and the link."""
    headers = {"authorization": f"Bearer {stack.api_key}"}
    body = {"model": "slow", "messages": [{"role": "user", "content": "Tell."}], "max_tokens": TOKENS, **fields}
    with httpx.Client(base_url=stack.base_url, headers=headers, timeout=20) as http:
        request = {**body, "stream": True, "ignore_eos": True}
        keyed = {"idempotency-key": f"page-{free_port()}"}
        with http.stream("POST", "/v1/chat/completions", json=request, headers=keyed) as answer:
            stream_id = answer.headers["x-headrace-stream-id"]
        ticket = http.post(f"/v1/streams/{stream_id}/ticket")
        assert ticket.status_code == 200, ticket.text
        return stream_id, front + ticket.json()["url"]


def test_an_event_source_survives_the_death_of_its_gateway(
    live_stack: LiveStack, first_gateway: tuple[Process, int], front: str, page: Page
) -> None:
    probe = StreamProbe(live_stack.redis_url)
    stream_id, url = start(live_stack, front)
    page.evaluate(FOLLOW, url)
    page.wait_for_function("window.told.positions.length > 10")
    first_gateway[0].send_signal(signal.SIGKILL)
    page.wait_for_function("window.told.end !== null")
    told = page.evaluate("window.told")
    assert told["end"]["type"] == "end", told["end"]
    assert told["end"]["usage"]["completion_tokens"] == TOKENS
    assert told["text"] == probe.text(stream_id)
    assert told["opened"] >= 2
    assert told["failed"] >= 1
    begins, ends, ids = zip(*told["positions"], strict=True)
    assert list(begins) == [0, *ends[:-1]]
    assert ends == ids
    page.evaluate("window.told = null")
    page.evaluate(FOLLOW, url + f"&after={ends[9]}")
    page.wait_for_function("window.told.end !== null")
    assert page.evaluate("window.told.positions")[0][0] == ends[9]
    assert json.dumps(page.evaluate("window.told.end")["usage"]) == json.dumps(told["end"]["usage"])
