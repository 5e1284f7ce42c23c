// A chart of an SQL result: bars by a text, or lines over a time, of its numeric columns.

import { linePath } from "./charts.js";
import { h, svg } from "./dom.js";
import { compact, count, instant, visible } from "./format.js";
import { unquoted } from "./json.js";
import { isNumeric } from "./result.js";

const BARS_MAX = 50;
const CLASSES = ["first", "second", "third"]; // of the numeric columns that are drawn
const TIMES = /^(DATE|TIMESTAMP.*)$/;
const WIDTH = 480;
const HEIGHT = 160;
const LABEL_CHARACTERS = 60;

/**
 * Return what a result has to draw: {kind: "bars" or "lines", labels, times, series: [[name, values]]}; null without rows, or without a numeric column beside
 * one of text or time. Pure.
 */
export function plotOf({ columns, rows }) {
  const timed = columns.findIndex((column) => TIMES.test(column.type));
  const at = timed < 0 ? columns.findIndex((column) => !isNumeric(column.type)) : timed;
  const numeric = columns.map((column, index) => index).filter((index) => isNumeric(columns[index].type));
  if (at < 0 || !numeric.length || !rows.length) return null;
  const label = (row) => textOf(row.items[at]);
  const times = TIMES.test(columns[at].type) ? rows.map((row) => momentOf(label(row))) : [];
  const isTimed = rows.length > 1 && times.length > 0 && times.every((time) => Number.isFinite(time));
  const order = rows.map((_, index) => index);
  if (isTimed) order.sort((one, other) => times[one] - times[other]);
  const shown = isTimed ? order : order.slice(0, BARS_MAX);
  return {
    kind: isTimed ? "lines" : "bars",
    labels: shown.map((index) => label(rows[index])),
    times: isTimed ? shown.map((index) => times[index]) : [],
    series: numeric.slice(0, CLASSES.length).map((column) => [columns[column].name, shown.map((index) => numberOf(rows[index].items[column]))]),
    left: rows.length - shown.length,
  };
}

/** Return the figure of a plot. */
export function figureOf(plot) {
  const legend = plot.series.map(([name], index) => h("span", { class: `legend ${CLASSES[index]}` }, "■ ", visible(name)));
  const left = plot.left ? h("span", {}, `… and ${count(plot.left)} more rows`) : null;
  return h("figure", { class: "card plot" }, h("figcaption", { class: "row" }, legend, left), plot.kind === "lines" ? linesOf(plot) : barsOf(plot));
}

function linesOf({ times, series }) {
  const known = series.flatMap(([, values]) => values.filter((value) => value !== null));
  const [low, high] = [Math.min(0, ...known), Math.max(0, ...known)];
  const box = { begin: times[0], end: times.at(-1), top: high - low, gap: Infinity, width: WIDTH, height: HEIGHT };
  const zero = (HEIGHT * high) / (high - low || 1);
  const label = `${series.map(([name]) => visible(name)).join(", ")} from ${instant(times[0])} to ${instant(times.at(-1))}, ${spelled(low)} to ${spelled(high)}`;
  return [
    svg(
      "svg",
      { viewBox: `0 -3 ${WIDTH} ${HEIGHT + 6}`, class: "trend-lines", role: "img", "aria-label": label, preserveAspectRatio: "none" },
      svg("path", { class: "base", d: `M0 ${zero.toFixed(1)} H${WIDTH} M0 0 H${WIDTH}` }),
      series.map(([, values], index) => {
        const lifted = values.map((value) => (value === null ? null : value - low));
        return svg("path", { class: CLASSES[index], d: linePath(times, lifted, box) });
      }),
    ),
    h("p", { class: "axis" }, h("span", {}, instant(times[0])), h("span", {}, `${spelled(low)} to ${spelled(high)}`), h("span", {}, instant(times.at(-1)))),
  ];
}

function barsOf({ labels, series }) {
  const known = series.flatMap(([, values]) => values.filter((value) => value !== null));
  const [low, high] = [Math.min(0, ...known), Math.max(0, ...known)];
  const scale = 100 / (high - low || 1);
  const bar = (value, index) => {
    if (value === null) return null;
    const x = (Math.min(value, 0) - low) * scale;
    const place = { x: x.toFixed(2), y: index * 10 + 1, width: Math.max(Math.abs(value) * scale, 0.2).toFixed(2), height: 8 };
    return svg("rect", { ...place, class: CLASSES[index] });
  };
  const tall = series.length * 10;
  return h(
    "ol",
    { class: "bars", tabindex: "0", "aria-label": "The chart" },
    labels.map((label, row) => {
      const values = series.map(([, all]) => all[row]);
      const words = values.map((value) => (value === null ? "null" : spelled(value))).join(", ");
      const short = label.length > LABEL_CHARACTERS ? `${label.slice(0, LABEL_CHARACTERS)} …` : label;
      return h(
        "li",
        {},
        h("span", { class: "bar-label", title: visible(label.slice(0, 1000)) }, visible(short) || "“”"),
        svg("svg", { viewBox: `0 0 100 ${tall}`, class: `strip s${series.length}`, "aria-hidden": "true", preserveAspectRatio: "none" }, values.map(bar)),
        h("span", { class: "number" }, words),
      );
    }),
  );
}

function spelled(value) {
  return value < 0 ? `−${spelled(-value)}` : value > 0 && value < 0.1 ? value.toPrecision(2) : compact(value);
}

function textOf(node) {
  return node.kind === "string" ? unquoted(node.source) : (node.source ?? "…");
}

/** Return a finite number, or null. Decimals come as text. */
function numberOf(node) {
  const text = node.kind === "word" || !node.source ? "" : textOf(node);
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : null;
}

/** Return the time in ms of a date or a timestamp, of which one without a zone is UTC. */
function momentOf(text) {
  const plain = text.replace(" ", "T");
  return Date.parse(/T.*(Z|[+-]\d\d(:?\d\d)?)$/.test(plain) || !plain.includes("T") ? plain : `${plain}Z`);
}
