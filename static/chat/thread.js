// The open conversation: its messages, and the answers that are on their way, in any conversation.

import { AnswerStream } from "./answer_stream.js";
import { announce } from "./elements.js";
import { MessageView } from "./message_view.js";
import * as requests from "./requests.js";

const NEAR_END_PX = 60;
const COLLECT_PAUSES_MS = [0, 300, 1_000, 3_000, 10_000];

const SPOKEN = { complete: "The answer is complete.", stopped: "Stopped.", failed: "The answer failed." };

export class Thread {
  conversationId = null;
  #views = new Map(); // message id -> MessageView, in order
  #streams = new Map(); // stream id -> AnswerStream, of every conversation
  #isAtEnd = true;
  #hasEarlier = false;

  constructor({ client, onChange, onRetry }) {
    this.client = client;
    this.onChange = onChange;
    this.onRetry = onRetry;
    this.scroller = document.getElementById("thread");
    this.list = document.getElementById("messages");
    this.welcome = document.getElementById("welcome");
    this.earlier = document.getElementById("earlier-messages");
    this.jump = document.getElementById("jump");
    this.scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.jump.onclick = () => this.scrollToEnd();
    this.earlier.onclick = () => this.#showEarlier();
    new ResizeObserver(() => this.#grew()).observe(this.scroller);
  }

  // ---- what is open

  /** Shows a conversation as the server tells it; null is a new one. */
  open(opened, conversationId) {
    this.#detachAll();
    this.conversationId = conversationId;
    this.#views.clear();
    this.list.replaceChildren();
    this.#merge(opened);
    this.scrollToEnd();
  }

  /** Brings the open conversation up to what the server tells now. */
  refresh(opened) {
    const page = new Set(opened.messages.map((message) => message.id));
    const first = opened.messages[0]?.position ?? 0;
    for (const [id, view] of this.#views) {
      if (view.message.position >= first && !page.has(id)) this.remove(id);
    }
    this.#merge(opened);
  }

  #merge(opened) {
    for (const message of opened?.messages ?? []) this.show(message);
    this.#hasEarlier = opened?.has_earlier ?? false;
    this.#changed();
  }

  /** Shows a message: a new one at the end, a known one in its place. */
  show(message) {
    const view = this.#views.get(message.id);
    if (!view) {
      this.#insert(message, false);
    } else if (view.message.state !== message.state || view.message.stream_id !== message.stream_id) {
      this.#detach(view);
      view.update(message);
      this.#follow(view);
    } else if (message.role === "user") {
      view.message = message;
    }
    this.#changed();
  }

  #insert(message, isEarlier) {
    const view = new MessageView(message, { onRetry: this.onRetry, onGrow: () => this.#grew() });
    if (isEarlier) {
      this.#views = new Map([[message.id, view], ...this.#views]);
      this.list.prepend(view.element);
    } else {
      this.#views.set(message.id, view);
      this.list.append(view.element);
    }
    this.#follow(view);
    return view;
  }

  remove(messageId) {
    const view = this.#views.get(messageId);
    if (!view) return;
    this.#detach(view);
    view.element.remove();
    this.#views.delete(messageId);
    this.#changed();
  }

  /** The answer that is being written in the open conversation, or undefined. */
  get streaming() {
    return [...this.#views.values()].find((view) => view.isStreaming);
  }

  get isStopping() {
    return this.#streams.get(this.streaming?.message.stream_id)?.isStopping ?? false;
  }

  // ---- answers on their way

  #follow(view) {
    const { id: messageId, stream_id: streamId } = view.message;
    if (!view.isStreaming || !streamId) return;
    const conversationId = this.conversationId;
    let stream = this.#streams.get(streamId);
    if (!stream) {
      const onEnd = () => this.#ended(streamId, conversationId, messageId);
      stream = new AnswerStream({ client: this.client, streamId, onEnd });
      this.#streams.set(streamId, stream);
    }
    stream.attach(view);
  }

  async #ended(streamId, conversationId, messageId) {
    let answer = null;
    for (const pause of COLLECT_PAUSES_MS) {
      await new Promise((resume) => setTimeout(resume, pause));
      try {
        ({ answer } = await requests.collect(conversationId, messageId));
        if (answer.state !== "streaming" || answer.stream_id !== streamId) break;
      } catch (error) {
        if (error.status === 404 || error.code === "signed_out") break; // deleted meanwhile, or nothing to be had
      }
    }
    this.#streams.delete(streamId);
    if (this.conversationId !== conversationId) return;
    const view = this.#views.get(messageId);
    if (!view || view.message.stream_id !== streamId) return;
    if (answer && (answer.state !== "streaming" || answer.stream_id !== streamId)) {
      this.show(answer);
      announce(SPOKEN[answer.state] ?? "");
    } else {
      view.showUnstored("The answer has ended, but it could not be read back. Reload the page to see it.");
    }
    this.#grew();
  }

  /** Asks for the end of the answer on its way. "Stopped" shows when its stream has ended, not before. */
  async stop() {
    const view = this.streaming;
    const stream = this.#streams.get(view?.message.stream_id);
    if (!stream || stream.isStopping) return;
    const isAsked = stream.stop();
    this.onChange();
    if (isAsked) return;
    try {
      await requests.stop(this.conversationId, view.message.id);
    } catch (error) {
      stream.keepGoing();
      view.showUnstored(`${error.message} The answer goes on.`);
      this.onChange();
    }
  }

  #detach(view) {
    this.#streams.get(view.message.stream_id)?.detach();
  }

  #detachAll() {
    for (const view of this.#views.values()) this.#detach(view);
  }

  // ---- earlier messages

  async #showEarlier() {
    const first = this.#views.values().next().value;
    if (!first) return;
    this.earlier.disabled = true;
    try {
      const page = await requests.conversation(this.conversationId, first.message.position);
      const fromEnd = this.scroller.scrollHeight - this.scroller.scrollTop;
      for (const message of page.messages.reverse()) this.#insert(message, true);
      this.#hasEarlier = page.has_earlier;
      this.#changed();
      this.scroller.scrollTop = this.scroller.scrollHeight - fromEnd;
    } catch (error) {
      announce(error.message);
    } finally {
      this.earlier.disabled = false;
    }
  }

  // ---- scrolling

  scrollToEnd() {
    this.#isAtEnd = true;
    this.#grew();
  }

  #grew() {
    if (this.#isAtEnd) this.scroller.scrollTop = this.scroller.scrollHeight;
    else this.jump.hidden = false;
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    this.#isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
    this.jump.hidden = this.#isAtEnd;
    document.querySelector(".topbar").classList.toggle("scrolled", scrollTop > 4);
  }

  #changed() {
    this.earlier.hidden = !this.#hasEarlier;
    this.welcome.hidden = this.#views.size > 0;
    this.#grew();
    this.onChange();
  }
}
