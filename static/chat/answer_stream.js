// One answer on its way: takes its frames, shows text once per animation frame, says when it has ended.
//
// It lives as long as the stream, also while another conversation is open: its view can be taken away and given back.

const SILENCE_MS = 45_000;

export class AnswerStream {
  seq = 0;
  isEnding = false;
  isStopping = false;
  #chunks = [];
  #pending = [];
  #shownSeq = 0;
  #view = null;
  #frameRequest = 0;
  #watch = 0;
  #waitingText = "";

  /** `onEnd()` is called once, with the last frame's text shown. */
  constructor({ socket, streamId, onEnd }) {
    this.socket = socket;
    this.streamId = streamId;
    this.onEnd = onEnd;
  }

  start() {
    this.socket.follow(this.streamId, this);
    this.#heard();
  }

  /** Shows the answer in `view` from now on, what has come so far included. */
  attach(view) {
    this.#view = view;
    view.showWaiting(this.#waitingText);
    const text = this.#chunks.join("");
    if (text) view.append(text);
    if (this.isStopping) view.showStopping();
  }

  detach() {
    this.#view = null;
  }

  /** Asks for the end; false when there is no connection to ask over. */
  stop() {
    this.isStopping = true;
    this.#view?.showStopping();
    return this.socket.cancel(this.streamId);
  }

  onFrame(frame) {
    if (this.isEnding) return;
    this.#heard();
    if (frame.type === "delta") {
      if (frame.seq <= this.seq) return;
      this.seq = frame.seq;
      this.#pending.push(frame.text);
      this.#frameRequest ||= requestAnimationFrame(() => this.#flush());
    } else if (frame.type === "queued") {
      this.#wait(frame.position > 1 ? `Waiting, ${frame.position - 1} before you` : "Waiting for the model");
    } else if (frame.type === "started") {
      this.#wait("");
    } else if (frame.type === "end" || frame.type === "error") {
      this.end();
    }
  }

  /** The stream is over, or nothing more is to be learned of it here. */
  end() {
    if (this.isEnding) return;
    this.isEnding = true;
    clearTimeout(this.#watch);
    this.socket.forget(this.streamId);
    this.#flush(); // not left to an animation frame: a hidden page has none
    this.onEnd();
  }

  #flush() {
    cancelAnimationFrame(this.#frameRequest);
    this.#frameRequest = 0;
    if (this.#pending.length) {
      const text = this.#pending.join("");
      this.#pending.length = 0;
      this.#chunks.push(text);
      this.#view?.append(text);
    }
    if (this.#shownSeq === this.seq) return;
    this.#shownSeq = this.seq;
    if (!this.isEnding) this.socket.acknowledge(this.streamId, this.seq);
  }

  #wait(text) {
    this.#waitingText = text;
    this.#view?.showWaiting(text);
  }

  /** A connection can be dead without a word. After a long silence another one asks. */
  #heard() {
    clearTimeout(this.#watch);
    this.#watch = setTimeout(() => {
      this.socket.renew();
      this.#heard();
    }, SILENCE_MS);
  }
}
