// A WebSocket that comes back: back-off with jitter, at once when the network or the page returns.

const FIRST_DELAY_MS = 400;
const LONGEST_DELAY_MS = 15_000;
const STEADY_MS = 5_000; // a connection that held this long starts the back-off anew
const OPEN = 1;
const STALLED = 4408; // the one of the 44xx after which there is a way back

const isFinal = (code) => code >= 4400 && code < 4500 && code !== STALLED;

export class ReconnectingSocket {
  #socket = null;
  #timer = 0;
  #failures = 0;
  #isClosed = false;
  #isOpening = false;
  #listening = new AbortController();

  /**
   * `open` returns (a promise of) a new WebSocket, or null when there is no point in trying again. `onLost(code)` is
   * told of each loss after which it comes back, `onFinal(code, reason)` of one after which it does not.
   */
  constructor(open, { onOpen = () => {}, onText, onLost = () => {}, onFinal = () => {} }) {
    this.open = open;
    this.onOpen = onOpen;
    this.onText = onText;
    this.onLost = onLost;
    this.onFinal = onFinal;
    const { signal } = this.#listening;
    globalThis.addEventListener?.("online", () => this.connectNow(), { signal });
    globalThis.document?.addEventListener("visibilitychange", () => document.hidden || this.connectNow(), { signal });
  }

  get isOpen() {
    return this.#socket?.readyState === OPEN;
  }

  /** Sends and returns true, or returns false when there is no connection. */
  send(message) {
    if (!this.isOpen) return false;
    this.#socket.send(JSON.stringify(message));
    return true;
  }

  /** Connects now, also where an attempt is planned for later. */
  connectNow() {
    if (this.#socket || this.#isOpening || this.#isClosed) return;
    clearTimeout(this.#timer);
    this.#connect();
  }

  /** Gives up the connection, which may be dead without having said so, and makes another. */
  renew() {
    const socket = this.#socket;
    socket?.close();
    this.#lost(socket);
  }

  /** Does not come back any more. */
  stop() {
    this.#isClosed = true;
    this.#listening.abort();
    clearTimeout(this.#timer);
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }

  async #connect() {
    this.#isOpening = true;
    let socket;
    try {
      socket = await this.open();
    } catch {
      this.#isOpening = false;
      return this.#comeBack(0);
    }
    this.#isOpening = false;
    if (socket === null) return this.stop();
    if (this.#isClosed) return socket.close();
    this.#socket = socket;
    let openedAt = Infinity;
    socket.onopen = () => {
      openedAt = performance.now();
      if (this.#socket === socket) this.onOpen();
    };
    socket.onmessage = (event) => this.#socket === socket && this.onText(event.data);
    socket.onclose = (event) => {
      if (performance.now() - openedAt > STEADY_MS) this.#failures = 0;
      this.#lost(socket, event.code, event.reason);
    };
  }

  #lost(socket, code = 1006, reason = "") {
    if (socket === null || this.#socket !== socket) return;
    if (isFinal(code)) {
      this.stop();
      return this.onFinal(code, reason);
    }
    this.#socket = null;
    this.#comeBack(Number(/retry_after_ms=(\d{1,6})/.exec(reason)?.[1] ?? 0));
    this.onLost(code);
  }

  #comeBack(atLeast) {
    if (this.#isClosed) return;
    const ceiling = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#failures);
    this.#failures += 1;
    clearTimeout(this.#timer);
    // Half fixed, half random: clients of one gateway that went down do not come back in the same instant.
    this.#timer = setTimeout(() => this.connectNow(), atLeast + ceiling / 2 + (Math.random() * ceiling) / 2);
  }
}
