// The end of the time that another one is compared with: told by the reader's clock, asked for as an instant.

const DAY = 24 * 3600_000;

/** Returns an instant as `datetime-local` has it. */
function byTheClock(instant) {
  const at = new Date(instant);
  return new Date(at - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

export class OtherTime {
  #form;
  #box;

  constructor(form) {
    this.#form = form;
    this.#box = form.querySelector("[data-other]");
  }

  get #input() {
    return this.#box.querySelector("[type=datetime-local]");
  }

  /** Takes over what was typed, where `field` is where one types it; says whether it was. */
  take(field) {
    if (!this.#box || field !== this.#input) return false;
    this.#form.elements.other.value = field.value ? new Date(field.value).toISOString() : "";
    return true;
  }

  /** Shows the field where another time was chosen: a day earlier, until one is told. */
  show() {
    if (!this.#box) return;
    const { compare, other, end } = this.#form.elements;
    this.#box.hidden = compare.value !== "other";
    if (this.#box.hidden) other.value = "";
    else other.value ||= new Date((Date.parse(end.value) || Date.now()) - DAY).toISOString();
    this.#input.value = other.value && byTheClock(other.value);
  }
}
