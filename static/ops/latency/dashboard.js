// The latency page, of operators and of a tenant's members: what is asked for stands in the form and in the address.

import { onThemeChange } from "./colours.js";
import { change, inWords } from "./numbers.js";
import { OtherTime } from "./other_time.js";
import { Panel } from "./panel.js";
import { NumbersSource } from "./source.js";
import { ago, stretch, timeOfDay, zone } from "./time_axis.js";

const STALE_SECONDS = 240; // the roll-up runs each minute
const LOGARITHMIC = "headrace-latency-logarithmic";

const root = document.querySelector("#latency");
const form = root.querySelector("form");
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const texts = read("latency-texts");
const tiles = read("latency-tiles");
const panels = read("latency-panels").map(
  (spec) => new Panel(root.querySelector(`[data-panel="${spec.name}"]`), spec, root),
);
const otherTime = new OtherTime(form);
let shown = null;

// ---- the form and the address

function query() {
  const asked = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value) asked.set(name, value);
  return asked;
}

function remember() {
  const asked = query().toString();
  if (location.search.slice(1) !== asked) history.pushState(null, "", asked ? `?${asked}` : location.pathname);
}

function recall() {
  const asked = new URLSearchParams(location.search);
  for (const field of form.elements) {
    if (!field.name) continue;
    const value = asked.get(field.name) ?? "";
    if (field.type === "radio") field.checked = field.value === (value || field.closest("[data-usual]").dataset.usual);
    else {
      if (field.tagName === "SELECT" && ![...field.options].some((one) => one.value === value))
        field.add(new Option(value, value));
      field.value = value;
    }
  }
  otherTime.show();
  showRange();
}

/** Brings the chosen range into sight where a narrow screen cuts their row off. */
function showRange() {
  const chosen = form.querySelector("input[name=range]:checked")?.parentElement, row = chosen?.parentElement;
  if (row) row.scrollLeft = chosen.offsetLeft - (row.clientWidth - chosen.clientWidth) / 2;
}

/** Takes over what may be chosen now: a tenant has keys of its own, a deployment workers. What is chosen stays. */
function offer(choices) {
  for (const [name, options] of Object.entries(choices)) {
    const field = form.elements[name];
    if (!field || field === document.activeElement) continue;
    const chosen = field.value;
    if (!options.some(([value]) => value === chosen)) options.push([chosen, chosen]); // a worker that has ended, say
    field.replaceChildren(...options.map(([value, label]) => new Option(label, value, false, value === chosen)));
    field.disabled = options.length === 1;
  }
}

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("change", ({ target }) => {
  if (target.name === "tenant" && form.elements.key) form.elements.key.value = "";
  if (target.name === "deployment" && form.elements.worker) form.elements.worker.value = "";
  if (!otherTime.take(target) && !target.name) return;
  otherTime.show();
  remember();
  source.ask({ withChoices: ["tenant", "deployment"].includes(target.name) });
});
window.addEventListener("popstate", () => {
  recall();
  source.ask({ withChoices: true });
});

// ---- other times

function goTo(end) {
  form.elements.end.value = end === null ? "" : new Date(end * 1000).toISOString();
  remember();
  source.ask();
}

for (const button of root.querySelectorAll("[data-go]"))
  button.addEventListener("click", () => {
    if (button.dataset.go === "now" || !shown) return goTo(null);
    const length = shown.end - shown.start, end = button.dataset.go === "earlier" ? shown.start : shown.end + length;
    goTo(end >= shown.now ? null : end);
  });

// ---- what state it is in

const state = root.querySelector(".lt-state");

/** The words are read out when they change; the time beside them, which changes always, is not. */
function tell(kind, text, moment = "") {
  state.dataset.kind = kind;
  const words = state.querySelector("[role=status]");
  if (words.textContent !== text) words.textContent = text;
  state.querySelector("time").textContent = moment;
}

function tellOf(numbers) {
  const { now, start, end, rolled, totals, refresh } = numbers;
  const range = stretch(start * 1000, end * 1000), isPast = refresh === null;
  if (!isPast && rolled !== null && now - rolled > STALE_SECONDS)
    return tell("stale", texts.stale, `for ${ago((now - rolled) * 1000)}`);
  if (!totals["count.requests"] && !totals["count.diverted"])
    return tell("empty", "No requests in this time. Choose a longer one, or less of a choice.", range);
  if (isPast) return tell("past", "A time that is past; it does not change.", range);
  return tell("live", "Live.", `Up to ${timeOfDay(now * 1000)} (${zone})`);
}

function showTiles({ totals, before, goals }) {
  for (const { name, series, unit } of tiles) {
    const tile = root.querySelector(`[data-tile="${name}"]`), value = totals[series], goal = goals[series];
    tile.querySelector("dd").textContent = inWords(value, unit);
    const isKnown = Number.isFinite(value ?? NaN) && goal !== undefined;
    tile.dataset.verdict = isKnown ? (value <= goal ? "good" : "bad") : "";
    const verdict = isKnown ? `${value <= goal ? "within" : "over"} ${inWords(goal, unit)}` : "";
    tile.querySelector(".lt-note").textContent = verdict;
    tile.querySelector(".lt-change").textContent = before ? change(value, before.totals[series]) : "";
  }
}

// ---- together

const source = new NumbersSource(root.dataset.url, {
  query,
  onAsk: () => root.setAttribute("aria-busy", "true"),
  onNumbers: (numbers) => {
    shown = numbers;
    root.removeAttribute("aria-busy");
    root.dataset.shown = String(numbers.now);
    if (numbers.choices) offer(numbers.choices);
    for (const panel of panels) panel.show(numbers);
    showTiles(numbers);
    tellOf(numbers);
    root.querySelector("[data-go=later]").disabled = numbers.refresh !== null;
    root.querySelector("[data-go=now]").disabled = numbers.refresh !== null;
  },
  onProblem: (text) => {
    root.removeAttribute("aria-busy");
    tell("error", text, shown ? `What is shown is of ${timeOfDay(shown.now * 1000)}` : "");
  },
});

const logarithmic = root.querySelector("#latency-logarithmic");
function setScale() {
  localStorage.setItem(LOGARITHMIC, logarithmic.checked ? "1" : "");
  for (const panel of panels) panel.isLogarithmic = logarithmic.checked;
}
logarithmic.checked = localStorage.getItem(LOGARITHMIC) === "1";
logarithmic.addEventListener("change", setScale);
setScale();
onThemeChange(() => panels.forEach((panel) => panel.redraw()));
// What was chosen before this script listened stands in the form alone.
const isChosen = (field) => field.type === "radio" && field.checked && !field.defaultChecked;
const isSelected = (field) => field.selectedOptions?.[0]?.defaultSelected === false && field.selectedIndex > 0;
if ([...form.elements].some((field) => isChosen(field) || isSelected(field)))
  history.replaceState(null, "", `?${query()}`);
otherTime.show();
showRange();
source.ask();
