// One chart of Chart.js (which the page loads before): lines or stacked bars over time, goals as dashed lines, the time
// before as fainter dashes. What it shows comes from the server; nothing here knows what a phase is.

import { coloursOf, faint } from "./colours.js";
import { inWords } from "./numbers.js";
import { stretch, tickLabel, timeTicks } from "./time_axis.js";

const AXIS_WIDTH = 68; // fixed, so that a wider number moves nothing
const BEFORE = "before";

/** The goals' lines, with their names where the time begins. */
const goalLines = {
  id: "goalLines",
  afterDatasetsDraw(chart) {
    const { ctx, chartArea, scales } = chart;
    for (const goal of chart.options.plugins.goalLines?.goals ?? []) {
      if (goal.value < scales.y.min || goal.value > scales.y.max) continue;
      const y = scales.y.getPixelForValue(goal.value);
      ctx.save();
      ctx.strokeStyle = goal.colour;
      ctx.setLineDash([2, 3]);
      ctx.beginPath();
      ctx.moveTo(chartArea.left, y);
      ctx.lineTo(chartArea.right, y);
      ctx.stroke();
      ctx.font = `600 11px ${Chart.defaults.font.family}`;
      ctx.textBaseline = "middle";
      const top = Math.max(y - 8, chartArea.top + 8), width = ctx.measureText(goal.label).width;
      ctx.fillStyle = goal.ground;
      ctx.fillRect(chartArea.left + 2, top - 7, width + 8, 14);
      ctx.fillStyle = goal.colour;
      ctx.fillText(goal.label, chartArea.left + 6, top);
      ctx.restore();
    }
  },
};

export class TimeChart {
  #chart;
  #spec;
  #root;
  #data = null;
  #hidden = new Set();
  #isLogarithmic = false;

