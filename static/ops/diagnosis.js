// The panel beside the latency charts: asks for what was found for whatever the page shows, and shows it; in short also
// above the charts, where a goal that was left is seen.
const panel = document.getElementById("diagnosis");
const summary = document.getElementById("diagnosis-summary");
const REFRESH_MS = 60_000;

let asked = 0;

/** What is read out is only what is new. */
function summarise(html) {
  if (summary && summary.dataset.said !== html) summary.innerHTML = summary.dataset.said = html;
}

async function refresh() {
  const turn = ++asked;
  try {
    const response = await fetch(`${panel.dataset.url}${location.search}`, { headers: { accept: "application/json" } });
    const told = await response.json();
    if (turn !== asked) return;
    if (response.ok) panel.innerHTML = told.html;
    else panel.textContent = told.problem;
    summarise(told.summary ?? "");
    panel.setAttribute("aria-busy", "false");
  } catch {
    // The next turn asks again; what is shown stays.
  }
}

function later() {
  setTimeout(refresh, 300);
}

if (panel) {
  refresh();
  setInterval(refresh, REFRESH_MS);
  // The page puts what it shows into its address after the form has changed or a button was pressed.
  document.addEventListener("change", later);
  document.addEventListener("click", (event) => event.target.closest("[data-go]") && later());
}
