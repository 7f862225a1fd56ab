// The list of conversations, its menu, and how it hides on a phone.

import { iconButton, make } from "./elements.js";
import * as requests from "./requests.js";

const DAY_MS = 86_400_000;

export class Sidebar {
  #rows = new Map(); // id -> conversation
  #next = null;
  #chosen = null; // whose menu is open

  constructor(page, { onOpen, onNew, onDeleted, onError }) {
    this.onOpen = onOpen;
    this.onDeleted = onDeleted;
    this.onError = onError;
    this.currentId = null;
    this.list = document.getElementById("conversation-list");
    this.older = document.getElementById("older-conversations");
    this.menu = document.getElementById("conversation-menu");
    this.renameDialog = document.getElementById("rename-dialog");
    this.deleteDialog = document.getElementById("delete-dialog");
    document.getElementById("new-conversation").onclick = () => (this.close(), onNew());
    document.getElementById("sidebar-open").onclick = () => this.#setOpen(true);
    document.getElementById("sidebar-close").onclick = () => this.close();
    document.getElementById("scrim").onclick = () => this.close();
    document.getElementById("menu-rename").onclick = () => this.#askTitle();
    document.getElementById("menu-delete").onclick = () => this.#askDelete();
    this.older.onclick = () => this.#showOlder();
    addEventListener("keydown", (event) => event.key === "Escape" && this.close());
    this.setPage(page);
  }

  /** Takes the first page anew; what was shown of later pages stays. */
  setPage(page) {
    if (!this.#rows.size || page.next === null) this.#next = page.next;
    if (page.next === null) this.#rows.clear();
    else for (const [id, row] of this.#rows) if (row.updated_at >= page.conversations.at(-1).updated_at) this.#rows.delete(id);
    for (const conversation of page.conversations) this.#rows.set(conversation.id, conversation);
    this.#render();
  }

  get(id) {
    return this.#rows.get(id);
  }

  put(conversation) {
    this.#rows.set(conversation.id, conversation);
    this.#render();
  }

  drop(id) {
    this.#rows.delete(id);
    this.#render();
  }

  setCurrent(id) {
    this.currentId = id;
    this.#render();
  }

  close() {
    this.#setOpen(false);
  }

  #setOpen(isOpen) {
    const wasOpen = document.body.classList.contains("sidebar-open");
    if (isOpen === wasOpen) return;
    document.body.classList.toggle("sidebar-open", isOpen);
    const opener = document.getElementById("sidebar-open");
    opener.setAttribute("aria-expanded", String(isOpen));
    (isOpen ? document.getElementById("sidebar-close") : opener).focus();
  }

  // ---- the list

  #render() {
    const rows = [...this.#rows.values()].sort((a, b) => Date.parse(b.updated_at) - Date.parse(a.updated_at));
    const focused = document.activeElement?.closest?.(".conversation")?.dataset.id;
    const groups = new Map();
    for (const row of rows) {
      const name = ageOf(row.updated_at);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(this.#row(row));
    }
    const parts = [...groups].flatMap(([name, items]) => [
      make("h2", { textContent: name }),
      make("ul", { aria: { label: name } }, ...items),
    ]);
    this.list.replaceChildren(...(parts.length ? parts : [make("p", { class: "empty", textContent: "None yet." })]));
    this.older.hidden = this.#next === null;
    if (focused) this.list.querySelector(`[data-id="${focused}"] a`)?.focus();
  }

  #row(conversation) {
    const link = make("a", { href: `/c/${conversation.id}`, textContent: conversation.title, title: conversation.title });
    link.onclick = (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return; // a tab of its own
      event.preventDefault();
      this.close();
      this.onOpen(conversation.id);
    };
    const more = iconButton("more", `Rename or delete “${conversation.title}”`, () => this.#openMenu(conversation, more));
    more.setAttribute("aria-haspopup", "menu");
    const isCurrent = conversation.id === this.currentId;
    if (isCurrent) link.setAttribute("aria-current", "page");
    const row = make("li", { class: `conversation${isCurrent ? " current" : ""}` }, link, more);
    row.dataset.id = conversation.id;
    return row;
  }

  async #showOlder() {
    this.older.disabled = true;
    try {
      const page = await requests.conversations(this.#next);
      for (const conversation of page.conversations) this.#rows.set(conversation.id, conversation);
      this.#next = page.next;
      this.#render();
    } catch (error) {
      this.onError(error);
    } finally {
      this.older.disabled = false;
    }
  }

  // ---- rename and delete

  #openMenu(conversation, button) {
    this.#chosen = conversation;
    this.menu.showPopover();
    const place = button.getBoundingClientRect();
    const { width, height } = this.menu.getBoundingClientRect();
    this.menu.style.left = `${Math.max(8, Math.min(place.left, innerWidth - width - 8))}px`;
    this.menu.style.top = `${place.bottom + height + 8 > innerHeight ? place.top - height - 4 : place.bottom + 4}px`;
    this.menu.querySelector("button").focus();
  }

  async #askTitle() {
    this.menu.hidePopover();
    const conversation = this.#chosen;
    const field = document.getElementById("rename-title");
    field.value = conversation.title;
    if ((await answerOf(this.renameDialog, field)) !== "ok" || field.value.trim() === conversation.title) return;
    try {
      this.put((await requests.rename(conversation.id, field.value)).conversation);
    } catch (error) {
      this.onError(error);
    }
  }

  async #askDelete() {
    this.menu.hidePopover();
    const conversation = this.#chosen;
    document.getElementById("delete-title").textContent = conversation.title;
    const refusal = document.getElementById("delete-cancel");
    if ((await answerOf(this.deleteDialog, refusal)) !== "ok") return;
    try {
      await requests.remove(conversation.id);
      this.drop(conversation.id);
      this.onDeleted(conversation.id);
    } catch (error) {
      this.onError(error);
    }
  }
}

function answerOf(dialog, focused) {
  dialog.returnValue = "";
  dialog.showModal();
  focused.focus();
  focused.select?.();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }));
}

function ageOf(moment) {
  const today = new Date().setHours(0, 0, 0, 0);
  const at = Date.parse(moment);
  if (at >= today) return "Today";
  if (at >= today - DAY_MS) return "Yesterday";
  if (at >= today - 7 * DAY_MS) return "Last 7 days";
  if (at >= today - 30 * DAY_MS) return "Last 30 days";
  return "Older";
}
