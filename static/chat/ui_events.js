// News of the user's other tabs, over /ws/ui. They are hints: after a lost connection everything is asked for anew.

import { ReconnectingSocket } from "../headrace/reconnecting_socket.js";

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
      onLost: () => (this.#wasLost = true),
    });
    this.socket.connectNow();
  }
}
