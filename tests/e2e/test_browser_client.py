"""The JavaScript client in a real browser: what it gives is what the log holds."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.support.impatient_gateway import impatient_gateway
from tests.support.live_stack import LiveStack
from tests.support.stream_probe import StreamProbe

pytestmark = pytest.mark.browser

SETUP = """async () => {
  const { HeadraceClient } = await import("/static/headrace/client.js");
  window.sent = [];
  window.sockets = [];
  window.makeClient = (options = {}) => new HeadraceClient({
    open: async () => {
      const { ticket } = await (await fetch("/chat/ticket")).json();
      const protocols = ["headrace.v1", `headrace.ticket.${options.ticket ?? ticket}`];
      const socket = new WebSocket(`ws://${location.host}/v1/ws`, protocols);
      const send = socket.send.bind(socket);
      socket.send = (text) => (window.sent.push(JSON.parse(text)), send(text));
      window.sockets.push(socket);
      return socket;
    },
    ...options,
  });
  window.client = window.makeClient();
  window.ask = (model, fields = {}) =>
    window.client.generate({ model, messages: [{ role: "user", content: "Say something." }], ...fields });
  window.outcome = (stream) =>
    ({ id: stream.streamId, text: stream.text, seq: stream.seq, end: stream.end, code: stream.error?.code ?? null });
}"""


@pytest.fixture(scope="module")
def session_state(browser: Browser, live_stack: LiveStack) -> Any:
    context = browser.new_context(base_url=live_stack.base_url)
    page = context.new_page()
    page.goto("/")
    page.get_by_label("Email").fill(live_stack.user.email)
    page.get_by_label("Password").fill(live_stack.user.password)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Message", exact=True).wait_for()
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture
def page(browser: Browser, live_stack: LiveStack, session_state: Any) -> Iterator[Page]:
    """A page of the signed-in user, with a client."""
    context = browser.new_context(base_url=live_stack.base_url, storage_state=session_state)
    page = context.new_page()
    page.goto("/")
    page.evaluate(SETUP)
    yield page
    context.close()


@pytest.fixture
def probe(live_stack: LiveStack) -> StreamProbe:
    return StreamProbe(live_stack.redis_url)


def test_streams_share_a_connection_and_give_the_text_of_the_log(page: Page, probe: StreamProbe) -> None:
    outcomes = page.evaluate(
        """async () => {
          const streams = [30, 31, 32].map((max_tokens) => window.ask("quick", { max_tokens, ignore_eos: true }));
          await Promise.all(streams.map((stream) => stream.read()));
          return [window.sockets.length, streams.map(window.outcome)];
        }"""
    )
    assert outcomes[0] == 1
    for tokens, outcome in zip((30, 31, 32), outcomes[1], strict=True):
        assert outcome["text"] == probe.text(outcome["id"])
        assert outcome["end"]["finish_reason"] == "length"
        assert outcome["end"]["usage"]["completion_tokens"] == tokens


def test_deltas_are_acknowledged_when_they_were_consumed(page: Page, probe: StreamProbe) -> None:
    outcome, acked, seqs = page.evaluate(
        """async () => {
          const stream = window.ask("quick", { max_tokens: 300, ignore_eos: true, window: 8 });
          const seqs = [];
          for await (const { seq } of stream) seqs.push(seq);
          const acked = window.sent.filter(({ type }) => type === "ack").map(({ seq }) => seq);
          return [window.outcome(stream), acked, seqs];
        }"""
    )
    assert outcome["text"] == probe.text(outcome["id"])
    assert outcome["end"]["usage"]["completion_tokens"] == 300
    assert seqs == sorted(set(seqs))
    assert acked == sorted(set(acked))
    assert len(acked) >= 300 / 8
    assert set(acked) <= set(seqs)


def test_a_lost_connection_is_resumed_at_any_moment(page: Page, probe: StreamProbe) -> None:
    outcomes, connections = page.evaluate(
        """async () => {
          const first = window.ask("quick", { max_tokens: 200, ignore_eos: true });
          const frames = [];
          for await (const { seq } of first) {
            frames.push(seq);
            if (frames.length % 40 === 20) window.sockets.at(-1).close();
          }
          const again = window.client.follow(first.streamId);
          await again.read();
          const rest = window.client.follow(first.streamId, { after: frames[9] });
          await rest.read();
          return [[first, again, rest].map(window.outcome).concat(frames[9]), window.sockets.length];
        }"""
    )
    first, again, rest, position = outcomes
    assert connections > 2
    assert first["text"] == again["text"] == probe.text(first["id"])
    assert rest["text"] == "".join(delta.text for delta in probe.deltas(first["id"]) if delta.seq > position)
    assert first["end"]["usage"] == rest["end"]["usage"]


def test_the_gateway_dies_in_mid_stream(page: Page, live_stack: LiveStack, probe: StreamProbe) -> None:
    page.evaluate(
        """async () => {
          window.stream = window.ask("slow", { max_tokens: 150, ignore_eos: true });
          window.reading = window.stream.read();
          while (window.stream.seq < 10) await new Promise(requestAnimationFrame);
        }"""
    )
    live_stack.kill_gateway()
    live_stack.start_gateway()
    outcome = page.evaluate("async () => { await window.reading; return window.outcome(window.stream); }")
    assert outcome["text"] == probe.text(outcome["id"])
    assert outcome["end"]["usage"]["completion_tokens"] == 150


def test_a_reader_that_was_cut_off_for_its_pause_goes_on(page: Page, live_stack: LiveStack, probe: StreamProbe) -> None:
    with impatient_gateway(live_stack) as (gateway, base_url):
        page.goto(base_url)
        page.evaluate(SETUP)
        page.evaluate(
            """async () => {
              window.paused = window.ask("slow", { max_tokens: 60, ignore_eos: true });
              window.deltas = window.paused[Symbol.asyncIterator]();
              await window.deltas.next();
            }"""
        )
        gateway.wait_for_line("client_stalled")
        resumed, outcome, joined = page.evaluate(
            """async () => {
              let text = "";
              // A request that crosses the close frame on its way is lost: the page has to have seen that first.
              while (!window.paused.isHeld) await new Promise((next) => setTimeout(next, 10));
              const other = window.ask("slow", { max_tokens: 20, ignore_eos: true });
              await other.read(); // over the next connection, while the paused one is left alone
              const resumed = window.sent.filter(({ type }) => type === "resume").length;
              for await (const delta of window.deltas) text += delta.text;
              return [resumed, window.outcome(window.paused), text];
            }"""
        )
    assert resumed == 0
    assert outcome["text"] == probe.text(outcome["id"])
    assert outcome["text"].endswith(joined)
    assert outcome["end"]["usage"]["completion_tokens"] == 60


def test_cancel_and_leave(page: Page, probe: StreamProbe) -> None:
    early, late, left, other = page.evaluate(
        """async () => {
          const early = window.ask("slow", { max_tokens: 400, ignore_eos: true });
          early.cancel();
          await early.read();
          const late = window.ask("slow", { max_tokens: 400, ignore_eos: true });
          let count = 0;
          for await (const _ of late) if (++count === 5) late.cancel();
          const other = window.ask("slow", { max_tokens: 40, ignore_eos: true });
          const reading = other.read();
          const left = window.ask("slow", { max_tokens: 40, ignore_eos: true });
          for await (const _ of left) break;
          await reading;
          return [early, late, left, other].map(window.outcome);
        }"""
    )
    for outcome in (early, late):
        assert (outcome["end"]["state"], outcome["end"]["finish_reason"]) == ("cancelled", "abort")
        assert outcome["text"] == probe.text(outcome["id"])
    assert left["end"] is None
    assert other["text"] == probe.text(other["id"]), "it went on over another connection"


def test_refusals_have_codes(page: Page) -> None:
    codes = page.evaluate(
        """async () => {
          const streams = [
            window.ask("nope"), window.ask("quick", { temperature: "hot" }), window.ask("quick", { max_tokens: 2 }),
            window.client.follow("strm-" + "0".repeat(24)),
          ];
          await Promise.allSettled(streams.map((stream) => stream.read()));
          const closed = window.makeClient();
          closed.close();
          const late = closed.follow("strm-" + "1".repeat(24));
          await late.read().catch(() => {});
          const told = [];
          const forged = window.makeClient({ ticket: "forged", onRejected: ({ code }) => told.push(code) });
          const refused = forged.follow("strm-" + "2".repeat(24));
          await refused.read().catch(() => {});
          return [...streams, late, refused].map((stream) => stream.error?.code ?? null).concat(told);
        }"""
    )
    expected = ["model_not_found", "invalid_request_error", None, "stream_not_found"]
    assert codes == [*expected, "client_closed", "connection_rejected", "connection_rejected"]


@pytest.mark.parametrize("seed", range(5))
def test_reconstruction_gives_the_golden_text_wherever_it_is_cut(page: Page, seed: int) -> None:
    """The property of tests/client/test_reconstruction.py, on the same rule in JavaScript."""
    wrong = page.evaluate(
        """async (seed) => {
          const { Reconstruction } = await import("/static/headrace/reconstruction.js");
          let x = seed + 1;
          const draw = (below) => (x = (x * 1103515245 + 12345) % 2147483648) % below;
          const wrong = [];
          for (let round = 0; round < 200; round++) {
            let position = 0;
            const log = Array.from({ length: 1 + draw(30) }, (_, i) => [(position += 1 + draw(4)), `<${i}>`]);
            const content = new Reconstruction();
            for (let connections = 1 + draw(6); connections > 0; connections--) {
              content.connected();
              const have = log.filter(([seq]) => seq <= content.seq).length;
              const edges = new Set([have, log.length]);
              const start = draw(have + 1);
              for (let cuts = draw(8); cuts > 0; cuts--) edges.add(draw(log.length + 1));
              const sorted = [...edges, start].filter((edge) => edge >= start).sort((a, b) => a - b);
              const frames = [];
              for (let i = 0; i + 1 < sorted.length; i++) {
                const part = log.slice(sorted[i], sorted[i + 1]);
                if (!part.length) continue;
                const after = seed % 2 ? (sorted[i] ? log[sorted[i] - 1][0] : 0) : null; // or a server that says none
                frames.push({ seq: part.at(-1)[0], text: part.map(([, text]) => text).join(""), after });
              }
              const arrived = connections > 1 ? draw(frames.length + 1) : frames.length;
              frames.slice(0, arrived).forEach((frame) => content.take(frame));
            }
            const golden = log.map(([, text]) => text).join("");
            if (content.text !== golden) wrong.push([golden, content.text]);
            try {
              content.connected();
              content.take({ seq: content.seq - 1, text: "" });
              content.take({ seq: content.seq + 1, text: "x" });
              if (content.text !== golden) wrong.push("a frame of which a part was new was taken");
            } catch (error) {
              if (!(error instanceof RangeError)) throw error;
            }
            try {
              content.take({ seq: content.seq + 2, text: "y", after: content.seq + 1 });
              wrong.push("a hole was not noticed");
            } catch (error) {
              if (!(error instanceof RangeError)) throw error;
            }
          }
          return wrong;
        }""",
        seed,
    )
    assert wrong == []
