// The page's one connection to /v1/ws, by a ticket of the signed-in user.

import { HeadraceClient } from "../headrace/client.js";
import { RequestError, ticket } from "./requests.js";

const LOST_NEWS_MS = 1_500; // a loss shorter than this is not worth a word

/**
 * `onConnection(isUp)` is told about losses that matter, `onSignedOut` when no ticket is to be had any more,
 * `onRejected` when the server takes no ticket of ours, `onDraftOff(model, frame)` when it wants no drafts.
 */
export function connectClient({ onConnection, onSignedOut, onRejected, onDraftOff }) {
  let newsTimer = 0;
  const client = new HeadraceClient({
    open: () => openSocket(onSignedOut),
    onRejected,
    onDraftOff,
    onConnection: (isUp) => {
      clearTimeout(newsTimer);
      if (isUp) onConnection(true);
      else newsTimer = setTimeout(() => onConnection(false), LOST_NEWS_MS);
    },
  });
  client.connect();
  return client;
}

async function openSocket(onSignedOut) {
  let granted;
  try {
    granted = await ticket();
  } catch (error) {
    if (!(error instanceof RequestError) || error.code !== "signed_out") throw error;
    onSignedOut();
    return null;
  }
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  return new WebSocket(`${scheme}//${location.host}/v1/ws`, ["headrace.v1", `headrace.ticket.${granted.ticket}`]);
}
