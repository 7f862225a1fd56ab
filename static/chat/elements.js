// Small parts of the page.

/** Makes an element; `properties` are DOM properties, and `class`, `data`, `aria` by name. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name === "aria") for (const [key, text] of Object.entries(value)) element.setAttribute(`aria-${key}`, text);
    else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("aria-hidden", "true");
  svg.appendChild(document.createElementNS(SVG, "use")).setAttribute("href", `#icon-${name}`);
  return svg;
}

export function iconButton(name, label, onclick) {
  return make("button", { type: "button", class: "icon-button", title: label, aria: { label }, onclick }, icon(name));
}

/** A button that copies what `text()` gives, and says so for a moment. */
export function copyButton(text, label = "Copy") {
  const button = iconButton("copy", label, async () => {
    await copy(text());
    button.replaceChildren(icon("check"));
    announce("Copied");
    setTimeout(() => button.replaceChildren(icon("copy")), 1_500);
  });
  return button;
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Plain HTTP on another machine than this one: no clipboard interface there.
  const area = document.body.appendChild(make("textarea", { value: text, class: "visually-hidden" }));
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** Tells users of screen readers. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}
