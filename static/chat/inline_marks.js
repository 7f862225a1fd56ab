// The inline marks of a finished block of live text: code, strong, emphasis, links. Nodes are built, never parsed as HTML.

import { make } from "./elements.js";

const MARKS = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/g;

export function formatInline(block) {
  const text = block.textContent;
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(MARKS)) {
    const [whole, code, strong, emphasis, label, href] = match;
    parts.push(text.slice(from, match.index));
    if (code) parts.push(make("code", { textContent: code }));
    else if (strong) parts.push(make("strong", { textContent: strong }));
    else if (emphasis) parts.push(make("em", { textContent: emphasis }));
    else parts.push(make("a", { href, textContent: label, target: "_blank", rel: "noopener noreferrer nofollow ugc" }));
    from = match.index + whole.length;
  }
  if (parts.length) block.replaceChildren(...parts, text.slice(from));
}
