// A client of headrace.v1 (docs/clients.md) for browsers, Node and whatever else has a WebSocket. No dependencies.
// Many streams share one connection. It comes back after a loss, resumes each stream and puts its text together with
// each position once.

import { ReconnectingSocket } from "./reconnecting_socket.js";
import { HeadraceError, HeadraceStream } from "./stream.js";

export { HeadraceError, HeadraceStream };

const SILENCE_MS = 45_000; // a connection can be dead without a word: after so long another one asks
const STALLED = 4408; // nothing was acknowledged in time
const PASSING = ["draining", "dependency_unavailable"]; // of a connection, not of the stream
const OVERLOADED_RETRIES = 4; // a refused resume and a stream that ended so look alike
const FIRST_RETRY_MS = 400;
const LONGEST_RETRY_MS = 15_000;
const DRAFT = "draft:"; // begins the `ref` of drafts, so that no stream takes what is said of them for its own

export class HeadraceClient {
  #socket;
  #onConnection;
  #onRejected;
  #onDraftOff;
  #closing = null; // the HeadraceError after which there is no connection any more
  #followed = new Map(); // stream id -> HeadraceStream
  #unsent = []; // streams whose request waits for its turn
  #asked = null; // the stream whose request is unanswered: one at a time, so that a bare error can only be about it
  #inLine = new Map(); // ref -> HeadraceStream that waits for a full gateway and has no id yet
  #asks = 0;
  #isRenewalDue = false;
  #heardAt = 0;
  #watch = 0;

