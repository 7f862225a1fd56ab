// One message on the page: a user's as plain text, an answer as live text first and as the server's HTML in the end.

import { copyButton, iconButton, make } from "./elements.js";
import { LiveText } from "./live_text.js";

const ENDINGS = {
  stopped: "Stopped",
  length: "The answer reached its length limit.",
  content_filter: "A guardrail ended this answer.",
};

export class MessageView {
  #live = null;
  #waiting = null;

  /** `onRetry(view)` when another answer is asked for; `onGrow()` when the message has become higher. */
  constructor(message, { onRetry, onGrow }) {
    this.onRetry = onRetry;
    this.onGrow = onGrow;
    this.element = make("li", { class: `message ${message.role}` });
    this.update(message);
  }

  update(message) {
    this.message = message;
    this.element.dataset.state = message.state;
    this.element.dataset.id = message.id;
    if (message.role === "user") this.#showUser();
    else if (message.state === "streaming") this.#showLive();
    else this.#showStored();
  }

  get isStreaming() {
    return this.message.state === "streaming";
  }

  // ---- while it is being written

  showWaiting(text) {
    if (!this.#waiting) return;
    this.#waiting.lastChild.textContent = text;
  }

  showStopping() {
    this.status.textContent = "Stopping…";
    this.status.hidden = false;
  }

  append(text) {
    this.#waiting?.remove();
    this.#waiting = null;
    this.#live.append(text);
    this.onGrow();
  }

  /** Shows `text` in the place of what has come. */
  rewrite(text) {
    const live = this.element.querySelector(".live");
    live.replaceChildren();
    this.#live = new LiveText(live);
    if (text) this.append(text);
  }

  // ---- states

  #showUser() {
    const { text } = this.message;
    this.element.replaceChildren(
      make("span", { class: "visually-hidden", textContent: "You said:" }),
      make("div", { class: "text", textContent: text }),
      make("div", { class: "actions" }, copyButton(() => text, "Copy your message")),
    );
  }

  #showLive() {
    this.#waiting = make(
      "span",
      { class: "waiting" },
      make("span", { class: "dots", aria: { hidden: "true" } }, make("i"), make("i"), make("i")),
      make("span"),
    );
    const live = make("div", { class: "live" });
    this.#live = new LiveText(live);
    this.status = make("p", { class: "note", hidden: true });
    this.element.setAttribute("aria-busy", "true");
    this.element.replaceChildren(this.#label(), make("div", { class: "body" }, this.#waiting, live), this.status);
  }

  #showStored() {
    this.element.removeAttribute("aria-busy");
    const body = make("div", { class: "body", hidden: !this.message.html });
    body.innerHTML = this.message.html; // sanitized by the server (apps/chat/markdown.py)
    body.querySelectorAll("pre").forEach(dressCode);
    this.element.replaceChildren(this.#label(), body, ...this.#notes(), this.#actions());
  }

  /** The stored answer could not be fetched: what came stays as it is. */
  showUnstored(text) {
    this.#live?.finish();
    this.element.removeAttribute("aria-busy");
    this.status.textContent = text;
    this.status.hidden = false;
  }

  #label() {
    return make("span", { class: "visually-hidden", textContent: `${this.message.model || "The model"} answered:` });
  }

  #notes() {
    const { state, error, finish_reason: reason, is_trimmed: isTrimmed } = this.message;
    const notes = [];
    if (state === "failed") {
      const retry = make("button", { type: "button", class: "text-button", textContent: "Try again" });
      retry.onclick = () => this.onRetry(this);
      notes.push(make("p", { class: "note bad" }, error?.message || "The answer failed.", retry));
    } else if (state === "stopped") {
      notes.push(make("p", { class: "note ending", textContent: ENDINGS.stopped }));
    } else if (ENDINGS[reason]) {
      notes.push(make("p", { class: "note ending", textContent: ENDINGS[reason] }));
    }
    if (isTrimmed) {
      notes.push(make("p", { class: "note", textContent: "The conversation is long: its beginning was left out." }));
    }
    return notes;
  }

  #actions() {
    const { text, model, state } = this.message;
    const retry = iconButton("retry", "Write this answer anew", () => this.onRetry(this));
    retry.classList.add("only-last");
    return make(
      "div",
      { class: "actions" },
      text ? copyButton(() => text, "Copy the answer") : null,
      state === "failed" ? null : retry,
      make("span", { class: "by", textContent: model }),
    );
  }
}

/** Gives a code block its language and a copy button. */
function dressCode(pre) {
  const code = pre.querySelector("code");
  const language = code?.className.replace("language-", "") ?? "";
  const frame = make("div", { class: "code" });
  pre.replaceWith(frame);
  pre.tabIndex = 0; // so that the keyboard can scroll it
  frame.append(
    make("span", { class: "code-language", textContent: language }),
    copyButton(() => pre.textContent, "Copy the code"),
    pre,
  );
}

