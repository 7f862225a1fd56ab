// The page's one connection to /v1/ws (headrace.v1): it follows streams, and resumes them after a lost connection.

import { ReconnectingSocket } from "./reconnecting_socket.js";
import { RequestError, ticket } from "./requests.js";

const LOST_NEWS_MS = 1_500; // a loss shorter than this is not worth a word

export class StreamSocket {
  #followed = new Map();
  #newsTimer = 0;

  /** `onConnection(isUp)` is told about losses that matter; `onSignedOut` when no ticket is to be had any more. */
  constructor({ onConnection, onSignedOut }) {
    this.onConnection = onConnection;
    this.onSignedOut = onSignedOut;
    this.socket = new ReconnectingSocket(() => this.#open(), {
      onOpen: () => this.#opened(),
      onText: (text) => this.#received(JSON.parse(text)),
      onLost: () => this.#lost(),
    });
    this.socket.connectNow();
  }

  /** Gives `reader` the stream's frames from after `reader.seq` on; `reader.onFrame(frame)`. */
  follow(streamId, reader) {
    this.#followed.set(streamId, reader);
    if (!this.#resume(streamId)) this.socket.connectNow();
  }

  forget(streamId) {
    this.#followed.delete(streamId);
  }

  cancel(streamId) {
    return this.socket.send({ type: "cancel", stream_id: streamId });
  }

  acknowledge(streamId, seq) {
    this.socket.send({ type: "ack", stream_id: streamId, seq });
  }

  renew() {
    this.socket.renew();
  }

  #resume(streamId) {
    return this.socket.send({ type: "resume", stream_id: streamId, after: this.#followed.get(streamId).seq });
  }

  async #open() {
    let granted;
    try {
      granted = await ticket();
    } catch (error) {
      if (!(error instanceof RequestError) || error.code !== "signed_out") throw error;
      this.onSignedOut();
      return null;
    }
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    return new WebSocket(`${scheme}//${location.host}/v1/ws`, ["headrace.v1", `headrace.ticket.${granted.ticket}`]);
  }

  #opened() {
    clearTimeout(this.#newsTimer);
    this.onConnection(true);
    for (const streamId of this.#followed.keys()) this.#resume(streamId);
  }

  #lost() {
    clearTimeout(this.#newsTimer);
    this.#newsTimer = setTimeout(() => this.onConnection(false), LOST_NEWS_MS);
  }

  #received(frame) {
    this.#followed.get(frame.stream_id)?.onFrame(frame);
  }
}
