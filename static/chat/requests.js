// What the page asks of the server. Every failure is a RequestError whose message can be shown.

const NAMES_OF_STATUS = {
  403: "The server refused this. Reload the page, then try again.",
  413: "The message is too long.",
  502: "The server is restarting. Try again in a moment.",
  503: "The server is busy or restarting. Try again in a moment.",
};

export class RequestError extends Error {
  constructor(message, { code = "unknown", status = 0, body = null } = {}) {
    super(message);
    this.code = code;
    this.status = status;
    this.body = body;
  }

  /** Whether nothing is known about what the server did with the request. */
  get isUnanswered() {
    return this.status === 0 || (this.status >= 500 && this.body === null);
  }
}

function csrfToken() {
  const name = document.body.dataset.csrfCookie;
  const cookie = document.cookie.split("; ").find((text) => text.startsWith(`${name}=`));
  const field = document.querySelector("input[name=csrfmiddlewaretoken]");
  return cookie ? decodeURIComponent(cookie.slice(name.length + 1)) : (field?.value ?? "");
}

export async function request(method, path, body) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["X-CSRFToken"] = csrfToken();
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response, answer;
  try {
    response = await fetch(path, {
      method,
      headers,
      credentials: "same-origin",
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(60_000),
    });
    if (response.status === 204) return null;
    const isJson = response.headers.get("Content-Type")?.startsWith("application/json");
    answer = isJson ? await response.json() : null;
  } catch {
    throw new RequestError("The server cannot be reached. Check your connection.", { code: "unreachable" });
  }
  if (response.ok && answer !== null) return answer;
  const { message, code } = answer?.error ?? {};
  throw new RequestError(message ?? NAMES_OF_STATUS[response.status] ?? `The server answered with ${response.status}.`, {
    code: code ?? `http_${response.status}`,
    status: response.status,
    body: answer,
  });
}

const conversationPath = (id) => `/chat/conversations/${id}`;
const messagePath = (id, messageId) => `${conversationPath(id)}/messages/${messageId}`;

export const ticket = () => request("GET", "/chat/ticket");
export const models = () => request("GET", "/chat/models");
export const conversations = (before) =>
  request("GET", `/chat/conversations${before ? `?before=${encodeURIComponent(before)}` : ""}`);
export const conversation = (id, before) =>
  request("GET", conversationPath(id) + (before === undefined ? "" : `?before=${before}`));
export const rename = (id, title) => request("PATCH", conversationPath(id), { title });
export const remove = (id) => request("DELETE", conversationPath(id));
export const send = (id, turn) => request("POST", `${conversationPath(id)}/turns`, turn);
export const retry = (id, messageId, model) => request("POST", `${messagePath(id, messageId)}/retry`, { model });
export const collect = (id, messageId) => request("POST", `${messagePath(id, messageId)}/collect`);
export const stop = (id, messageId) => request("POST", `${messagePath(id, messageId)}/stop`);

/** A random UUID; crypto.randomUUID exists only on HTTPS and localhost. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}