  /**
   * `open()` returns (a promise of) a new WebSocket with the subprotocol "headrace.v1", or null to try no more.
   * `onConnection(isUp)` is told of each connection and each loss, `onRejected(error)` of a refusal that is final,
   * `onDraftOff(model, frame)` where drafts are of no use.
   */
  constructor({ open, onConnection = () => {}, onRejected = () => {}, onDraftOff = () => {} }) {
    this.#onConnection = onConnection;
    this.#onDraftOff = onDraftOff;
    this.#onRejected = onRejected;
    this.#socket = new ReconnectingSocket(open, {
      onOpen: () => this.#opened(),
      onText: (text) => this.#received(JSON.parse(text)),
      onLost: (code) => this.#lost(code),
      onFinal: (code, reason) => {
        this.#failAll("connection_rejected", `The server refused the connection: ${code} ${reason}`.trim());
        this.#onRejected(this.#closing);
      },
    });
  }

  /** Connects already now, so that the first stream need not wait for it. */
  connect() {
    this.#socket.connectNow();
  }

  /** Starts a stream: `request` has `model`, `messages`, and sampling fields as in chat completions. */
  generate(request, { onFrame } = {}) {
    const stream = new HeadraceStream(this, { request, onFrame });
    if (this.#closing) return this.#stillborn(stream);
    this.#unsent.push(stream);
    this.#ask();
    return stream;
  }

  /** Follows an existing stream from after position `after` on. */
  follow(streamId, { after = 0, onFrame } = {}) {
    if (this.#followed.has(streamId)) throw new TypeError(`The stream ${streamId} is followed already.`);
    const stream = new HeadraceStream(this, { streamId, after, onFrame });
    if (this.#closing) return this.#stillborn(stream);
    this.#followed.set(streamId, stream);
    this.resume(stream);
    return stream;
  }

  /**
   * Lets the server compute what is certain of a message that is still being typed: `draft` has `model`, `messages` (those
   * before) and `text`; an empty text takes the last one back. Returns false when there is no connection: it is no loss.
   */
  draft(draft) {
    if (this.#closing) return false;
    if (!this.#socket.isOpen) this.#socket.connectNow();
    return this.send({ type: "draft", ...draft, ref: `${DRAFT}${draft.model}` });
  }

  /** Ends the connection, for good. */
  close() {
    this.#socket.stop();
    this.#failAll("client_closed", "The client is closed.");
  }

  // ---- called by streams

  /** Sends and returns true, or returns false when there is no connection. */
  send(message) {
    return this.#socket.send(message);
  }

  resume(stream) {
    this.#listen();
    const message = { type: "resume", stream_id: stream.streamId, after: stream.seq };
    if (!this.#socket.isOpen) return this.#socket.connectNow(); // all are resumed when it is
    clearTimeout(stream.retryTimer);
    stream.resumed();
    this.send(message);
    if (stream.isCancelled) stream.cancel();
  }

  /** Nothing more is wanted of a stream. There is no frame for that: the others go on over another connection. */
  leave(stream) {
    this.#unsent = this.#unsent.filter((other) => other !== stream);
    clearTimeout(stream.retryTimer);
    const isLive = this.#asked === stream || this.#inLine.delete(stream.ref) || this.#followed.delete(stream.streamId);
    if (this.#asked === stream) this.#asked = null;
    if (isLive) this.#renew();
  }

  // ---- the connection

  #opened() {
    this.#onConnection(true);
    for (const stream of this.#followed.values()) if (!stream.isHeld) this.resume(stream);
    this.#ask();
  }

  #lost(code) {
    this.#onConnection(false);
    this.#isRenewalDue = false;
    const unanswered = this.#takeUnanswered();
    // Never sent again: that could start a second generation.
    const message = "The connection broke before the stream had an id; it may run, or not.";
    for (const stream of unanswered) stream.fail(new HeadraceError(message, { code: "start_unknown" }));
    if (code === STALLED) for (const stream of this.#followed.values()) stream.isHeld = stream.seq > stream.acknowledged;
  }

  /** Goes over to another connection, once no request is unanswered on this one. */
  #renew() {
    if (this.#asked || this.#inLine.size) this.#isRenewalDue = true;
    else this.#socket.renew();
  }

  #ask() {
    if (this.#asked || this.#isRenewalDue || !this.#unsent.length) return;
    if (!this.#socket.isOpen) return this.#socket.connectNow();
    this.#asked = this.#unsent.shift();
    this.#asked.ref = `r${++this.#asks}`;
    this.#listen();
    this.send({ type: "generate", ...this.#asked.request, ref: this.#asked.ref });
  }

  #received(frame) {
    this.#heardAt = performance.now();
    if (frame.type === "draft_off") return this.#onDraftOff(frame.ref?.slice(DRAFT.length), frame);
    const stream = this.#streamOf(frame);
    if (!stream) return;
    if (frame.type === "error") return this.#refused(stream, frame.error);
    stream.retries = 0;
    let isNews;
    try {
      isNews = stream.take(frame);
    } catch (error) {
      this.leave(stream);
      return stream.fail(new HeadraceError(error.message, { code: "sequence_error", streamId: stream.streamId }));
    }
    if (stream.end) this.#followed.delete(stream.streamId);
    if (isNews) stream.tell(frame);
  }

  /** The stream that a frame is about. A new one is known by its `ref`, until a frame gives it its id. */
  #streamOf(frame) {
    const asked = this.#asked;
    const isBareError = frame.type === "error" && !frame.ref && !frame.stream_id;
    if (asked && (frame.ref === asked.ref || isBareError)) {
      this.#asked = null;
      this.#inLine.set(asked.ref, asked);
    }
    const stream = isBareError ? asked : this.#inLine.get(frame.ref);
    if (!stream) return this.#followed.get(frame.stream_id);
    if (frame.stream_id || frame.type === "error") this.#inLine.delete(stream.ref);
    if (frame.stream_id) {
      stream.streamId = frame.stream_id;
      this.#followed.set(stream.streamId, stream);
      if (stream.isCancelled) stream.cancel();
    }
    if (this.#isRenewalDue) this.#renew();
    else this.#ask();
    return stream;
  }

  #refused(stream, { code, message, param = null }) {
    const isNew = stream.streamId === null;
    if (isNew && code === "draining") {
      this.#unsent.unshift(stream);
      return this.#renew();
    }
    const isOverload = code === "server_overloaded" && stream.retries < OVERLOADED_RETRIES;
    if (!isNew && (isOverload || PASSING.includes(code))) {
      const ceiling = Math.min(LONGEST_RETRY_MS, FIRST_RETRY_MS * 2 ** stream.retries++);
      stream.retryTimer = setTimeout(() => this.resume(stream), ceiling / 2 + (Math.random() * ceiling) / 2);
      return;
    }
    this.#followed.delete(stream.streamId);
    stream.fail(new HeadraceError(message, { code, param, streamId: stream.streamId }));
  }

  #takeUnanswered() {
    const unanswered = [...this.#inLine.values(), ...(this.#asked ? [this.#asked] : [])];
    this.#inLine.clear();
    this.#asked = null;
    return unanswered;
  }

  #stillborn(stream) {
    queueMicrotask(() => stream.fail(this.#closing));
    return stream;
  }

  #failAll(code, message) {
    this.#closing = new HeadraceError(message, { code });
    clearTimeout(this.#watch);
    this.#watch = 0;
    const streams = [...this.#followed.values(), ...this.#unsent, ...this.#takeUnanswered()];
    this.#followed.clear();
    this.#unsent = [];
    for (const stream of streams) clearTimeout(stream.retryTimer);
    for (const stream of streams) stream.fail(new HeadraceError(message, { code, streamId: stream.streamId }));
  }

  /** Watches for silence while something is to be heard. */
  #listen() {
    if (this.#watch) return;
    this.#heardAt = performance.now();
    const look = () => {
      const streams = [...this.#followed.values(), ...this.#inLine.values(), ...(this.#asked ? [this.#asked] : [])];
      const left = this.#heardAt + SILENCE_MS - performance.now();
      if (left <= 0 && streams.some((stream) => !stream.isHeld)) {
        this.#heardAt = performance.now();
        this.#socket.renew();
      }
      this.#watch = streams.length ? setTimeout(look, Math.max(left, 1_000)) : 0;
    };
    this.#watch = setTimeout(look, SILENCE_MS);
  }
}
