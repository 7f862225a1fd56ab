// The policy's form: each rule shows the fields of its kind, and the cost of waiting follows what is typed.
"use strict";

const TPOT_SECONDS = 0.04;

function line(rule, name) {
  return rule.querySelector(`.field-line.field-${name}`);
}

function show(element, isShown) {
  element?.classList.toggle("is-of-another-kind", !isShown);
}

function showKind(select) {
  const rule = select.closest(".form-group");
  const shownFor = JSON.parse(select.dataset.shownFor);
  const mine = new Set(shownFor[select.value] ?? []);
  for (const name of new Set(Object.values(shownFor).flat())) {
    show(line(rule, name), mine.has(name));
  }
  const action = rule.querySelector("select[name$='-action']");
  const isByKind = select.value === "personal_data";
  const choices = isByKind ? [...line(rule, "personal_data").querySelectorAll("select")].map((one) => one.value) : [action.value];
  show(line(rule, "action"), !isByKind);
  show(line(rule, "mask"), choices.includes("mask"));
  show(line(rule, "replacement"), choices.includes("block"));
  for (const row of rule.querySelectorAll(".field-row")) {
    const lines = [...row.querySelectorAll(".field-line")];
    show(row, lines.some((one) => !one.classList.contains("is-of-another-kind")));
  }
}

function showAll(root) {
  root.querySelectorAll("select[data-shown-for]").forEach(showKind);
}

function tellHoldBack() {
  const told = document.getElementById("hold-back");
  const chunk = Number(document.getElementById("id_chunk_size")?.value);
  const context = Number(document.getElementById("id_context_size")?.value);
  if (!told || !Number.isInteger(chunk) || chunk < 1 || !Number.isInteger(context) || context < 0) return;
  const tokens = chunk * (Math.floor(context / chunk) + 1);
  const numbers = [String(tokens), (tokens * TPOT_SECONDS).toFixed(1)];
  // The server's sentence, in the reader's language: its first number is the tokens, its third the seconds.
  let place = 0;
  told.textContent = told.textContent.replace(/\d+(?:\.\d+)?/g, (number) => {
    place += 1;
    return place === 1 ? numbers[0] : place === 3 ? numbers[1] : number;
  });
}

document.addEventListener("DOMContentLoaded", () => {
  showAll(document);
  tellHoldBack();
});
document.addEventListener("formset:added", (event) => showAll(event.target));
document.addEventListener("change", (event) => {
  const select = event.target.closest(".form-group")?.querySelector("select[data-shown-for]");
  if (select) showKind(select);
});
document.addEventListener("input", (event) => {
  if (["id_chunk_size", "id_context_size"].includes(event.target.id)) tellHoldBack();
});
