// Keeps the list of workers current: the gateway says on /ws/ui that something changed, the page reads its own list anew.
(() => {
  const list = () => document.querySelector("#result_list");
  let socket, wait = 1000, pending = false, changed = false;

  async function refresh() {
    changed = true;
    if (pending) return;
    pending = true;
    while (changed) {
      changed = false;
      try {
        const answer = await fetch(location.href, { headers: { "X-Requested-With": "fetch" } });
        if (!answer.ok || answer.redirected) break;
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("#result_list");
        const isChoosing = document.querySelector(".action-select:checked");
        if (fresh && list() && !isChoosing) list().replaceChildren(...fresh.childNodes);
      } catch {
        break;
      }
      await new Promise((done) => setTimeout(done, 500));
    }
    pending = false;
  }

  function connect() {
    socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws/ui`);
    socket.onopen = () => { wait = 1000; refresh(); };
    socket.onmessage = (event) => {
      if (JSON.parse(event.data).type === "worker.changed") refresh();
    };
    socket.onclose = (event) => {
      if (event.code >= 4400 && event.code < 4500) return;
      setTimeout(connect, wait * (0.75 + Math.random() / 2));
      wait = Math.min(wait * 2, 30000);
    };
  }

  if (list() || document.querySelector("#changelist")) connect();
})();
