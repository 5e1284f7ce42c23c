// The tables: their sizes, and their lag behind their streams.

import { actRow } from "./acts.js";
import { askJson, curl, url } from "./api.js";
import { h, put } from "./dom.js";
import { count, duration, instant, visible } from "./format.js";
import { openList } from "./list.js";
import { createTable } from "./table_acts.js";

const HEADS = [
  ["Table", ""],
  ["Prefix", "type"],
  ["Streams", "number"],
  ["Rows", "number"],
  ["Dead letters", "number"],
  ["Lag", "number"],
  ["Last job", "moment"],
];

export function open(place, shell) {
  return openList(shell, {
    title: "Tables",
    beside: actRow([["Create a table …", () => createTable(shell), "primary"]]),
    kind: "tables",
    heads: HEADS,
    ask: async (options) => ({ entries: (await askJson("v1/tables", {}, options)).tables, isCut: false }),
    key: (table) => table.uid,
    row,
    refresh,
    what: "tables",
    empty: [
      "There are no tables yet. These commands create one of all streams whose names start with “orders”, and sync it:",
      h("pre", { class: "code" }, "polynya table create orders --prefix orders\npolynya table sync orders"),
    ],
    curl: () => curl(url("v1/tables")),
  });
}

function row(table) {
  return h(
    "tr",
    {},
    h(
      "th",
      { scope: "row" },
      h("a", { class: "name", href: `#/table/${encodeURIComponent(table.name)}`, "data-row": true }, visible(table.name)),
    ),
    h("td", { class: "type" }, table.source ? `table ${visible(table.source)}` : visible(table.prefix) || "everything"),
    h("td", { class: "number", "data-label": " str." }),
    h("td", { class: "number", "data-label": " rows" }),
    h("td", { class: "number", "data-label": " dead" }),
    h("td", { class: "number" }),
    h("td", { class: "moment" }),
  );
}

function refresh(element, table) {
  const [, , streams, rows, dead, behind, last] = element.children;
  put(streams, count(table.streams));
  put(rows, count(table.rows));
  put(dead, count(table.dead_rows));
  put(behind, freshness(table));
  put(last, table.committed_ms ? instant(table.committed_ms) : "never");
}

/** Return a badge for the ranges that are set aside, else for a table's lag behind its streams. */
export function freshness(table) {
  if (table.ranges_aside) {
    const title = `${count(table.records_aside)} records cannot be read: polynya table failures ${table.name}`;
    return h("span", { class: "mark warn", title }, `${count(table.ranges_aside)} set aside`);
  }
  if (table.records_behind === null) return h("span", { class: "mark" }, "unknown lag");
  if (!table.records_behind) return h("span", { class: "mark good" }, "up to date");
  const kind = table.source ? "row" : "record";
  const records = `${count(table.records_behind)} ${table.records_behind === 1 ? kind : `${kind}s`}`;
  if (table.behind_seconds === null) return h("span", { class: "mark" }, `${records} behind`); // a derived table
  const mark = table.behind_seconds > 3600 ? "warn" : "";
  return h("span", { class: `mark ${mark}`, title: records }, `${duration(table.behind_seconds)} behind`);
}
