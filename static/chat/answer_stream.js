// One answer on its way: shows its text once per animation frame, acknowledges what it has shown, says when it has ended.
//
// It lives as long as the stream, also while another conversation is open: its view can be taken away and given back.

export class AnswerStream {
  isEnding = false;
  isStopping = false;
  #stream = null;
  #pending = [];
  #view = null;
  #frameRequest = 0;
  #waitingText = "";

  /** `onEnd()` is called once, with the last frame's text shown. */
  constructor({ client, streamId, onEnd }) {
    this.onEnd = onEnd;
    this.#stream = client.follow(streamId, { onFrame: (frame) => this.#onFrame(frame) });
  }

  /** Shows the answer in `view` from now on, what has come so far included. */
  attach(view) {
    this.#view = view;
    view.showWaiting(this.#waitingText);
    this.#pending.length = 0;
    if (this.#stream.text) view.append(this.#stream.text);
    if (this.isStopping) view.showStopping();
  }

  detach() {
    this.#view = null;
  }

  /** Asks for the end; false when there is no connection to ask over. */
  stop() {
    this.isStopping = true;
    this.#view?.showStopping();
    return this.#stream.cancel();
  }

  /** It could not be stopped and goes on. */
  keepGoing() {
    this.isStopping = this.#stream.isCancelled = false;
  }

  #onFrame(frame) {
    if (this.isEnding) return;
    if (frame.type === "delta") {
      this.#pending.push(frame.text);
      this.#frameRequest ||= requestAnimationFrame(() => this.#flush());
    } else if (frame.type === "replacement") {
      this.#pending.push(frame.text);
    } else if (frame.type === "retract") {
      this.#pending.length = 0;
      this.#view?.rewrite(this.#stream.text);
    } else if (frame.type === "queued") {
      this.#wait(waitingText(frame));
    } else if (frame.type === "started") {
      this.#wait("");
    } else if (frame.type === "end" || frame.type === "error") {
      this.#end();
    }
  }

  #end() {
    this.isEnding = true;
    this.#flush(); // not left to an animation frame: a hidden page has none
    this.onEnd();
  }

  #flush() {
    cancelAnimationFrame(this.#frameRequest);
    this.#frameRequest = 0;
    if (this.#pending.length) {
      const text = this.#pending.join("");
      this.#pending.length = 0;
      this.#view?.append(text);
    }
    this.#stream.acknowledge();
  }

  #wait(text) {
    this.#waitingText = text;
    this.#view?.showWaiting(text);
  }
}

/** What a `queued` frame means for the person who waits. */
function waitingText({ position, eta_ms: eta, reason }) {
  const seconds = eta?.map((ms) => Math.max(1, Math.round(ms / 1000)));
  const about = seconds ? `, about ${[...new Set(seconds)].join(" to ")} s` : "";
  if (reason === "own_limit") return `Waiting for your other answers${about}`;
  return position > 1 ? `Waiting, ${position - 1} before you${about}` : `Waiting for the model${about}`;
}
