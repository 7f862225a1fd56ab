// Puts the text of one stream together from the frames of any number of connections, each position exactly once.

export class Reconstruction {
  #parts = [];
  #connectionSeq = null;
  #isReplaced = false;

  /** Begins after position `after`, which the caller has already. */
  constructor(after = 0) {
    this.seq = after;
  }

  get text() {
    if (this.#parts.length > 1) this.#parts = [this.#parts.join("")];
    return this.#parts[0] ?? "";
  }

  /** What follows comes over another connection, which was asked to go on after `seq`. */
  connected() {
    this.#connectionSeq = null;
  }

  /** Takes back everything but the first `keep` characters (code points, not UTF-16 units). */
  retract(keep) {
    this.#parts = [Array.from(this.text).slice(0, keep).join("")];
  }

  /** Adds what stands in the place of the rest; false where that is here already. */
  replace(text) {
    if (this.#isReplaced) return false;
    this.#isReplaced = true;
    this.#parts.push(text);
    return true;
  }

  /**
   * Adds a delta; false for one that is here already. On one connection positions must rise, and none may be left out. A
   * connection may begin by repeating what came over an earlier one; a frame of which only a part is new cannot be cut.
   * Throws a RangeError.
   */
  take({ seq, text, after = null }) {
    const before = this.#connectionSeq;
    this.#connectionSeq = seq;
    if (before !== null && seq <= before) throw new RangeError(`Position ${seq} came after ${before}.`);
    if (seq <= this.seq) return false;
    const begin = after ?? before; // servers before `after` said only where a frame ends
    if (begin !== null && begin < this.seq) {
      throw new RangeError(`Positions ${begin + 1} to ${seq} came at once, and ${this.seq} is here already.`);
    }
    if (after !== null && after > this.seq) throw new RangeError(`Positions ${this.seq + 1} to ${after} are missing.`);
    this.seq = seq;
    this.#parts.push(text);
    return true;
  }
}
