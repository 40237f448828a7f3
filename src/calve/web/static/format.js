// Numbers, sizes, durations and times as text.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3, notation: "compact" });
const absolute = new Intl.DateTimeFormat("en-CA", {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  hourCycle: "h23", timeZoneName: "short",
});
const clock = new Intl.DateTimeFormat("en-CA", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export const UNKNOWN = "–";

export function count(value) {
  return value === null || value === undefined ? UNKNOWN : whole.format(value);
}

export function compact(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return Math.abs(value) < 10_000 ? whole.format(value) : short.format(value);
}

/** A noun with its number: "1 file", "2 files". */
export function plural(value, noun, many = `${noun}s`) {
  return `${count(value)} ${value === 1 ? noun : many}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let scaled = value;
  let unit = 0;
  while (scaled >= 1000 && unit < units.length - 1) {
    scaled /= 1000;
    unit += 1;
  }
  return `${unit === 0 || scaled >= 100 ? Math.round(scaled) : scaled.toFixed(1)} ${units[unit]}`;
}

export function share(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return UNKNOWN;
  if (value === 0) return "0 %";
  return value < 0.001 ? "< 0.1 %" : `${(value * 100).toFixed(value < 0.1 ? 1 : 0)} %`;
}

export function seconds(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (value < 0.0095) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  return duration(value * 1000);
}

/** A duration in the two largest units that matter. */
export function duration(ms) {
  if (ms === null || ms === undefined) return UNKNOWN;
  const total = Math.max(0, Math.floor(ms / 1000));
  const parts = [[Math.floor(total / 86400), "d"], [Math.floor(total / 3600) % 24, "h"],
    [Math.floor(total / 60) % 60, "min"], [total % 60, "s"]];
  const first = parts.findIndex(([value]) => value > 0);
  if (first === -1) return "0 s";
  return parts.slice(first, first + 2).filter(([value]) => value > 0).map(([value, unit]) => `${value} ${unit}`).join(" ");
}

const FARTHEST = 8.64e15; // the last time that a Date has

/** A Date; null for what is no time, or one that no Date has. */
export function date(ms) {
  return Number.isFinite(ms) && ms !== 0 && Math.abs(ms) <= FARTHEST ? new Date(ms) : null;
}

export function instant(ms) {
  const at = date(ms);
  return at ? absolute.format(at).replace(",", "") : UNKNOWN;
}

export function timeOfDay(ms) {
  const at = date(ms);
  return at ? clock.format(at) : UNKNOWN;
}

const EARLIEST = Date.UTC(1980, 0, 1);
const LATEST = Date.UTC(2200, 0, 1);

/** A frontier as {text, ms}: `[]` is complete, `[t]` a time; `ms` only where t can be a wall clock. */
export function frontier(text) {
  if (!text || text === "[0]") return { text: UNKNOWN, ms: null, complete: false };
  if (text === "[]") return { text: "complete", ms: null, complete: true };
  const ms = Number(text.slice(1, -1));
  if (!Number.isFinite(ms)) return { text, ms: null, complete: false };
  if (ms < EARLIEST || ms > LATEST) return { text: count(ms), ms: null, complete: false, time: ms };
  return { text: instant(ms), ms, complete: false, time: ms };
}
