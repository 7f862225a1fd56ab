// News of the user's other tabs, over /ws/ui. They are hints: after a lost connection everything is asked for anew.

import { ReconnectingSocket } from "./reconnecting_socket.js";

const SIGNED_OUT = 4401;

export class UiEvents {
  #wasLost = false;

  /** `onEvent(name, data)` for each event; `onGap()` when some may have been missed. */
  constructor({ onEvent, onGap }) {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    this.socket = new ReconnectingSocket(() => new WebSocket(`${scheme}//${location.host}/ws/ui`), {
      onOpen: () => {
        if (this.#wasLost) onGap();
        this.#wasLost = false;
      },
      onText: (text) => {
        const { type, data } = JSON.parse(text);
        onEvent(type, data);
      },
      onLost: (code) => {
        this.#wasLost = true;
        if (code === SIGNED_OUT) this.socket.stop();
      },
    });
    this.socket.connectNow();
  }
}
