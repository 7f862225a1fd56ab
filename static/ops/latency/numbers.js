// Numbers as people read them: three figures and a unit. Nothing is known as a dash, never as a zero.

const BYTES = ["B", "kB", "MB", "GB", "TB"]; // in thousands, so that the round numbers of an axis are round

const figures = (value) => {
  const size = Math.abs(value);
  if (size === 0) return "0";
  return value.toLocaleString("en", { maximumFractionDigits: size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3 });
};

function seconds(value) {
  if (value === 0) return "0 ms";
  if (value < 0.001) return `${figures(value * 1e6)} µs`;
  if (value < 1) return `${figures(value * 1e3)} ms`;
  return value < 600 ? `${figures(value)} s` : `${figures(value / 60)} min`;
}

function bytes(value) {
  const power = value > 0 ? Math.min(BYTES.length - 1, Math.floor(Math.log10(value) / 3)) : 0;
  return `${figures(value / 1000 ** power)} ${BYTES[power]}`;
}

const FORMS = {
  seconds,
  bytes,
  share: (value) => `${figures(value * 100)} %`,
  per_second: (value) => `${figures(value)}/s`,
  count: (value) => value.toLocaleString("en", { maximumFractionDigits: 1 }),
  watts: (value) => `${figures(value)} W`,
  megahertz: (value) => `${figures(value)} MHz`,
  money: (value) => (value !== 0 && Math.abs(value) < 0.01 ? value.toPrecision(2) : figures(value)),
};

export function inWords(value, unit) {
  return value === null || value === undefined || !Number.isFinite(value) ? "–" : FORMS[unit](value);
}

/** How much more or less than `before`, in words; nothing where there is nothing to compare. */
export function change(value, before) {
  if (!Number.isFinite(value ?? NaN) || !(before > 0)) return "";
  const ratio = value / before, percent = Math.round(Math.abs(ratio - 1) * 100);
  if (percent === 0) return "as before";
  return ratio > 3 ? `${figures(ratio)} times as much` : `${percent} % ${ratio > 1 ? "more" : "less"}`;
}
