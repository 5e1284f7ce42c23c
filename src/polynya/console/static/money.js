// Money by hour: complete series, paths of a chart, and spelled amounts. Pure.

const HOUR_MS = 3_600_000;
export const LINES = ["measured", "replicated", "diskless"];

/** Return {measured, replicated, diskless}: an amount for each hour since `since`, 0 for hours without an entry. */
export function hourly(report) {
  const begin = Date.parse(report.since);
  const series = Object.fromEntries(LINES.map((name) => [name, new Array(report.hours).fill(0)]));
  for (const hour of report.bill.by_hour) {
    const at = Math.round((Date.parse(hour.time) - begin) / HOUR_MS);
    if (at >= 0 && at < report.hours) for (const name of LINES) series[name][at] = hour[name];
  }
  return series;
}

/** Return the path of a line through `values` in a box, with `top` at its upper edge. */
export function pathOf(values, top, width, height) {
  const step = values.length > 1 ? width / (values.length - 1) : 0;
  const points = values.map((value, at) => `${(at * step).toFixed(1)} ${(height - (top > 0 ? (value / top) * height : 0)).toFixed(1)}`);
  return `M${points.length > 1 ? points.join(" L") : `${points[0]} H${width}`}`;
}

/** 0.0123 → "0.0123 USD": two digits at least, and four that count. */
export function spelled(amount, currency) {
  const digits = amount >= 1 || amount === 0 ? 2 : Math.min(6, 3 - Math.floor(Math.log10(amount)));
  return `${amount.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: Math.max(2, digits) })} ${currency}`;
}