  /** `onPick(index, event)` when a point is clicked. */
  constructor(canvas, spec, root, { onPick }) {
    this.#spec = spec;
    this.#root = root;
    this.#chart = new Chart(canvas, {
      type: spec.is_stacked ? "bar" : "line",
      data: { datasets: [] },
      options: this.#options(onPick),
      plugins: [goalLines],
    });
  }

  show(data) {
    this.#data = data;
    this.#draw();
  }

  set lines(lines) {
    this.#spec = { ...this.#spec, lines };
    this.#hidden.clear();
  }

  hide(series, isHidden) {
    this.#hidden[isHidden ? "add" : "delete"](series);
    this.#draw();
  }

  set isLogarithmic(value) {
    this.#isLogarithmic = value && !this.#spec.is_stacked && this.#spec.unit === "seconds";
    this.#draw();
  }

  redraw() {
    this.#draw();
  }

  #draw() {
    if (!this.#data) return;
    const { options, data } = this.#chart, { at, step, start, end } = this.#data;
    const names = ["text", "grid", "card", ...this.#spec.lines.map((line) => line.colour)];
    const colours = coloursOf(this.#root, names);
    options.scales.x.min = start * 1000;
    options.scales.x.max = Math.max(end, (at.at(-1) ?? end) + step) * 1000;
    options.scales.y.type = this.#isLogarithmic ? "logarithmic" : "linear";
    options.scales.y.beginAtZero = !this.#isLogarithmic;
    for (const axis of [options.scales.x, options.scales.y]) {
      axis.ticks.color = colours.text;
      axis.grid.color = colours.grid;
    }
    options.plugins.goalLines = { goals: this.#goals(colours) };
    options.scales.y.max = this.#spec.top ?? undefined;
    options.scales.y.suggestedMax = this.#suggestedMax();
    data.datasets = [...this.#datasets(colours), ...this.#datasetsBefore(colours)];
    this.#chart.update("none");
  }

  /** A bar stands for its whole step, so it is drawn in the middle of it; a line's point too. */
  #points(values, shift = 0) {
    const { step } = this.#data;
    return (at) => at.map((second, index) => ({ x: (second + step / 2 + shift) * 1000, y: values?.[index] ?? null }));
  }

  #datasets(colours) {
    const { series, at } = this.#data;
    const look = (colour, values) =>
      this.#spec.is_stacked ? { backgroundColor: colour } : this.#lineLook(colour, values);
    return this.#spec.lines.map((line) => ({
      ...look(colours[line.colour], series[line.series] ?? []),
      label: line.label,
      data: this.#points(series[line.series])(at),
      hidden: this.#hidden.has(line.series),
      stack: "now",
    }));
  }

  #datasetsBefore(colours) {
    const { before } = this.#data;
    if (!before) return [];
    const lines = this.#spec.total ? [{ ...this.#spec.total, colour: "text" }] : this.#spec.lines;
    return lines.map((line) => {
      const values = before.series[line.series] ?? [];
      return {
        ...this.#lineLook(faint(colours[line.colour], 0.55), values),
        type: "line",
        fill: false,
        borderDash: [5, 4],
        label: `${line.label}, ${BEFORE}`,
        data: this.#points(values, before.shift)(before.at),
        hidden: this.#hidden.has(line.series),
        stack: BEFORE,
      };
    });
  }

  #lineLook(colour, values) {
    // A point between two gaps has no line to it: it is drawn as a dot, or nobody would see it.
    const isAlone = ({ dataIndex: i }) => (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null;
    return {
      borderColor: colour,
      backgroundColor: colour,
      borderWidth: 2,
      pointRadius: (point) => (isAlone(point) ? 2.5 : 0),
      pointHoverRadius: 4,
      pointHitRadius: 8,
      tension: 0,
    };
  }

  #goals(colours) {
    return this.#spec.goals
      .map((name) => ({ name, line: this.#spec.lines.find((one) => one.series === name), value: this.#data.goals[name] }))
      .filter(({ value, line }) => value !== undefined && line && !this.#hidden.has(line.series))
      .map(({ value, line }) => ({
        value,
        colour: colours[line.colour],
        ground: faint(colours.card, 0.85),
        label: `${line.label} ≤ ${inWords(value, this.#spec.unit)}`,
      }));
  }

  /** The lowest goal is always in sight; shares that are all zero do not stand under an axis of 150 %. */
  #suggestedMax() {
    const goals = this.#spec.goals.map((name) => this.#data.goals[name]).filter((value) => value !== undefined);
    if (goals.length) return Math.min(...goals) * 1.25;
    return this.#spec.unit === "share" ? 0.05 : undefined;
  }

  #options(onPick) {
    const { unit } = this.#spec, stacked = this.#spec.is_stacked;
    const isRound = (value) => /^[125]0*$/.test(String(Number(value.toPrecision(3)).toExponential()).replace(/e.*/, ""));
    return {
      animation: false,
      parsing: false,
      normalized: true,
      responsive: true,
      maintainAspectRatio: false,
      interaction: { mode: "index", intersect: false },
      datasets: { bar: { barPercentage: 1, categoryPercentage: 1 } },
      scales: {
        x: {
          type: "linear",
          stacked,
          offset: false, // of a bar chart too: all charts begin at the same place
          grid: { display: false },
          afterBuildTicks: (axis) => {
            const count = Math.max(4, Math.floor((axis.maxWidth || 600) / 80));
            axis.ticks = timeTicks(axis.min, axis.max, count).map((value) => ({ value }));
          },
          ticks: {
            maxRotation: 0,
            autoSkip: true,
            callback(value) {
              return tickLabel(value, this.max - this.min);
            },
          },
        },
        y: {
          type: "linear",
          stacked,
          beginAtZero: true,
          grace: "4%",
          border: { display: false },
          grid: {},
          afterFit: (axis) => (axis.width = AXIS_WIDTH),
          ticks: {
            maxTicksLimit: 6,
            callback: (value) => (this.#isLogarithmic && !isRound(value) ? null : inWords(value, unit)),
          },
        },
      },
      plugins: {
        legend: { display: false },
        tooltip: {
          callbacks: {
            title: ([item]) => item && this.#title(item.dataIndex),
            label: ({ dataset, raw }) => `${dataset.label}: ${inWords(raw.y, unit)}`,
            footer: ([item]) => item && this.#footer(item.dataIndex),
          },
          filter: ({ raw }) => raw.y !== null,
        },
      },
      onHover: (event, found) => (event.native.target.style.cursor = found.length ? "pointer" : "default"),
      onClick: (event, found) => found.length && onPick(found[0].index, event.native),
    };
  }

  #title(index) {
    const { at, step } = this.#data;
    return stretch(at[index] * 1000, (at[index] + step) * 1000);
  }

  #footer(index) {
    const count = this.#data.series["count.requests"]?.[index];
    return count === undefined ? "" : `${count.toLocaleString("en")} requests`;
  }
}
