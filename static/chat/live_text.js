// Text of an answer while it is being written. What is there is never touched again: a delta costs the same at the
// first token and at the ten-thousandth. It knows paragraphs, headings and fenced code; the stored answer, rendered on
// the server, takes its place at the end.

const NODE_LENGTH = 2_000; // a text node this long is followed by another, since appending copies it

export class LiveText {
  #block = null;
  #node = null;
  #kind = "prose"; // "prose", "heading", "code", or "fence": the rest of a fence's line, which is not shown
  #held = ""; // the start of a line, as long as it may become a fence or a heading
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
      if (this.#isLineStart && newline < 0 && this.#mayBecomeMark(line)) {
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
  }

  #mayBecomeMark(line) {
    return this.#kind === "code" ? /^ {0,3}`{0,2}$/.test(line) : /^( {0,3}`{0,2}|#{1,6})$/.test(line);
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
      if (isComplete && this.#kind === "heading") this.#closeBlock();
      else if (isComplete && this.#block) this.#write("\n");
    }
  }

  #startLine(line) {
    const isFence = /^ {0,3}```/.test(line);
    if (this.#kind === "code") {
      if (!isFence) return line;
      this.#closeBlock();
      return line.replace(/^ {0,3}`+/, "");
    }
    if (isFence) {
      this.#closeBlock();
      this.#kind = "fence";
      return "";
    }
    const heading = /^#{1,6} /.exec(line);
    if (!heading) return line;
    this.#openBlock("heading");
    return line.slice(heading[0].length);
  }

  #openBlock(kind) {
    this.#kind = kind;
    const element = document.createElement(kind === "code" ? "pre" : "p");
    if (kind === "heading") element.className = "heading";
    this.#block = kind === "code" ? element.appendChild(document.createElement("code")) : element;
    this.#node = null;
    this.container.append(element);
  }

  #closeBlock() {
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
