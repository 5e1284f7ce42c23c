// The tables: their sizes, and their lag behind their streams.

import { actRow } from "./acts.js";
import { askJson, curl, url } from "./api.js";
import { h, put } from "./dom.js";
import { count, duration, instant, visible } from "./format.js";
import { curlButton, grid, page } from "./page.js";
import { Rows } from "./rows.js";
import { createTable } from "./table_acts.js";

const POLL_MS = 5000;

export function open(place, shell) {
  const abort = new AbortController();
  const body = h("tbody", {});
  const note = h("p", { class: "quiet", role: "status" });
  const rows = new Rows(body);
  let timer = 0;
  const heads = [
    ["Table", ""],
    ["Prefix", "type"],
    ["Streams", "number"],
    ["Rows", "number"],
    ["Dead letters", "number"],
    ["Lag", "number"],
    ["Last job", "moment"],
  ];
  const element = page("Tables", [curlButton(command), actRow([["Create a table …", () => createTable(shell), "primary"]])], h("div", { class: "panel" }, grid("tables", heads, body), note));

  function command() {
    shell.copy(curl(url("v1/tables")), "The command");
  }

  async function poll() {
    const begun = performance.now();
    try {
      if (!document.hidden) draw((await askJson("v1/tables", {}, { signal: abort.signal })).tables);
    } catch (error) {
      if (abort.signal.aborted) return;
      note.hidden = false;
      put(note, `The tables cannot be listed: ${error.message}. Retrying …`);
    }
    timer = setTimeout(poll, Math.max(POLL_MS, 8 * (performance.now() - begun)));
  }

  function draw(tables) {
    rows.show(tables, (table) => table.uid, row, refresh);
    note.hidden = tables.length > 0;
    put(
      note,
      "There are no tables yet. These commands create one of all streams whose names start with “orders”, and sync it:",
      h("pre", { class: "code" }, "polynya table create orders --prefix orders\npolynya table sync orders"),
    );
  }

  poll();
  return {
    title: "Tables",
    element,
    keys: { j: () => rows.move(1), k: () => rows.move(-1), c: command },
    close: () => {
      abort.abort();
      clearTimeout(timer);
    },
  };
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
    h("td", { class: "type" }, visible(table.prefix) || "everything"),
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
  const records = `${count(table.records_behind)} ${table.records_behind === 1 ? "record" : "records"}`;
  if (table.behind_seconds === null) return h("span", { class: "mark" }, `${records} behind`); // a derived table
  const kind = table.behind_seconds > 3600 ? "warn" : "";
  return h("span", { class: `mark ${kind}`, title: records }, `${duration(table.behind_seconds)} behind`);
}
