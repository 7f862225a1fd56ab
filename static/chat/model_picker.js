// Which model answers. The list is asked for again while one of them is not up.

import { make } from "./elements.js";
import * as requests from "./requests.js";

const POLL_MS = 5_000;
const REMEMBERED = "model";

export class ModelPicker {
  #models = [];

  constructor(models, { onChange }) {
    this.onChange = onChange;
    this.select = document.getElementById("model");
    this.select.onchange = () => {
      localStorage.setItem(REMEMBERED, this.select.value);
      this.onChange();
    };
    this.#take(models);
    this.choose(localStorage.getItem(REMEMBERED));
    setInterval(() => this.#ask(), POLL_MS);
  }

  get name() {
    return this.select.value;
  }

  get isEmpty() {
    return this.#models.length === 0;
  }

  get isReady() {
    return this.#models.find((model) => model.name === this.name)?.is_ready ?? false;
  }

  /** Chooses a model if it is there; nothing otherwise. */
  choose(name) {
    if (this.#models.some((model) => model.name === name)) this.select.value = name;
    this.onChange();
  }

  async #ask() {
    if (document.hidden || (!this.isEmpty && this.#models.every((model) => model.is_ready))) return;
    try {
      this.#take((await requests.models()).models);
    } catch {
      return; // the next time
    }
    this.onChange();
  }

  #take(models) {
    const chosen = this.select.value;
    this.#models = models;
    this.select.disabled = this.isEmpty;
    this.select.replaceChildren(
      ...models.map((model) => make("option", { value: model.name, textContent: describe(model) })),
    );
    if (this.isEmpty) this.select.append(make("option", { value: "", textContent: "No model" }));
    if (models.some((model) => model.name === chosen)) this.select.value = chosen;
  }
}

function describe(model) {
  const remarks = [model.is_simulated ? "simulated" : "", model.is_ready ? "" : "not up"].filter(Boolean);
  return remarks.length ? `${model.name} (${remarks.join(", ")})` : model.name;
}
