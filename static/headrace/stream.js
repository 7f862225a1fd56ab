// One stream: what has come of it, and when what was read is acknowledged.

import { Reconstruction } from "./reconstruction.js";

const ACK_POSITIONS = 16; // consumed positions that are acknowledged at once
const ACK_MS = 25; // fewer wait so long for company
const WINDOW_PARTS = 4; // credit is renewed in quarters of the window

export class HeadraceError extends Error {
  /** `code` is the server's, or connection_rejected, start_unknown, sequence_error. */
  constructor(message, { code = "internal_error", param = null, streamId = null } = {}) {
    super(message);
    this.name = "HeadraceError";
    this.code = code;
    this.param = param;
    this.streamId = streamId;
  }
}

/** One stream. Iterate over it for its deltas `{seq, text}`, or give `onFrame` and acknowledge yourself. */
export class HeadraceStream {
  end = null; // the `end` frame, with `state`, `finish_reason`, `usage`, `timings`
  cache = null; // what the response cache had to do with it: hit, semantic, miss, bypass; unknown of a resumed stream
  error = null; // the HeadraceError that ended it
  acknowledged = 0;
  isHeld = false; // cut off for want of acknowledgements: resumed once all is read
  isCancelled = false;
  retries = 0;
  retryTimer = 0;
  #attempt = 0;
  #content;
  #client;
  #onFrame;
  #ackStep;
  #ackTimer = 0;
  #consumed = 0;
  #unread = [];
  #wake = null;

  constructor(client, { streamId = null, request = null, after = 0, onFrame = null }) {
    this.#client = client;
    this.streamId = streamId;
    this.request = request;
    this.acknowledged = this.#consumed = after;
    this.#content = new Reconstruction(after);
    this.#onFrame = onFrame;
    const window = request?.window;
    this.#ackStep = window ? Math.max(1, Math.min(ACK_POSITIONS, Math.floor(window / WINDOW_PARTS))) : ACK_POSITIONS;
  }

  /** Position of the last token that came: what another client would `follow` from. */
  get seq() {
    return this.#content.seq;
  }

  /** The text that has come so far. */
  get text() {
    return this.#content.text;
  }

  get isOver() {
    return this.end !== null || this.error !== null;
  }

  async *[Symbol.asyncIterator]() {
    try {
      for (;;) {
        while (!this.#unread.length && !this.isOver) await new Promise((wake) => (this.#wake = wake));
        if (!this.#unread.length) break;
        const delta = this.#unread.shift();
        yield delta;
        this.#consume(delta.seq); // more is asked for
      }
    } finally {
      this.close();
    }
    if (this.error) throw this.error;
  }

  /** Reads to the end and returns the whole text. */
  async read() {
    for await (const _ of this);
    return this.text;
  }

  /** Asks the engine to stop; the `end` confirms it. False while there is no connection: it is asked for on the next. */
  cancel() {
    this.isCancelled = true;
    return this.streamId !== null && this.#client.send({ type: "cancel", stream_id: this.streamId });
  }

  /** Says that everything up to `seq` was handled. */
  acknowledge(seq = this.seq) {
    clearTimeout(this.#ackTimer);
    this.#ackTimer = 0;
    if (seq <= this.acknowledged || this.isOver) return;
    this.acknowledged = seq;
    if (!this.isHeld) this.#client.send({ type: "ack", stream_id: this.streamId, seq });
    else if (seq >= this.seq) this.#client.resume(this);
  }

  /** Stops reading; a stream that runs is left to its tenant's policy. */
  close() {
    if (!this.isOver) this.#client.leave(this);
    clearTimeout(this.#ackTimer);
    this.#unread.length = 0;
  }

  // ---- called by the client

  /** Another connection goes on after `seq`, which counts as acknowledged. */
  resumed() {
    this.isHeld = false;
    this.acknowledged = this.#consumed = Math.max(this.acknowledged, this.seq);
    this.#content.connected();
  }

  /** Notes a frame; false for one that brings nothing new. Throws a RangeError where positions are out of order. */
  take(frame) {
    if (frame.type === "delta") {
      if (!this.#content.take(frame)) return false;
      if (!this.#onFrame) this.#unread.push({ seq: frame.seq, text: frame.text });
    } else if (frame.type === "retract") {
      this.#content.retract(frame.keep);
    } else if (frame.type === "replacement") {
      if (!this.#content.replace(frame.text)) return false;
      if (!this.#onFrame) this.#unread.push({ seq: this.seq, text: frame.text });
    } else if (frame.type === "started") {
      this.cache = frame.cache ?? this.cache;
      if (frame.attempt <= this.#attempt) return false; // told before, over another connection
      this.#attempt = frame.attempt;
    } else if (frame.type === "end") {
      if (frame.seq < this.seq) throw new RangeError(`The stream ends at ${frame.seq}, before ${this.seq}.`);
      this.end = frame;
      this.cache = frame.cache ?? this.cache;
    }
    return true;
  }

  tell(frame) {
    this.#onFrame?.(frame);
    this.#wake?.();
    this.#wake = null;
  }

  fail(error) {
    if (this.isOver) return;
    this.error = error;
    const { message, code, param } = error;
    this.tell({ type: "error", stream_id: this.streamId, error: { message, code, param } });
  }

  #consume(seq) {
    if (seq <= this.#consumed && !this.isHeld) return;
    this.#consumed = seq;
    if (this.isHeld || seq - this.acknowledged >= this.#ackStep) this.acknowledge(seq);
    else this.#ackTimer ||= setTimeout(() => this.acknowledge(this.#consumed), ACK_MS);
  }
}
