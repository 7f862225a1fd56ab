// Where the user writes. A draft outlives a reload, and a refused message comes back into the field.

export class Composer {
  constructor({ onSend, onStop, onText }) {
    this.onText = onText;
    this.form = document.getElementById("composer");
    this.field = document.getElementById("composer-text");
    this.sendButton = document.getElementById("send");
    this.stopButton = document.getElementById("stop");
    this.isBusy = false;
    this.draftKey = "new";
    this.form.onsubmit = (event) => {
      event.preventDefault();
      const text = this.field.value.trim();
      if (text && !this.isBusy) onSend(text);
    };
    this.stopButton.onclick = onStop;
    this.field.oninput = () => this.#changed();
    this.field.onkeydown = (event) => {
      // Enter also confirms a word in an input method: that one sends nothing.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.form.requestSubmit();
    };
  }

  /** Shows the draft that belongs to a conversation. */
  open(conversationId) {
    this.draftKey = conversationId ?? "new";
    this.field.value = sessionStorage.getItem(`draft:${this.draftKey}`) ?? "";
    this.#changed();
  }

  set(text) {
    this.field.value = text;
    this.#changed();
  }

  clear() {
    this.set("");
  }

  focus() {
    // On a phone the keyboard would cover what is to be read.
    if (matchMedia("(hover: hover)").matches) this.field.focus();
  }

  /** While an answer is on its way there is a stop button in the place of the send button. */
  setBusy(isBusy, isStopping) {
    this.isBusy = isBusy;
    const hadFocus = document.activeElement === this.stopButton;
    this.sendButton.hidden = isBusy;
    this.stopButton.hidden = !isBusy;
    this.stopButton.disabled = isStopping;
    this.stopButton.classList.toggle("stopping", isStopping);
    this.stopButton.setAttribute("aria-label", isStopping ? "Stopping…" : "Stop the answer");
    if (hadFocus && !isBusy) this.field.focus();
  }

  #changed() {
    const { field } = this;
    this.sendButton.disabled = !field.value.trim();
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight}px`;
    const key = `draft:${this.draftKey}`;
    if (field.value) sessionStorage.setItem(key, field.value);
    else sessionStorage.removeItem(key);
    this.onText(field.value);
  }
}
