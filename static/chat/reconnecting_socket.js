// A WebSocket that comes back: back-off with jitter, at once when the network or the page returns.

const FIRST_DELAY_MS = 400;
const LONGEST_DELAY_MS = 15_000;
const STEADY_MS = 5_000; // a connection that held this long starts the back-off anew

export class ReconnectingSocket {
  #socket = null;
  #timer = 0;
  #failures = 0;
  #isClosed = false;
  #isOpening = false;

  /** `open` returns (a promise of) a new WebSocket, or null when there is no point in trying again. */
  constructor(open, { onOpen = () => {}, onText, onLost = () => {} }) {
    this.open = open;
    this.onOpen = onOpen;
    this.onText = onText;
    this.onLost = onLost;
    addEventListener("online", () => this.connectNow());
    document.addEventListener("visibilitychange", () => document.hidden || this.connectNow());
  }

  get isOpen() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  /** Sends and returns true, or returns false when there is no connection. */
  send(message) {
    if (!this.isOpen) return false;
    this.#socket.send(JSON.stringify(message));
    return true;
  }

  connectNow() {
    if (this.#socket || this.#isOpening || this.#isClosed) return;
    clearTimeout(this.#timer);
    this.#connect();
  }

  /** Gives up the connection, which may be dead without having said so, and makes another. */
  renew() {
    this.#socket?.close();
    this.#lost(this.#socket);
  }

  /** Does not come back any more. */
  stop() {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    this.#socket?.close();
  }

  async #connect() {
    this.#isOpening = true;
    let socket;
    try {
      socket = await this.open();
    } catch {
      this.#isOpening = false;
      return this.#comeBack();
    }
    this.#isOpening = false;
    if (socket === null) {
      this.#isClosed = true;
      return;
    }
    this.#socket = socket;
    let openedAt = Infinity;
    socket.onopen = () => {
      openedAt = performance.now();
      this.onOpen();
    };
    socket.onmessage = (event) => this.#socket === socket && this.onText(event.data);
    socket.onclose = (event) => {
      if (performance.now() - openedAt > STEADY_MS) this.#failures = 0;
      this.#lost(socket, event.code);
    };
  }

  #lost(socket, code) {
    if (socket === null || this.#socket !== socket) return;
    this.#socket = null;
    this.onLost(code);
    this.#comeBack();
  }

  #comeBack() {
    if (this.#isClosed) return;
    const ceiling = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#failures);
    this.#failures += 1;
    clearTimeout(this.#timer);
    // Half fixed, half random: clients of one gateway that went down do not come back in the same instant.
    this.#timer = setTimeout(() => this.connectNow(), ceiling / 2 + (Math.random() * ceiling) / 2);
  }
}
