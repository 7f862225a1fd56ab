// Keeps the list current while it is looked at: it is read anew every three seconds, and what was chosen stays chosen.
(() => {
  const EVERY_MS = 3000;
  let isReading = false;

  const boxes = (root) => [...root.querySelectorAll('input[name="stream"]')];

  function takeOver(live, fresh) {
    const chosen = new Set(boxes(live).filter((box) => box.checked).map((box) => box.value));
    const focused = live.contains(document.activeElement) ? document.activeElement.value : null;
    live.replaceChildren(...fresh);
    for (const box of boxes(live)) {
      box.checked = chosen.has(box.value);
      if (box.value === focused) box.focus();
    }
  }

  async function readAnew(live) {
    if (isReading || document.hidden) return;
    isReading = true;
    try {
      const answer = await fetch(live.dataset.url);
      if (!answer.ok || answer.redirected) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      takeOver(live, (page.querySelector("#live") ?? page.body).childNodes);
    } catch {
      // The gateway is away, perhaps because it was just drained; the next look tells.
    } finally {
      isReading = false;
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const live = document.querySelector("#live");
    if (!live) return;
    live.addEventListener("change", (event) => {
      if (event.target.id === "choose-all") for (const box of boxes(live)) box.checked = event.target.checked;
    });
    setInterval(() => readAnew(live), EVERY_MS);
    document.addEventListener("visibilitychange", () => readAnew(live));
  });
})();
