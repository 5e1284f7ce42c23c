// One table: its locations in both formats, its lag, and its columns.

import { actRow } from "./acts.js";
import { ask, askJson, curl, url } from "./api.js";
import { h, put } from "./dom.js";
import { bytes, count, duration, instant, visible } from "./format.js";
import { parse } from "./json.js";
import { curlButton, grid, page, titleOf } from "./page.js";
import { answerOf, tableOf } from "./result.js";
import { alterTable, dropTable, rebuildTable, replayTable, retryTable, syncTable } from "./table_acts.js";
import { runsOf } from "./table_runs.js";
import { freshness } from "./tables.js";

const POLL_MS = 5000;
const PREVIEW = 20; // rows
const HISTORY_MAX = 50; // jobs, and failed ranges
const HISTORY = [["Job", "number"], ["Time"], ["Rows", "number"], ["Files", "number"], ["Bytes", "number"], ["Took", "number"]];
const FAILURES = [["Stream"], ["Record", "number"], ["Records", "number"], ["State"], ["Failures", "number"], ["Reason"]];

export function open(place, shell) {
  const name = place.rest;
  const abort = new AbortController();
  const path = `v1/tables/${encodeURIComponent(name)}`;
  const numbers = h("dl", { class: "numbers" });
  const places = h("dl", { class: "places" });
  const columns = h("div", { class: "panel" }, h("p", { class: "quiet" }, "Loading …"));
  const note = h("p", { class: "state", role: "status" });
  const rowsNote = h("p", { class: "state", role: "status" });
  const rowsShown = h("div", { class: "panel scroll result", hidden: true, tabindex: "0", role: "region", "aria-label": "Rows" });
  const history = h("div", { class: "panel scroll" }, h("p", { class: "quiet" }, "Loading …"));
  const failures = h("div", {});
  let timer = 0;
  let job = null;
  let known = null;
  let onKnown = null;
  const runs = runsOf(shell, name, again);
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
    actRow(
      [
        ["Sync …", () => syncTable(shell, name, runs.look)],
        ["Alter …", () => alterTable(shell, known, again)],
        ["Rebuild …", () => rebuildTable(shell, name, runs.look)],
        ["Retry …", () => retryTable(shell, name, again)],
        ["Replay dead letters …", () => replayTable(shell, name, runs.look)],
        ["Drop …", () => dropTable(shell, name), "danger"],
      ],
      new Promise((resolve) => (onKnown = resolve)),
    ),
    note,
    runs.element,
    h("h2", {}, "Rows"),
    h(
      "div",
      { class: "row" },
      look("Preview", () => `select * from ${name} order by append_time desc limit ${PREVIEW}`),
      look("Dead letters", () => `select * from ${name}__dlq limit ${PREVIEW}`),
    ),
    rowsNote,
    rowsShown,
    h("h2", {}, "History"),
    history,
    failures,
    h("h2", {}, "Columns"),
    columns,
    h("h2", {}, "Location"),
    places,
  );

  /** Return a button that shows the rows of a query. */
  function look(words, query) {
    return h("button", { type: "button", class: "button", on: { click: () => show(query()) } }, words);
  }

  async function show(statement) {
    put(rowsNote, "Loading …");
    rowsNote.classList.remove("wrong");
    try {
      const body = JSON.stringify({ sql: statement, rows: PREVIEW });
      const answer = await ask(url("v1/sql"), { method: "POST", headers: { "Content-Type": "application/json" }, body, wait: 0, signal: abort.signal });
      const found = answerOf(parse(await answer.text()));
      put(rowsShown, tableOf(found));
      rowsShown.hidden = !found.rows.length;
      put(rowsNote, found.rows.length ? "" : "There are no rows.");
    } catch (error) {
      if (abort.signal.aborted) return;
      rowsShown.hidden = true;
      put(rowsNote, `The rows cannot be read: ${error.message}`);
      rowsNote.classList.add("wrong");
    }
  }

  function again() {
    clearTimeout(timer);
    poll();
  }

  /** Show the jobs of the past, and the ranges that they could not read. */
  async function past() {
    const [{ jobs }, { failures: found }] = await Promise.all([askJson(`${path}/history`, {}, { signal: abort.signal }), askJson(`${path}/failures`, {}, { signal: abort.signal })]);
    put(history, jobs.length ? grid("nodes", HISTORY, h("tbody", {}, jobs.slice(0, HISTORY_MAX).map(jobRow))) : h("p", { class: "quiet" }, "The table has had no job yet."));
    put(failures, found.length ? [h("h2", {}, "Failed ranges"), h("div", { class: "panel scroll" }, grid("nodes", FAILURES, h("tbody", {}, found.slice(0, HISTORY_MAX).map(failureRow))))] : "");
  }

  function command() {
    shell.copy(curl(url(path)), "The command");
  }

  async function poll() {
    try {
      if (!document.hidden) {
        const { table } = await askJson(path, {}, { signal: abort.signal });
        known = table;
        describe(table);
        onKnown();
        if (job !== table.job) {
          job = table.job;
          await schema();
          await past();
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
      table.unframed_values ? number("Values without a frame", count(table.unframed_values)) : "",
      number("Jobs", count(table.job)),
      number("Last job", table.committed_ms ? instant(table.committed_ms) : "never"),
      number("Last job took", !table.committed_ms ? "–" : table.job_seconds === null ? "unknown" : duration(table.job_seconds)),
    );
    const where = (label, value) => h("div", {}, h("dt", {}, label), h("dd", {}, h("code", {}, value || "not synced yet")));
    put(
      places,
      where("Prefix", visible(table.prefix) || "every stream"),
      table.source ? h("div", {}, h("dt", {}, "Derived from"), h("dd", {}, tableLink(table.source))) : "",
      table.derived?.length ? h("div", {}, h("dt", {}, "Derived tables"), h("dd", {}, table.derived.map((each) => [tableLink(each), " "]))) : "",
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
        h("td", { class: "quiet-cell" }, column.required ? "never" : "allowed"),
      ),
    );
    put(columns, grid("columns", [["Column"], ["Type"], ["Null"]], h("tbody", {}, rows)));
  }

  poll();
  runs.look();
  return {
    title: visible(name),
    element,
    keys: { c: command, Escape: () => shell.go("#/tables") },
    close: () => {
      abort.abort();
      runs.close();
      clearTimeout(timer);
    },
  };
}

function tableLink(name) {
  return h("a", { class: "name", href: `#/table/${encodeURIComponent(name)}` }, visible(name));
}

function jobRow(job) {
  const number = (value) => h("td", { class: "number" }, value);
  return h("tr", {}, number(count(job.job)), h("td", {}, instant(job.time_ms)), number(count(job.rows)), number(count(job.files)), number(bytes(job.bytes)), number(duration(job.job_seconds)));
}

function failureRow(range) {
  const number = (value) => h("td", { class: "number" }, count(value));
  return h("tr", {}, h("td", {}, visible(range.stream)), number(range.record), number(range.records), h("td", {}, visible(range.state)), number(range.failures), h("td", {}, visible(range.reason)));
}
