// The chat page: what the parts tell each other.

import { Composer } from "./composer.js";
import { Drafts } from "./drafts.js";
import { announce } from "./elements.js";
import { ModelPicker } from "./model_picker.js";
import { Notice } from "./notice.js";
import * as requests from "./requests.js";
import { Sidebar } from "./sidebar.js";
import { connectClient } from "./stream_client.js";
import { Thread } from "./thread.js";
import { UiEvents } from "./ui_events.js";

const page = JSON.parse(document.getElementById("page-data").textContent);

class Chat {
  #sending = null; // the turn whose response is not there yet
  #isStopWanted = false;
  #navigation = 0;

  constructor() {
    this.notice = new Notice();
    this.client = connectClient({
      onConnection: (isUp) => this.#connection(isUp),
      onSignedOut: () => this.#signedOut(),
      onRejected: () => this.#rejected(),
      onDraftOff: (model, off) => this.drafts.off(model, off),
    });
    this.drafts = new Drafts({
      client: this.client,
      context: () => ({
        conversation: this.thread.conversationId ?? "",
        model: this.models?.name,
        isBusy: this.#isBusy,
      }),
    });
    this.sidebar = new Sidebar(page.list, {
      onOpen: (id) => this.open(id),
      onNew: () => this.startNew(),
      onDeleted: (id) => id === this.thread.conversationId && this.startNew(),
      onError: (error) => this.#failed(error),
    });
    this.thread = new Thread({
      client: this.client,
      onChange: () => this.#update(),
      onRetry: (view) => this.retry(view),
    });
    this.composer = new Composer({
      onSend: (text) => this.send(text),
      onStop: () => this.stop(),
      onText: (text) => this.drafts.typed(text),
    });
    this.models = new ModelPicker(page.models, { onChange: () => this.#update() });
    addEventListener("popstate", () => this.#openPath());
    this.events = new UiEvents({
      onEvent: (name, data) => name === "conversation.changed" && this.#changedElsewhere(data),
      onGap: () => this.#catchUp(),
    });
    this.#show(page.opened?.conversation.id ?? null, page.opened);
    if (page.error) {
      history.replaceState(null, "", "/");
      this.#failed(page.error);
    }
  }

  // ---- which conversation

  async open(id) {
    if (id === this.thread.conversationId) return;
    const navigation = ++this.#navigation;
    try {
      const opened = await requests.conversation(id);
      if (navigation !== this.#navigation) return;
      history.pushState(null, "", `/c/${id}`);
      this.#show(id, opened);
    } catch (error) {
      if (navigation !== this.#navigation) return;
      if (error.status === 404) this.sidebar.drop(id);
      this.#failed(error, () => this.open(id));
    }
  }

  startNew() {
    this.#navigation += 1;
    if (location.pathname !== "/") history.pushState(null, "", "/");
    this.#show(null, null);
  }

  #openPath() {
    const id = /^\/c\/([0-9a-f-]{36})$/.exec(location.pathname)?.[1];
    if (id) requests.conversation(id).then((opened) => this.#show(id, opened), () => this.startNew());
    else this.#show(null, null);
  }

  #show(id, opened) {
    if (this.notice.kind === "failed" || this.notice.kind === "unsent") this.notice.hide();
    this.thread.open(opened, id);
    this.composer.open(id);
    this.sidebar.setCurrent(id);
    if (opened) {
      this.sidebar.put(opened.conversation);
      this.models.choose(opened.conversation.model);
    }
    this.#update();
    this.composer.focus();
  }

  // ---- sending

  async send(text, again = null) {
    if (this.#isBusy) return;
    this.notice.hide("failed", "unsent");
    const isNew = this.thread.conversationId === null;
    const turn = again ?? { conversationId: this.thread.conversationId ?? requests.newId(), turnId: requests.newId() };
    this.#sending = turn;
    this.#isStopWanted = false;
    this.composer.clear();
    this.thread.conversationId = turn.conversationId;
    this.thread.show(placeholder("user", turn.turnId, "complete", text));
    this.thread.show(placeholder("assistant", "pending", "streaming", "", this.models.name));
    this.thread.scrollToEnd();
    announce("Sent. The answer is on its way.");
    try {
      const body = { turn_id: turn.turnId, text, model: this.models.name };
      this.#answered(turn, await requests.send(turn.conversationId, body));
    } catch (error) {
      if (error.body?.answer) this.#answered(turn, error.body);
      else this.#unsent(turn, text, error, isNew);
    }
  }

  /** The server has stored the turn, whether or not its answer could be started. */
  #answered(turn, { conversation, question, answer }) {
    this.#sent(turn);
    this.sidebar.put(conversation);
    if (this.thread.conversationId !== turn.conversationId) return;
    if (location.pathname !== `/c/${conversation.id}`) history.pushState(null, "", `/c/${conversation.id}`);
    this.composer.draftKey = conversation.id;
    this.thread.remove("pending");
    if (question) this.thread.show(question);
    this.thread.show(answer);
    this.sidebar.setCurrent(conversation.id);
    this.#update();
    if (this.#isStopWanted) this.stop();
  }

  /** Nothing is stored, or nothing is known: the text goes back where it came from. */
  #unsent(turn, text, error, isNew) {
    this.#sent(turn);
    if (this.thread.conversationId !== turn.conversationId) return;
    this.thread.remove("pending");
    this.thread.remove(turn.turnId);
    if (isNew) this.thread.conversationId = null;
    this.composer.set(text);
    const again = () => {
      const edited = this.composer.field.value.trim() || text;
      // The same turn again, so that it is not there twice; another text is another turn.
      this.send(edited, error.isUnanswered && edited === text ? turn : null);
    };
    this.#failed(error, again, "unsent");
    this.#update();
    this.composer.focus();
  }

  async retry(view) {
    if (this.#isBusy) return;
    const { id, text } = view.message;
    const turn = { conversationId: this.thread.conversationId };
    this.#sending = turn;
    this.#isStopWanted = false;
    this.notice.hide("failed", "unsent");
    const before = view.message;
    this.thread.show({ ...before, state: "streaming", stream_id: null, text: "" });
    try {
      this.#answered(turn, await requests.retry(turn.conversationId, id, this.models.name || before.model));
    } catch (error) {
      if (error.body?.answer) return this.#answered(turn, error.body);
      this.#sent(turn);
      if (this.thread.conversationId !== turn.conversationId) return;
      this.thread.show({ ...before, text });
      this.#failed(error);
    }
  }

  #sent(turn) {
    if (this.#sending === turn) this.#sending = null;
  }

  stop() {
    if (this.#isSendingHere) {
      this.#isStopWanted = true;
      this.#update();
    } else {
      this.thread.stop();
    }
  }

  get #isBusy() {
    return this.#isSendingHere || this.thread.streaming !== undefined;
  }

  get #isSendingHere() {
    return this.#sending !== null && this.#sending.conversationId === this.thread.conversationId;
  }

  // ---- what other tabs did

  async #changedElsewhere({ change, conversation }) {
    if (change === "deleted") {
      this.sidebar.drop(conversation.id);
      if (conversation.id === this.thread.conversationId) this.startNew();
      return;
    }
    const known = this.sidebar.get(conversation.id);
    this.sidebar.put(conversation);
    this.#update();
    const isOpen = conversation.id === this.thread.conversationId;
    const isOurs = this.#sending?.conversationId === conversation.id || known?.updated_at === conversation.updated_at;
    if (isOpen && !(change === "turn" && isOurs) && change !== "renamed") await this.#refreshOpen();
  }

  async #refreshOpen() {
    const id = this.thread.conversationId;
    if (id === null || this.#sending) return;
    try {
      const opened = await requests.conversation(id);
      if (this.thread.conversationId === id && !this.#sending) this.thread.refresh(opened);
    } catch (error) {
      if (error.status === 404 && this.thread.conversationId === id) this.startNew();
    }
  }

  async #catchUp() {
    try {
      this.sidebar.setPage(await requests.conversations());
    } catch {
      return; // the connection comes and goes; the next time
    }
    await this.#refreshOpen();
  }

  // ---- what is wrong

  #connection(isUp) {
    if (isUp) this.notice.hide("connection");
    else this.notice.show("connection", "The connection is lost. Trying again…", { isCalm: true });
  }

  #signedOut() {
    const signIn = () => location.reload();
    this.notice.show("signed-out", "You are signed out.", { actions: [["Sign in", signIn]] });
  }

