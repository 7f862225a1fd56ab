// A panel: a chart, its legend, the chosen point, and the same numbers as a table.

import { TimeChart } from "./chart.js";
import { inWords } from "./numbers.js";
import { fillTable } from "./numbers_table.js";
import { stretch } from "./time_axis.js";

const iso = (second) => encodeURIComponent(new Date(second * 1000).toISOString());

export class Panel {
  #element;
  #spec;
  #chart;
  #data = null;

  constructor(element, spec, root) {
    this.#element = element;
    this.#spec = spec;
    this.#chart = new TimeChart(element.querySelector("canvas"), spec, root, {
      onPick: (index, event) => this.#pick(index, event),
    });
    this.#drawLegend();
    element.querySelector(".lt-variant")?.addEventListener("change", (event) => this.#choose(event.target.value));
    this.#details.addEventListener("toggle", () => this.#fillTable());
  }

  get #details() {
    return this.#element.querySelector("details");
  }

  show(data) {
    this.#data = data;
    const isEmpty = this.#spec.lines.every(({ series }) => (data.series[series] ?? []).every((one) => one === null));
    this.#element.hidden = isEmpty && this.#spec.is_optional;
    this.#element.querySelector(".lt-empty").hidden = !isEmpty;
    if (this.#element.hidden) return;
    this.#chart.show(data);
    this.#element.querySelector("canvas").setAttribute("aria-label", this.#summary(isEmpty));
    this.#fillTable();
  }

  set isLogarithmic(value) {
    this.#chart.isLogarithmic = value;
  }

  redraw() {
    this.#chart.redraw();
  }

  #choose(name) {
    this.#spec = { ...this.#spec, lines: this.#spec.variants.find((one) => one.name === name).lines };
    this.#chart.lines = this.#spec.lines;
    this.#drawLegend();
    if (this.#data) this.show(this.#data);
  }

  #summary(isEmpty) {
    const title = this.#element.querySelector("h2").textContent;
    if (isEmpty) return `${title}: nothing in this time.`;
    const { totals } = this.#data, { lines, unit } = this.#spec;
    const told = lines.map(({ series, label }) => `${label} ${inWords(totals[series], unit)}`);
    return `${title}, the whole time: ${told.join(", ")}. The table below has every point.`;
  }

  #drawLegend() {
    const buttons = this.#spec.lines.map(({ series, label, colour }) => {
      const button = document.createElement("button"), swatch = document.createElement("i");
      swatch.style.background = `var(--lt-${colour})`;
      button.type = "button";
      button.append(swatch, label);
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        const isHidden = button.getAttribute("aria-pressed") === "true";
        button.setAttribute("aria-pressed", String(!isHidden));
        this.#chart.hide(series, isHidden);
      });
      return button;
    });
    this.#element.querySelector(".lt-legend").replaceChildren(...buttons);
  }

  /** Returns links to the streams behind a point: those that are alive where it is of now, else the ended ones. */
  #linksOf(index) {
    const { at, step, now, links } = this.#data, from = at[index], to = from + step;
    return links
      .filter(({ within }) => within === null || now - to <= within)
      .map(({ label, url }) => {
        const link = document.createElement("a");
        link.href = url.replace("{from}", iso(from)).replace("{to}", iso(to));
        link.textContent = label;
        return link;
      });
  }

  #pick(index, event) {
    const links = this.#linksOf(index), from = this.#data.at[index] * 1000;
    const told = this.#spec.lines
      .map(({ series, label }) => [label, this.#data.series[series]?.[index] ?? null])
      .filter(([, value]) => value !== null)
      .map(([label, value]) => `${label} ${inWords(value, this.#spec.unit)}`);
    const point = this.#element.querySelector(".lt-point");
    point.replaceChildren(`${stretch(from, from + this.#data.step * 1000)}: ${told.join(", ")} `);
    for (const link of links) point.append(link, " ");
    // A finger that taps wants to read the point; a mouse has read it already.
    if (!links.length || event.pointerType === "touch") return;
    if (event.ctrlKey || event.metaKey) window.open(links[0].href, "_blank", "noopener");
    else location.assign(links[0].href);
  }

  #fillTable() {
    if (!this.#details.open || !this.#data) return;
    fillTable(this.#details.querySelector("table"), this.#spec, this.#data, (index) => this.#linksOf(index));
  }
}
