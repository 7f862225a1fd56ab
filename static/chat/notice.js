// One line above the message field: what is wrong, and what to do about it.

import { make } from "./elements.js";

export class Notice {
  #kind = null;

  constructor() {
    this.element = document.getElementById("notice");
    this.text = document.getElementById("notice-text");
    this.actions = document.getElementById("notice-actions");
  }

  /** `kind` names what the notice is about, so that only its own end takes it away. */
  show(kind, text, { isCalm = false, actions = [] } = {}) {
    this.#kind = kind;
    this.element.classList.toggle("calm", isCalm);
    this.text.textContent = text;
    this.actions.replaceChildren(
      ...actions.map(([label, onclick]) => make("button", { type: "button", class: "text-button", textContent: label, onclick })),
    );
    this.element.hidden = false;
  }

  hide(...kinds) {
    if (this.#kind === null || (kinds.length && !kinds.includes(this.#kind))) return;
    this.#kind = null;
    this.element.hidden = true;
  }

  get kind() {
    return this.#kind;
  }
}
