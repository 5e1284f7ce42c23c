// Format numbers, sizes, times, offsets and names; parse typed positions. Pure.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const SPANS = { ms: 1, s: 1000, m: 60_000, min: 60_000, h: 3_600_000, d: 86_400_000 };

/** 1234567 → "1,234,567". */
export function count(number) {
  return Math.round(number).toLocaleString("en-US");
}

/** 1234567 → "1.23M". */
export function compact(number) {
  if (number < 1000) return Number.isInteger(number) ? String(number) : number.toFixed(number < 10 ? 1 : 0);
  let value = number;
  let unit = "";
  for (const next of ["k", "M", "G", "T"]) {
    if (value < 1000) break;
    value /= 1000;
    unit = next;
  }
  return value.toPrecision(3).replace(/\.?0+$/, (zeros) => (zeros.startsWith(".") ? "" : zeros)) + unit;
}

export function bytes(number) {
  let value = number;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  if (unit === 0) return `${Number.isInteger(value) ? value : value.toFixed(value < 10 ? 1 : 0)} B`;
  return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${UNITS[unit]}`;
}

/** Format seconds as "850 ms", "12 s", "3 min", "2.5 h", "4 d". */
export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129_600) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

const SECONDS = { "": 1, ms: 0.001, s: 1, m: 60, min: 60, h: 3600, d: 86_400, w: 604_800 };
const SIZES = { "": 1, b: 1, kb: 1e3, mb: 1e6, gb: 1e9, tb: 1e12, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40 };

/** Parse "90s", "15min", "7d" into whole seconds, or null. */
export function parseSeconds(typed) {
  const found = /^(\d+(?:\.\d+)?)\s*(|ms|s|min|m|h|d|w)$/.exec(typed.trim());
  if (!found) return null;
  const seconds = Number(found[1]) * SECONDS[found[2]];
  return Number.isInteger(seconds) ? seconds : null;
}

/** Parse "10GiB", "64 MB", "1000" into whole bytes, or null. */
export function parseSize(typed) {
  const found = /^(\d+(?:\.\d+)?)\s*([a-z]*)$/i.exec(typed.trim());
  const unit = found ? SIZES[found[2].toLowerCase()] : undefined;
  return unit === undefined ? null : Math.round(Number(found[1]) * unit);
}

/** Spell seconds as `parseSeconds` reads them: 604800 → "7d". */
export function spellSeconds(seconds) {
  for (const [unit, size] of [["d", 86_400], ["h", 3600], ["min", 60]]) if (seconds >= size && seconds % size === 0) return `${seconds / size}${unit}`;
  return `${seconds}s`;
}

/** Format a moment as local date and time, to the second, or `exact` to the millisecond. */
export function instant(at, { exact = false } = {}) {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return "";
  const two = (number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const milliseconds = exact ? `.${String(date.getMilliseconds()).padStart(3, "0")}` : "";
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}${milliseconds}`;
}

/** Format a moment in ms as UTC, or return null if it is none. */
export function utc(at) {
  const date = new Date(at ?? NaN);
  return Number.isNaN(date.getTime()) ? null : date.toISOString();
}

/** Return the offset token of a position: sixteen digits each. */
export function token(record, byte = 0) {
  return `${String(record).padStart(16, "0")}_${String(byte).padStart(16, "0")}`;
}

/** Parse an offset token into {record, byte}, or null. */
export function parseToken(text) {
  const found = /^(\d{16})_(\d{16})$/.exec(text ?? "");
  return found ? { record: Number(found[1]), byte: Number(found[2]) } : null;
}

/**
 * Parse a typed position: {record}, {last}, {time} in ms, {start}, {end}, or null.
 * Records are given by their offset ("120", or a token), the last ones by "-20", times as "10m" (ago) or as a date.
 */
export function parsePlace(typed, now = Date.now()) {
  const text = typed.trim();
  if (text === "" || /^(end|now|last|latest)$/i.test(text)) return { end: true };
  if (/^(start|first)$/i.test(text)) return { start: true };
  const offset = parseToken(text);
  if (offset) return { record: offset.record };
  let found = /^#?(\d{1,15})$/.exec(text.replaceAll(",", ""));
  if (found) return { record: Number(found[1]) };
  found = /^-(\d{1,15})$/.exec(text);
  if (found) return { last: Number(found[1]) };
  found = /^(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)(?:\s+ago)?$/.exec(text);
  if (found) return { time: Math.round(now - Number(found[1]) * SPANS[found[2]]) };
  if (/^\d{4}-\d\d-\d\d/.test(text)) {
    const time = new Date(text.replace(/^(\d{4}-\d\d-\d\d) (\d)/, "$1T$2")).getTime();
    return Number.isNaN(time) ? null : { time };
  }
  return null;
}

const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0" };
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** Replace control characters and those that reverse or hide text by visible forms. */
export function visible(text) {
  return text.replace(HIDDEN, (character) => {
    const code = character.charCodeAt(0);
    return SHORT[character] ?? `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** Like `visible`, but keep line breaks. */
export function visibleLines(text) {
  return text.replace(HIDDEN, (character) => (character === "\n" || character === "\t" ? character : visible(character)));
}

/** Return the address of a stream's page. */
export function streamHash(name) {
  return `#/stream/${name.split("/").map(encodeURIComponent).join("/")}`;
}

/** Report whether two addresses are of one page and one thing, perhaps in different states. */
export function isSamePage(one, other) {
  const path = (hash) => hash.split("?")[0].split("/").map((part) => decodeURIComponent(part)).join("/");
  try {
    return path(one) === path(other);
  } catch {
    return false; // malformed
  }
}

/** Quote one argument for a POSIX shell. */
export function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
