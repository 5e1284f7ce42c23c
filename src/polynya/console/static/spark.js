// Sparklines: a small chart of numbers, with a text alternative.

import { svg } from "./dom.js";

const WIDTH = 120;
const HEIGHT = 28;

/** Return an SVG of values, oldest first; `slots` is the capacity, `label` the text alternative. */
export function sparkline(values, { slots = 59, label = "", width = WIDTH, height = HEIGHT } = {}) {
  const top = Math.max(...values, 0);
  const step = width / Math.max(slots - 1, 1);
  const begin = width - (values.length - 1) * step;
  const place = (value, index) => {
    const y = height - 2 - (top > 0 ? (Math.max(value, 0) / top) * (height - 5) : 0);
    return `${(begin + index * step).toFixed(1)} ${y.toFixed(1)}`;
  };
  const line = values.map(place).join(" L");
  const props = { viewBox: `0 0 ${width} ${height}`, class: "spark", role: "img", "aria-label": label, preserveAspectRatio: "none" };
  if (values.length < 2) return svg("svg", props, svg("path", { class: "base", d: `M0 ${height - 2} H${width}` }));
  return svg(
    "svg",
    props,
    svg("path", { class: "base", d: `M0 ${height - 2} H${width}` }),
    svg("path", { class: "area", d: `M${begin.toFixed(1)} ${height - 2} L${line} L${width} ${height - 2} Z` }),
    svg("path", { class: top > 0 ? "line" : "line still", d: `M${line}` }),
  );
}
