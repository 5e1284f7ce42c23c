// One table: its locations in both formats, its lag, and its columns.

import { askJson, curl, url } from "./api.js";
import { h, put } from "./dom.js";
import { count, duration, instant, visible } from "./format.js";
import { curlButton, grid, page, titleOf } from "./page.js";
import { freshness } from "./tables.js";

const POLL_MS = 5000;

export function open(place, shell) {
  const name = place.rest;
  const abort = new AbortController();
  const path = `v1/tables/${encodeURIComponent(name)}`;
  const numbers = h("dl", { class: "numbers" });
  const places = h("dl", { class: "places" });
  const columns = h("div", { class: "panel" }, h("p", { class: "quiet" }, "Loading …"));
  const note = h("p", { class: "state", role: "status" });
  let timer = 0;
  let job = null;
  const question = `select * from ${name} order by append_time desc limit 50`;
  const element = page(
    titleOf(name, "Tables", "#/tables"),
    h(
      "div",
      { class: "row" },
      h("a", { class: "button primary", href: `#/sql?q=${encodeURIComponent(question)}` }, "Query in SQL"),
      curlButton(command),
    ),
    numbers,
    note,
    h("h2", {}, "Columns"),
    columns,
    h("h2", {}, "Location"),
    places,
  );

  function command() {
    shell.copy(curl(url(path)), "The command");
  }

  async function poll() {
    try {
      if (!document.hidden) {
        const { table } = await askJson(path, {}, { signal: abort.signal });
        describe(table);
        if (job !== table.job) {
          job = table.job;
          await schema();
        }
        put(note, "");
        note.classList.remove("wrong");
      }
    } catch (error) {
      if (abort.signal.aborted) return;
      put(note, error.status === 404 ? error.message : `The table cannot be read: ${error.message}. Retrying …`);
      note.classList.add("wrong");
      if (error.status === 404) {
        put(columns, h("p", { class: "quiet" }, "Nothing is known of it."));
        return;
      }
    }
    timer = setTimeout(poll, POLL_MS);
  }

  function describe(table) {
    const number = (label, value) => h("div", {}, h("dt", {}, label), h("dd", {}, value));
    put(
      numbers,
      number("Rows", count(table.rows)),
      number("Dead letters", count(table.dead_rows)),
      number("Streams", count(table.streams)),
      number("Freshness", freshness(table)),
      number("Records behind", table.records_behind === null ? "unknown" : count(table.records_behind)),
      number("Ranges set aside", count(table.ranges_aside)),
      number("Files", table.files === null ? "unknown" : count(table.files)),
      number("Fields without a column", table.fields_without_column === null ? "unknown" : count(table.fields_without_column.length)),
      number("Jobs", count(table.job)),
      number("Last job", table.committed_ms ? instant(table.committed_ms) : "never"),
      number("Last job took", table.job_seconds === null ? "unknown" : duration(table.job_seconds)),
    );
    const where = (label, value) => h("div", {}, h("dt", {}, label), h("dd", {}, h("code", {}, value || "not synced yet")));
    put(
      places,
      where("Prefix", visible(table.prefix) || "every stream"),
      where("Iceberg", visible(table.iceberg)),
      where("Delta", visible(table.delta)),
      where("Store", visible(`${table.store.kind} ${table.store.bucket} ${table.store.root}`)),
    );
  }

  async function schema() {
    const { columns: found } = await askJson(`${path}/schema`, {}, { signal: abort.signal });
    if (!found.length) {
      put(
        columns,
        h("p", { class: "quiet" }, "The table has no columns until its first sync: "),
        h("pre", { class: "code" }, `polynya table sync ${name}`),
      );
      return;
    }
    const rows = found.map((column) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, h("code", {}, visible(column.name))),
        h("td", {}, h("code", {}, visible(column.type))),
        h("td", { class: "quiet-cell" }, column.required ? "required" : ""),
      ),
    );
    put(columns, grid("columns", [["Column"], ["Type"], [""]], h("tbody", {}, rows)));
  }

  poll();
  return {
    title: visible(name),
    element,
    keys: { c: command, Escape: () => shell.go("#/tables") },
    close: () => {
      abort.abort();
      clearTimeout(timer);
    },
  };
}
