// A canvas knows nothing of style sheets: the colours of `latency.css` are read from an element that wears them.

/** Returns the colour of each name as the browser has it now, light or dark. */
export function coloursOf(root, names) {
  const probe = document.createElement("span");
  probe.hidden = true;
  root.append(probe);
  const found = {};
  for (const name of names) {
    probe.style.color = `var(--lt-${name})`;
    found[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return found;
}

/** Calls when the page turns light or dark: by the admin's switch (a class), or by the system's. */
export function onThemeChange(call) {
  const told = () => requestAnimationFrame(call);
  new MutationObserver(told).observe(document.documentElement, { attributes: true, attributeFilter: ["class"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", told);
}

/** Returns a colour with less of it; browsers give `rgb(...)`, `color(...)` or `oklch(...)`. */
export const faint = (colour, share) => `color-mix(in srgb, ${colour} ${share * 100}%, transparent)`;
