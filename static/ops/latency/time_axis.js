// Points in time on an axis and in words, by the reader's own clock.

const MINUTE = 60_000, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const STEPS = [10_000, 30_000, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR,
  3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY];

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const seconds = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** Returns at most about `count` round instants between two, as milliseconds; days begin at the reader's midnight. */
export function timeTicks(from, to, count) {
  const step = STEPS.find((one) => (to - from) / one <= count) ?? STEPS.at(-1);
  const ticks = [];
  if (step >= DAY) {
    const at = new Date(from);
    at.setHours(24, 0, 0, 0);
    for (; at <= to; at.setDate(at.getDate() + step / DAY)) ticks.push(at.getTime());
    return ticks;
  }
  const offset = new Date(from).getTimezoneOffset() * MINUTE;
  for (let at = Math.ceil((from - offset) / step) * step + offset; at <= to; at += step) ticks.push(at);
  return ticks;
}

/** Returns the label of a tick: the day where a day begins or where all are days, else the time. */
export function tickLabel(at, span) {
  const date = new Date(at);
  const isMidnight = date.getHours() === 0 && date.getMinutes() === 0 && date.getSeconds() === 0;
  if (isMidnight) return day.format(date);
  return span <= 5 * MINUTE ? seconds.format(date) : clock.format(date);
}

/** Returns a stretch of time in words, such as “14:32:10 – 14:32:20” or “29 Nov, 06:00 – 12:00”. */
export function stretch(from, to) {
  const form = to - from < MINUTE ? seconds : clock;
  const isToday = new Date(from).toDateString() === new Date().toDateString();
  const start = isToday ? form.format(from) : `${day.format(from)}, ${form.format(from)}`;
  if (to - from >= DAY) return `${day.format(from)}, ${clock.format(from)} – ${day.format(to)}, ${clock.format(to)}`;
  return `${start} – ${form.format(to)}`;
}

export const timeOfDay = (at) => seconds.format(at);

/** Returns how long ago something was, in words. */
export function ago(milliseconds) {
  const spent = Math.max(0, Math.round(milliseconds / 1000));
  if (spent < 120) return `${spent} s`;
  if (spent < 7200) return `${Math.round(spent / 60)} min`;
  return spent < 172_800 ? `${Math.round(spent / 3600)} h` : `${Math.round(spent / 86_400)} days`;
}
