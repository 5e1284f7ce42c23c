// Charts of the last 24 hours: lines over time, with gaps where nothing was measured.

import { h, svg } from "./dom.js";
import { instant } from "./format.js";

const WIDTH = 480;
const HEIGHT = 96;
const GAP_STEPS = 2.5; // a longer pause between two rows is a gap

/** Return the path of values over times in a box: `begin` to `end` from left to right, `top` at the upper edge; null values and long pauses are gaps. */
export function linePath(times, values, { begin, end, top, gap, width = WIDTH, height = HEIGHT }) {
  const parts = [];
  let last = null;
  values.forEach((value, index) => {
    if (value === null || value === undefined) {
      last = null;
      return;
    }
    const x = end > begin ? ((times[index] - begin) / (end - begin)) * width : width;
    const y = height - (top > 0 ? (value / top) * height : 0);
    parts.push(`${last === null || times[index] - last > gap ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}`);
    last = times[index];
  });
  return parts.join(" ");
}

/** Return the path of a dot at the end of a path; "" if that has none. */
function lastOf(path) {
  const found = /([\d.]+ -?[\d.]+)$/.exec(path);
  return found ? `M${found[1]}h.01` : "";
}

/** Give each lone value of a path a dot. */
function dotted(path) {
  return path.replace(/M[\d.]+ [-\d.]+(?= M|$)/g, "$&h.01");
}

/**
 * Return a chart: a title with the last value, and a line for each of `lines`, [name, values, class]. `spell` words a value. The text alternative has the
 * last value and the highest.
 */
export function chart(title, times, lines, { spell, step, span }) {
  const end = times.at(-1) ?? 0;
  const begin = end - span;
  const known = lines.flatMap(([, values]) => values.filter((value) => value !== null));
  const top = Math.max(0, ...known);
  const lasts = lines.map(([name, values]) => [name, values.findLast((value) => value !== null) ?? null]);
  const words = lasts.map(([name, value]) => `${name ? `${name} ` : ""}${value === null ? "–" : spell(value)}`).join(", ");
  const label = known.length ? `${title}, last 24 hours: ${words}; at most ${spell(top)}` : `${title}: no figures yet`;
  const box = { begin, end, top, gap: step * GAP_STEPS * 1000 };
  return h(
    "figure",
    { class: "card trend" },
    h("figcaption", {}, h("h3", {}, title), h("p", { class: "value" }, lasts.map(([name, value], index) => h("span", { class: `legend ${lines[index][2]}` }, value === null ? "–" : spell(value), name ? h("small", {}, ` ${name}`) : null)))),
    svg(
      "svg",
      { viewBox: `0 -3 ${WIDTH} ${HEIGHT + 6}`, class: "trend-lines", role: "img", "aria-label": label, preserveAspectRatio: "none" },
      svg("path", { class: "base", d: `M0 ${HEIGHT} H${WIDTH} M0 0 H${WIDTH}` }),
      lines.map(([, values, kind]) => {
        const path = linePath(times, values, box);
        return [svg("path", { class: kind, d: dotted(path) }), svg("path", { class: `${kind} now`, d: lastOf(path) })];
      }),
    ),
    h("p", { class: "axis" }, h("span", {}, times.length ? instant(begin).slice(11, 16) : ""), h("span", {}, known.length ? `top ${spell(top)}` : "no figures yet"), h("span", {}, times.length ? instant(end).slice(11, 16) : "")),
  );
}
