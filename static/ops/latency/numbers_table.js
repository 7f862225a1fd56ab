// The numbers of a chart as a table, newest first: for screen readers, keyboards, and whoever wants to read exactly.

import { inWords } from "./numbers.js";
import { stretch } from "./time_axis.js";

function cell(kind, text, scope) {
  const made = document.createElement(kind);
  made.textContent = text;
  if (scope) made.scope = scope;
  return made;
}

function row(spec, data, index, linksOf) {
  const made = document.createElement("tr"), from = data.at[index] * 1000;
  made.append(cell("th", stretch(from, from + data.step * 1000), "row"));
  for (const { series } of spec.lines) made.append(cell("td", inWords(data.series[series]?.[index], spec.unit)));
  for (const { series } of data.before ? spec.lines : [])
    made.append(cell("td", inWords(data.before.series[series]?.[index], spec.unit)));
  const links = linksOf(index);
  if (links.length) {
    const last = made.insertCell();
    last.append(...links.flatMap((link) => [link, " "]));
  }
  return made;
}

/** Fills `table`; leaves it alone while somebody's focus is inside, which a fresh row would take away. */
export function fillTable(table, spec, data, linksOf) {
  if (table.contains(document.activeElement)) return;
  const hasLinks = data.at.length > 0 && linksOf(0).length > 0;
  const head = document.createElement("tr");
  head.append(cell("th", "Time", "col"));
  for (const { label } of spec.lines) head.append(cell("th", label, "col"));
  for (const { label } of data.before ? spec.lines : []) head.append(cell("th", `${label}, before`, "col"));
  if (hasLinks) head.append(cell("th", "Behind it", "col"));
  table.tHead.replaceChildren(head);
  const known = data.at
    .map((_, index) => index)
    .filter((index) => spec.lines.some(({ series }) => (data.series[series]?.[index] ?? null) !== null));
  table.tBodies[0].replaceChildren(...known.reverse().map((index) => row(spec, data, index, linksOf)));
}
