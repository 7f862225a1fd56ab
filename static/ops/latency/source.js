// Asks for the numbers: when the form changes, when the gateway says on /ws/ui that there are new ones, and by the clock
// where it says nothing. A page that nobody looks at asks for nothing.

import { ReconnectingSocket } from "../../headrace/reconnecting_socket.js";

const RETRY_MS = 10_000;
const GRACE = 1.5; // how much later than the event the clock asks

export class NumbersSource {
  #asking = null;
  #timer = 0;
  #askedAt = -Infinity;
  #everyMs = Infinity;
  #asksChoices = false;

  /** `onNumbers(numbers)`, `onProblem(text)`, `onAsk()`; `query()` returns what the form says, as URLSearchParams. */
  constructor(url, { query, onAsk, onNumbers, onProblem }) {
    Object.assign(this, { url, query, onAsk, onNumbers, onProblem });
    document.addEventListener("visibilitychange", () => document.hidden || this.#askIfDue());
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    new ReconnectingSocket(() => new WebSocket(`${scheme}//${location.host}/ws/ui?hear=latency`), {
      onText: (text) => JSON.parse(text).type === "latency.rolled" && this.#askIfDue(),
    }).connectNow();
  }

  /** Asks now, and forgets what was asked before. */
  async ask({ withChoices = false } = {}) {
    this.#asking?.abort();
    clearTimeout(this.#timer);
    const asking = (this.#asking = new AbortController());
    this.#asksChoices ||= withChoices;
    this.#askedAt = performance.now();
    this.onAsk();
    try {
      const numbers = await this.#fetch(asking.signal);
      this.#asksChoices = false;
      this.#everyMs = numbers.refresh === null ? Infinity : numbers.refresh * 1000;
      this.onNumbers(numbers);
      if (this.#everyMs < Infinity) this.#askLater(this.#everyMs * GRACE);
    } catch (error) {
      if (asking.signal.aborted) return;
      const isFinal = error instanceof RefusedError;
      this.onProblem(isFinal ? error.message : `${error.message} Trying again every 10 s.`);
      this.#everyMs = isFinal ? Infinity : RETRY_MS;
      if (!isFinal) this.#askLater(RETRY_MS);
    }
  }

  async #fetch(signal) {
    const query = this.query();
    if (this.#asksChoices) query.set("choices", "1");
    let answer;
    try {
      answer = await fetch(`${this.url}?${query}`, { signal, headers: { accept: "application/json" } });
    } catch (error) {
      if (signal.aborted) throw error;
      throw new Error("The gateway does not answer.");
    }
    if (answer.redirected || [401, 403].includes(answer.status))
      throw new RefusedError("You are signed out, or may not see this any more. Sign in and open the page again.");
    if (answer.status >= 500) throw new Error(`The numbers cannot be read at the moment (${answer.status}).`);
    const told = await answer.json();
    if (!answer.ok) throw new RefusedError(told.problem ?? `The question was refused (${answer.status}).`);
    return told;
  }

  /** Asks, at once or as soon as the last time is long enough ago. */
  #askIfDue() {
    if (document.hidden || this.#everyMs === Infinity) return;
    const wait = this.#askedAt + this.#everyMs / 2 - performance.now();
    if (wait > 0) this.#askLater(wait);
    else this.ask();
  }

  #askLater(milliseconds) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => document.hidden || this.ask(), milliseconds);
  }
}

class RefusedError extends Error {}
