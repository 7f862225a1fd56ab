// The deployment's form: presets fill fields (and mark them), the check asks the gateway about the form as it stands, and
// fields of speculative decoding show where they mean something.
"use strict";

(() => {
  const field = (name) => document.getElementById(`id_${name}`);

  function make(tag, text, className) {
    const element = document.createElement(tag);
    if (text) element.textContent = text;
    if (className) element.className = className;
    return element;
  }

  function fill(values) {
    const filled = [];
    document.querySelectorAll(".engine-filled").forEach((one) => one.classList.remove("engine-filled"));
    for (const [name, value] of Object.entries(values)) {
      const input = field(name);
      if (!input) continue;
      const before = input.type === "checkbox" ? input.checked : input.value;
      if (input.type === "checkbox") input.checked = value;
      else input.value = String(value);
      if (before === (input.type === "checkbox" ? value : String(value))) continue;
      filled.push(name);
      input.classList.add("engine-filled");
      input.dispatchEvent(new Event("change", { bubbles: true }));
    }
    const done = document.getElementById("engine-preset-done");
    done.hidden = false;
    done.lastElementChild.textContent = filled.join(", ");
  }

  function list(texts, className) {
    const items = make("ul", "", className);
    items.append(...texts.map((text) => make("li", text, "engine-problem")));
    return items;
  }

  function tell(told, report) {
    const verdict = make("p", told.dataset[report.verdict], `engine-verdict engine-verdict-${report.verdict}`);
    if (report.judge) verdict.textContent += ` (${report.judge})`;
    told.replaceChildren(verdict);
    if (report.problems?.length) told.append(...report.problems.map((text) => make("p", text, "engine-problem")));
    const settings = Object.entries(report.settings ?? {});
    if (settings.length) {
      const table = make("div", "", "engine-settings");
      for (const [name, value] of settings) {
        const line = make("div");
        line.append(make("span", name), make("strong", value));
        table.append(line);
      }
      told.append(table);
    }
    if (report.notes?.length) told.append(make("p", told.dataset.costs, "font-medium"), list(report.notes, "engine-notes"));
  }

  async function check(button, told, url) {
    const begun = Date.now();
    const count = () => {
      told.textContent = `${told.dataset.running} ${Math.round((Date.now() - begun) / 1000)} ${told.dataset.seconds}`;
    };
    button.disabled = true;
    told.hidden = false;
    count();
    const ticking = setInterval(count, 1000);
    try {
      const answer = await fetch(url, { method: "POST", body: new FormData(button.form) });
      const report = await answer.json();
      tell(told, report.problem ? { verdict: "unknown", problems: [report.problem] } : report);
    } catch {
      tell(told, { verdict: "unknown", problems: [told.dataset.failed] });
    } finally {
      clearInterval(ticking);
      button.disabled = false;
    }
  }

  const NEEDS = {
    num_speculative_tokens: ["ngram", "draft_model"],
    prompt_lookup_min: ["ngram"],
    prompt_lookup_max: ["ngram"],
    draft_model: ["draft_model"],
  };

  function showSpeculation() {
    const method = field("speculation").value;
    for (const [name, methods] of Object.entries(NEEDS)) {
      const isWanted = methods.includes(method) || field(name).value !== "";
      document.querySelector(`.field-line.field-${name}`)?.classList.toggle("is-of-another-kind", !isWanted);
    }
    for (const row of document.querySelectorAll(".field-row")) {
      const lines = [...row.querySelectorAll(".field-line")];
      const mine = lines.some((one) => Object.keys(NEEDS).some((name) => one.classList.contains(`field-${name}`)));
      if (mine) row.classList.toggle("is-of-another-kind", lines.every((one) => one.classList.contains("is-of-another-kind")));
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const panel = document.getElementById("engine-check");
    if (!panel || !field("speculation")) return;
    const presets = JSON.parse(document.getElementById("engine-presets").textContent);
    for (const button of panel.querySelectorAll("[data-preset]")) {
      button.addEventListener("click", () => fill(presets[Number(button.dataset.preset)]));
    }
    const start = document.getElementById("engine-check-start");
    start.addEventListener("click", () => check(start, document.getElementById("engine-check-told"), panel.dataset.url));
    field("speculation").addEventListener("change", showSpeculation);
    showSpeculation();
  });
})();
