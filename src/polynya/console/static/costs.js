// What the cluster costs: requests to the object store, bytes between zones, and the money by hour beside estimates for both profiles.

import { askJson, curl, url } from "./api.js";
import { h, put, svg } from "./dom.js";
import { bytes, count, instant, visible } from "./format.js";
import { hourly, LINES, pathOf, spelled } from "./money.js";
import { curlButton, grid, page } from "./page.js";

const POLL_MS = 30_000;
const SPANS = [
  [24, "24 hours"],
  [168, "7 days"],
  [720, "30 days"],
];
const NAMES = { measured: "Measured", replicated: "If replicated", diskless: "If diskless" };
const WIDTH = 720;
const HEIGHT = 160;
const REQUESTS = ["put", "get", "head", "list", "delete"];

export function open(place, shell) {
  const abort = new AbortController();
  const asked = Number(place.query.get("hours"));
  const hours = SPANS.some(([span]) => span === asked) ? asked : SPANS[0][0];
  const note = h("p", { class: "state", role: "status" });
  const sums = h("dl", { class: "numbers" });
  const chart = h("figure", { class: "chart" });
  const store = h("tbody", {});
  const zones = h("tbody", {});
  let timer = 0;
  const element = page(
    "Costs",
    [
      SPANS.map(([span, words]) =>
        h("button", { type: "button", class: "button small", "aria-pressed": String(span === hours), on: { click: () => shell.go(`#/costs?hours=${span}`) } }, words),
      ),
      curlButton(command),
    ],
    note,
    sums,
    chart,
    h("h2", {}, "Requests to the object store"),
    panel(["Node", "Work"], [...REQUESTS.map((name) => name.toUpperCase()), "Up", "Down"], store),
    h("h2", {}, "Bytes between zones"),
    panel(["From", "To", "Kind"], ["Bytes"], zones),
  );

  function command() {
    shell.copy(curl(url("v1/cost", { hours })), "The command");
  }

  async function poll() {
    if (!document.hidden) {
      try {
        draw(await askJson("v1/cost", { hours }, { signal: abort.signal }));
      } catch (error) {
        if (!abort.signal.aborted)
          put(note, error.status === 403 ? `This token has no access: ${error.message}` : `The costs cannot be read: ${error.message}. Retrying …`);
      }
    }
    if (!abort.signal.aborted) timer = setTimeout(poll, POLL_MS);
  }

  function draw(report) {
    const absent = report.missing.map((node) => `node ${node}`);
    for (const node of report.nodes) absent.push(...node.missing_cores.map((core) => `core ${core} of node ${node.node}`));
    put(note, absent.length ? `Not in the sums, as they did not answer: ${absent.join(", ")}.` : "");
    put(
      sums,
      LINES.map((name) => h("div", { class: `money ${name}` }, h("dt", {}, NAMES[name]), h("dd", {}, visible(spelled(report.bill.totals[name], report.bill.currency))))),
    );
    put(chart, chartOf(report));
    const works = report.nodes.flatMap((node) => Object.entries(node.usage.store).map(([work, calls]) => ({ node, work, calls })));
    put(store, works.length ? works.map(storeRow) : empty(9, "No request yet."));
    const crossed = new Map();
    for (const node of report.nodes)
      for (const each of node.usage.zones) {
        const key = [each.from, each.to, each.kind].join("\n");
        crossed.set(key, { ...each, bytes: each.bytes + (crossed.get(key)?.bytes ?? 0) });
      }
    put(zones, crossed.size ? [...crossed.values()].map(zoneRow) : empty(4, "Nothing: one node, or no zones in the settings."));
  }

  poll();
  return {
    title: "Costs",
    element,
    keys: { c: command },
    close: () => {
      abort.abort();
      clearTimeout(timer);
    },
  };
}

/** Draw the money of each hour as three lines, with a legend in the numbers above. */
function chartOf(report) {
  const series = hourly(report);
  const top = Math.max(...LINES.flatMap((name) => series[name]));
  const label = `Money by hour, up to ${spelled(top, report.bill.currency)}: measured, if replicated, if diskless`;
  return [
    svg(
      "svg",
      { viewBox: `0 -4 ${WIDTH} ${HEIGHT + 8}`, class: "lines", role: "img", "aria-label": label, preserveAspectRatio: "none" },
      svg("path", { class: "base", d: `M0 ${HEIGHT} H${WIDTH} M0 0 H${WIDTH}` }),
      LINES.map((name) => svg("path", { class: name, d: pathOf(series[name], top, WIDTH, HEIGHT) })),
    ),
    h("figcaption", {}, h("span", {}, instant(Date.parse(report.since))), h("span", {}, `${spelled(top, report.bill.currency)} an hour at the top`), h("span", {}, instant(Date.parse(report.until)))),
  ];
}

function panel(words, numbers, body) {
  const heads = [...words.map((text) => [text]), ...numbers.map((text) => [text, "number"])];
  return h("div", { class: "panel scroll" }, grid("nodes", heads, body));
}

function storeRow({ node, work, calls }) {
  const name = node.zone ? `${node.node} (${visible(node.zone)})` : String(node.node);
  return h(
    "tr",
    {},
    h("td", {}, name),
    h("td", {}, visible(work)),
    REQUESTS.map((request) => h("td", { class: "number" }, count(calls[request] ?? 0))),
    h("td", { class: "number" }, bytes(calls.up ?? 0)),
    h("td", { class: "number" }, bytes(calls.down ?? 0)),
  );
}

function zoneRow(each) {
  return h("tr", {}, h("td", {}, visible(each.from || "–")), h("td", {}, visible(each.to || "–")), h("td", {}, each.kind), h("td", { class: "number" }, bytes(each.bytes)));
}

function empty(columns, words) {
  return h("tr", {}, h("td", { colspan: columns, class: "quiet" }, words));
}
