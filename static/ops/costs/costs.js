// The tables below the charts: asked for anew when the page asks for something else.
const tables = document.getElementById("cost-tables");
let turn = 0;

async function refresh() {
  const asked = ++turn;
  tables.setAttribute("aria-busy", "true");
  try {
    const response = await fetch(`${tables.dataset.url}${location.search}`);
    if (asked !== turn) return;
    // Signed out: what came is another page.
    if (response.redirected || response.status === 403) return location.reload();
    tables.innerHTML = await response.text();
  } catch {
    if (asked === turn) tables.textContent = "The gateway does not answer; reload the page to see its tables.";
  }
  if (asked === turn) tables.removeAttribute("aria-busy");
}

// The charts' script puts what is asked for into the address after the form has changed or a button was pressed.
const later = () => setTimeout(refresh, 0);
const form = document.querySelector("#latency form");
form.addEventListener("change", later);
window.addEventListener("popstate", later);
for (const button of document.querySelectorAll("#latency [data-go]")) button.addEventListener("click", later);
