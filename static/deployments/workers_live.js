// Keeps the list of workers current: the gateway says on /ws/ui that something changed, the page reads its own list anew
// and takes over what differs, row by row, so that chosen rows stay chosen.
(() => {
  const SETTLE_MS = 500, FIRST_WAIT_MS = 1000, LONGEST_WAIT_MS = 30000;
  let wait = FIRST_WAIT_MS, isReading = false, hasChanged = false;

  const rowsOf = (table) => new Map([...table.tBodies].map((body) => [body.querySelector(".action-select")?.value, body]));

  function takeOver(table, fresh) {
    const rows = rowsOf(table);
    for (const [key, body] of rowsOf(fresh)) {
      const row = rows.get(key);
      rows.delete(key);
      if (row) row.rows[0].replaceChildren(row.rows[0].cells[0], ...[...body.rows[0].cells].slice(1));
      table.append(row ?? body);
    }
    for (const gone of rows.values()) gone.remove();
  }

  async function readAnew() {
    const answer = await fetch(location.href);
    if (!answer.ok || answer.redirected) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("#result_list");
    const table = document.querySelector("#result_list");
    if (table && fresh) takeOver(table, fresh);
    else if (table || fresh) location.reload(); // from an empty list, or to one
  }

  async function refresh() {
    hasChanged = true;
    if (isReading) return;
    isReading = true;
    try {
      while (hasChanged) {
        hasChanged = false;
        await readAnew();
        await new Promise((done) => setTimeout(done, SETTLE_MS));
      }
    } catch {
      // The gateway is away; the socket comes back and reads anew.
    } finally {
      isReading = false;
    }
  }

  function connect() {
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/ui`);
    socket.onopen = () => {
      wait = FIRST_WAIT_MS;
      refresh();
    };
    socket.onmessage = (event) => {
      if (JSON.parse(event.data).type === "worker.changed") refresh();
    };
    socket.onclose = (event) => {
      if (event.code >= 4400 && event.code < 4500) return;
      setTimeout(connect, wait * (0.75 + Math.random() / 2));
      wait = Math.min(wait * 2, LONGEST_WAIT_MS);
    };
  }

  document.addEventListener("DOMContentLoaded", () => {
    if (document.querySelector("#changelist")) connect();
  });
})();