  #rejected() {
    const reload = () => location.reload();
    this.notice.show("rejected", "The server refuses to connect this page.", { actions: [["Reload", reload]] });
  }

  #failed(error, again = null, kind = "failed") {
    if (error.code === "signed_out") return this.#signedOut();
    const actions = again ? [["Try again", () => (this.notice.hide(kind), again())]] : [];
    actions.push(["Dismiss", () => this.notice.hide(kind)]);
    this.notice.show(kind, error.message, { actions });
  }

  #update() {
    if (!this.models || !this.composer) return; // the page is being put together
    const title = this.sidebar.get(this.thread.conversationId)?.title ?? "New conversation";
    document.getElementById("title").textContent = title;
    document.title = this.thread.conversationId ? `${title} · Headrace` : "Headrace";
    this.composer.setBusy(this.#isBusy, this.#isSendingHere ? this.#isStopWanted : this.thread.isStopping);
    this.#tellOfModels();
    this.drafts.look();
  }

  #tellOfModels() {
    const isQuiet = this.notice.kind === null || this.notice.kind === "models";
    if (!isQuiet) return;
    if (this.models.isEmpty) {
      this.notice.show("models", "There is no model for your workspace yet. An administrator can add one.", { isCalm: true });
    } else if (!this.models.isReady) {
      this.notice.show("models", `${this.models.name} is not up. Messages wait for it.`, { isCalm: true });
    } else {
      this.notice.hide("models");
    }
  }
}

function placeholder(role, id, state, text, model = "") {
  return { id, role, state, text, model, html: "", position: Infinity, stream_id: null, error: null };
}

new Chat();
