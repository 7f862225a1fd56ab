// What the user types goes ahead of being sent: an idle worker computes the prompt so far, and the answer begins sooner.

const PAUSE_MS = 300; // of the typing
const LONGEST_MS = 1_000; // without a pause
const LEAST_LENGTH = 48; // of a first message: less is computed in no time
const OFF_MS = 60_000; // where the server does not say how long

export class Drafts {
  #client;
  #context;
  #text = "";
  #sent = "";
  #sentTo = ""; // which model
  #isDue = false;
  #timer = 0;
  #waitingSince = 0;
  #offUntil = new Map(); // model -> when drafts may be of use again

  /** `context()` returns the `conversation` (its id or ""), the `model`, and whether the last answer `isBusy`. */
  constructor({ client, context }) {
    this.#client = client;
    this.#context = context;
  }

  /** The field has changed; an empty one takes the draft back. */
  typed(text) {
    if (text === this.#text) return;
    this.#text = text;
    this.#isDue = true;
    if (!text.trim()) this.#tell();
    else this.#schedule();
  }

  /** Something besides the text has changed: an answer is complete, or another model was chosen. */
  look() {
    if (this.#timer || !this.#text.trim()) return;
    if (this.#isDue || (this.#sent && this.#sentTo !== this.#context().model)) this.#schedule();
  }

  /** The server says that nothing is computed for drafts of a model. */
  off(model, { retry_after_ms: wait = OFF_MS }) {
    this.#offUntil.set(model, performance.now() + wait);
  }

  #schedule() {
    const now = performance.now();
    if (!this.#timer) this.#waitingSince = now;
    clearTimeout(this.#timer);
    const wait = Math.min(PAUSE_MS, Math.max(0, this.#waitingSince + LONGEST_MS - now));
    this.#timer = setTimeout(() => this.#tell(), wait);
  }

  #tell() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const { conversation, model, isBusy } = this.#context();
    const text = this.#text.trim() ? this.#text : "";
    if (!text) {
      if (this.#sent) this.#client.draft({ model, conversation, text: "" });
      this.#sent = "";
      this.#isDue = false;
      return;
    }
    const isOff = performance.now() < (this.#offUntil.get(model) ?? 0);
    if (isBusy || !model || isOff || (!conversation && text.length < LEAST_LENGTH)) return; // still due
    this.#isDue = !this.#client.draft({ model, conversation, text });
    if (!this.#isDue) [this.#sent, this.#sentTo] = [text, model];
  }
}
