// Text of an answer while it is being written. Only the last block is touched, and only at its end: a delta costs the
// same at the first token and at the ten-thousandth. A block gets its inline marks once, when it is complete. It knows
// paragraphs, headings, list items and fenced code; the stored answer, rendered by the server, takes its place at the end.

import { formatInline } from "./inline_marks.js";

const NODE_LENGTH = 2_000; // a text node this long is followed by another, since appending copies it

const MAY_BECOME_MARK = /^( {0,3}`{0,2}|#{1,6}| {0,8}([-*+]|\d{1,3}[.)]?))$/;
const MAY_BECOME_FENCE = /^ {0,3}`{0,2}$/;
const FENCE = /^ {0,3}```/;
const HEADING = /^#{1,6} /;
const ITEM = /^( {0,8})([-*+]|\d{1,3}[.)]) /;

export class LiveText {
  #block = null;
  #node = null;
  #kind = "prose"; // "prose", "heading", "item", "code", or "fence": the rest of a fence's line, which is not shown
  #held = ""; // the start of a line, as long as it may become a mark
  #isLineStart = true;

  constructor(container) {
    this.container = container;
  }

  append(text) {
    let rest = this.#held + text;
    this.#held = "";
    while (rest) {
      const newline = rest.indexOf("\n");
      const line = newline < 0 ? rest : rest.slice(0, newline);
      const mayBecome = this.#kind === "code" ? MAY_BECOME_FENCE : MAY_BECOME_MARK;
      if (this.#isLineStart && newline < 0 && mayBecome.test(line)) {
        this.#held = line;
        return;
      }
      this.#take(line, newline >= 0);
      rest = newline < 0 ? "" : rest.slice(newline + 1);
      this.#isLineStart = newline >= 0;
    }
  }

  /** Shows what was held back; nothing follows. */
  finish() {
    if (this.#held) this.#write(this.#held);
    this.#held = "";
    this.#closeBlock();
  }

  #take(line, isComplete) {
    const isBlank = this.#isLineStart && isComplete && line === "";
    if (this.#isLineStart) line = this.#startLine(line);
    if (this.#kind === "fence") {
      if (isComplete) this.#openBlock("code");
    } else if (isBlank && this.#kind !== "code") {
      this.#closeBlock();
    } else {
      this.#write(line);
      if (isComplete && (this.#kind === "heading" || this.#kind === "item")) this.#closeBlock();
      else if (isComplete && this.#block) this.#write("\n");
    }
  }

  /** Opens the block that a line's mark asks for; returns what of the line is to be shown. */
  #startLine(line) {
    if (this.#kind === "code") {
      if (!FENCE.test(line)) return line;
      this.#closeBlock();
      return line.replace(/^ {0,3}`+/, "");
    }
    if (FENCE.test(line)) {
      this.#closeBlock();
      this.#kind = "fence";
      return "";
    }
    const heading = HEADING.exec(line);
    if (heading) {
      this.#openBlock("heading");
      return line.slice(heading[0].length);
    }
    const item = ITEM.exec(line);
    if (!item) return line;
    this.#openBlock("item");
    if (item[1].length >= 2) this.#block.classList.add("nested");
    return `${/\d/.test(item[2]) ? item[2] : "•"} ${line.slice(item[0].length)}`;
  }

  #openBlock(kind) {
    this.#closeBlock();
    this.#kind = kind;
    const element = document.createElement(kind === "code" ? "pre" : "p");
    if (kind === "heading" || kind === "item") element.className = kind;
    this.#block = kind === "code" ? element.appendChild(document.createElement("code")) : element;
    this.container.append(element);
  }

  #closeBlock() {
    if (this.#block && this.#kind !== "code") formatInline(this.#block);
    this.#block = this.#node = null;
    this.#kind = "prose";
  }

  #write(text) {
    if (!text) return;
    if (!this.#block) this.#openBlock("prose");
    if (!this.#node || this.#node.length > NODE_LENGTH) this.#node = this.#block.appendChild(new Text());
    this.#node.appendData(text);
  }
}
