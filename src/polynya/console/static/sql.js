// SQL queries on tables: one SELECT, answered by the server; its plan, its chart, its result as a file, and the queries before it.

import { ApiError, ask, askJson, curl, url } from "./api.js";
import { completed, suggestions, tablesIn, wordBefore } from "./complete.js";
import { download, h, put } from "./dom.js";
import { csvOf, jsonOf } from "./export.js";
import { count, visible, visibleLines } from "./format.js";
import { clearQueries, keepQuery, queries } from "./history.js";
import { parse, unquoted } from "./json.js";
import { curlButton, page } from "./page.js";
import { parquetOf } from "./parquet.js";
import { figureOf, plotOf } from "./plot.js";
import { answerOf, tableOf } from "./result.js";

const ROWS = 1000;
const DRAFT = "polynya.question";
const TABLES_SHOWN = 30;
const SCHEMAS_MAX = 20; // tables whose columns are completed
const TITLE_CHARACTERS = 160; // of a query in the history
const FILES = { csv: ["text/csv;charset=utf-8", csvOf], json: ["application/json", jsonOf], parquet: ["application/vnd.apache.parquet", parquetOf] };
const JSON_TYPE = { "Content-Type": "application/json" };

export function open(place, shell) {
  const view = new SqlView(place.query.get("q"), shell);
  view.start();
  return view;
}

class SqlView {
  constructor(asked, shell) {
    this.title = "SQL";
    this.asked = asked;
    this.shell = shell;
    this.abort = new AbortController();
    this.running = null; // the controller of the query that runs
    this.answer = null; // of the last query that was not a plan
    this.tables = []; // names
    this.columns = new Map(); // by table, the names of its columns
    this.build();
    this.keys = { "/": () => this.field.focus(), c: () => this.command(), Escape: () => this.running?.abort() };
  }

  build() {
    const button = (id, name, act, title) => h("button", { type: "button", class: "button", id, title, on: { click: act } }, name);
    this.field = h("textarea", { id: "question", rows: "6", spellcheck: "false", autocapitalize: "off", placeholder: "select stream, count(*) from orders group by stream" });
    this.field.value = this.asked ?? draft();
    this.field.addEventListener("keydown", (event) => this.typed(event));
    this.field.addEventListener("input", () => this.suggest());
    this.run = button("run", "Run", () => this.submit(false));
    this.run.classList.add("primary");
    this.names = h("div", { class: "chips" });
    this.suggested = h("div", { class: "chips", id: "suggested", role: "group", "aria-label": "Completions", hidden: true });
    this.state = h("p", { class: "state", role: "status", id: "sql-state" });
    this.history = h("details", { class: "history", id: "history", hidden: true });
    this.chart = button("chart", "Chart", () => this.draw(this.figure.hidden));
    this.chart.setAttribute("aria-pressed", "false");
    this.figure = h("div", { id: "figure", hidden: true });
    this.result = h("div", { class: "panel scroll result", id: "result", hidden: true, tabindex: "0", role: "region", "aria-label": "The result" });
    this.files = h("div", { class: "row", hidden: true }, this.chart, button("csv", "Save as CSV", () => this.save("csv")), button("json", "Save as JSON", () => this.save("json")), button("parquet", "Save as Parquet", () => this.save("parquet")));
    const hint = h("span", { class: "hint" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter"));
    this.element = page(
      "SQL",
      this.names,
      h("label", { class: "field" }, h("span", {}, "SQL query: one SELECT in DuckDB's dialect"), this.field),
      this.suggested,
      h(
        "div",
        { class: "row between" },
        h("div", { class: "row" }, this.run, button("plan", "Plan", () => this.submit(true), "Show how DuckDB would run the query"), hint),
        h("div", { class: "row" }, this.files, curlButton(() => this.command())),
      ),
      this.history,
      this.state,
      this.figure,
      this.result,
    );
    this.listHistory();
  }

  start() {
    this.listTables();
    if (this.asked) this.submit(false);
  }

  // --- running --------------------------------------------------------------------------------------------------------------------------

  /** Run the query, or show its plan; stop the one that runs. */
  async submit(isPlan) {
    if (this.running) {
      this.running.abort();
      return;
    }
    const statement = this.field.value.trim();
    if (!statement) return;
    keepDraft(this.field.value);
    keepQuery(statement);
    this.listHistory();
    this.running = new AbortController();
    put(this.run, "Stop");
    this.tell("Running …");
    const begun = performance.now();
    try {
      const tree = await this.request(statement, isPlan);
      if (isPlan) this.showPlan(answerOf(tree));
      else this.show(answerOf(tree), performance.now() - begun);
    } catch (error) {
      if (this.abort.signal.aborted) return;
      this.clear();
      this.tell(this.running.signal.aborted ? "Stopped." : told(error), !this.running.signal.aborted);
    } finally {
      this.running = null;
      put(this.run, "Run");
    }
  }

  async request(statement, isPlan) {
    const answer = await ask(url("v1/sql"), {
      method: "POST",
      headers: JSON_TYPE,
      body: bodyOf(statement, isPlan),
      wait: 0, // the server limits the time of a query
      signal: AbortSignal.any([this.abort.signal, this.running.signal]),
    });
    return parse(await answer.text());
  }

  clear() {
    this.answer = null;
    for (const part of [this.result, this.files, this.figure]) part.hidden = true;
  }

  show(answer, took) {
    const { rows, truncated, tables } = answer;
    const wasDrawn = !this.figure.hidden;
    this.clear();
    this.answer = answer;
    put(this.result, tableOf(answer));
    this.result.hidden = false;
    this.files.hidden = false;
    this.plot = plotOf(answer);
    this.chart.disabled = !this.plot;
    this.chart.title = this.plot ? "" : "A chart needs rows, a column of text or time, and a column of numbers";
    this.draw(wasDrawn && this.plot !== null);
    const words = `${count(rows.length)} ${rows.length === 1 ? "row" : "rows"}${truncated ? " (truncated)" : ""}`;
    this.tell(`${words}, in ${Math.round(took)} ms.${behind(tables)}`);
  }

  showPlan({ rows }) {
    this.clear();
    const text = rows.map((row) => unquoted(row.items.at(-1).source)).join("\n");
    put(this.result, h("pre", { class: "plan" }, visibleLines(text)));
    this.result.hidden = false;
    this.tell("The plan, from the tables at the bottom to the result at the top. The query was not run.");
  }

  draw(isShown) {
    if (isShown) put(this.figure, figureOf(this.plot));
    this.figure.hidden = !isShown;
    this.chart.setAttribute("aria-pressed", String(isShown));
  }

  save(kind) {
    const [type, of] = FILES[kind];
    download(`result.${kind}`, type, of(this.answer));
    this.shell.say(`result.${kind} has ${count(this.answer.rows.length)} rows${this.answer.truncated ? ": the first ones" : ""}.`);
  }

  command() {
    this.shell.copy(curl(url("v1/sql"), { method: "POST", headers: JSON_TYPE, body: bodyOf(this.field.value.trim(), false) }), "The command");
  }

  tell(text, wrong = false) {
    put(this.state, text);
    this.state.classList.toggle("wrong", wrong);
  }

  // --- the queries before it ------------------------------------------------------------------------------------------------------------

  listHistory() {
    const kept = queries();
    this.history.hidden = !kept.length;
    const clear = () => {
      clearQueries();
      this.history.open = false;
      this.listHistory();
    };
    put(
      this.history,
      h("summary", {}, `History (${kept.length})`),
      h("ol", {}, kept.map((statement) => h("li", {}, h("button", { type: "button", class: "past", on: { click: () => this.use(statement) } }, oneLine(statement))))),
      h("div", { class: "row" }, h("button", { type: "button", class: "button small", id: "clear-history", on: { click: clear } }, "Clear the history"), h("span", { class: "hint" }, "Kept in this browser only.")),
    );
  }

  use(statement) {
    this.field.value = statement;
    this.suggest();
    this.field.focus();
  }

  // --- tables and completion ------------------------------------------------------------------------------------------------------------

  async listTables() {
    try {
      const { tables } = await askJson("v1/tables", {}, { signal: this.abort.signal });
      this.tables = tables.map((table) => table.name);
    } catch (error) {
      if (!this.abort.signal.aborted && !this.running) this.tell(`The tables cannot be listed: ${error.message}.`, true);
      return;
    }
    if (this.tables.length) this.field.placeholder = `select stream, count(*) from ${this.tables[0]} group by stream`;
    else if (!this.asked) this.tell("There are no tables yet. Create one with “polynya table create orders --prefix orders”, then “polynya table sync orders”.");
    const chip = (name) => h("button", { type: "button", class: "mark", title: "Query the newest rows", on: { click: () => this.use(`select * from ${name} order by append_time desc limit 50`) } }, visible(name));
    put(this.names, this.tables.slice(0, TABLES_SHOWN).map(chip));
  }

  typed(event) {
    const isControl = event.ctrlKey || event.metaKey;
    if (event.key === "Enter" && isControl) this.submit(false);
    else if (event.key === " " && event.ctrlKey) this.suggested.querySelector("button")?.click();
    else return;
    event.preventDefault();
  }

  suggest() {
    const { value, selectionStart: caret } = this.field;
    const used = tablesIn(value, this.tables);
    const columns = used.flatMap((name) => this.columnsOf(name));
    const found = suggestions(wordBefore(value, caret), columns, this.tables);
    const chip = (name) => h("button", { type: "button", class: "mark", on: { click: () => this.complete(name) } }, visible(name));
    put(this.suggested, found.map(chip), found.length ? h("span", { class: "hint" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Space"), " takes the first") : null);
    this.suggested.hidden = !found.length;
  }

  complete(name) {
    const { text, caret } = completed(this.field.value, this.field.selectionStart, name);
    this.field.value = text;
    this.field.focus();
    this.field.setSelectionRange(caret, caret);
    this.suggest();
  }

  /** Return the columns of a table that are known; request them once. */
  columnsOf(name) {
    const known = this.columns.get(name);
    if (known || this.columns.size >= SCHEMAS_MAX) return known ?? [];
    this.columns.set(name, []);
    askJson(`v1/tables/${encodeURIComponent(name)}/schema`, {}, { signal: this.abort.signal })
      .then(({ columns }) => {
        this.columns.set(name, columns.map((column) => column.name));
        this.suggest();
      })
      .catch(() => {}); // no columns before the first rows: nothing to complete
    return [];
  }

  close() {
    keepDraft(this.field.value);
    this.abort.abort();
  }
}

function bodyOf(statement, isPlan) {
  return JSON.stringify({ sql: statement, rows: ROWS, ...(isPlan ? { explain: true } : {}) });
}

function oneLine(statement) {
  const line = statement.replace(/\s+/g, " ");
  return visible(line.length > TITLE_CHARACTERS ? `${line.slice(0, TITLE_CHARACTERS)} …` : line);
}

function told(error) {
  if (error instanceof ApiError) return error.message;
  return `The query failed: ${error.message}.`;
}

function behind(tables) {
  const late = tables.filter((table) => Number(table.records_behind?.number ?? 0) > 0);
  return late
    .map((table) => ` ${visible(table.name)} is ${count(Number(table.records_behind.number))} records behind its streams.`)
    .join("");
}

function draft() {
  try {
    return sessionStorage.getItem(DRAFT) ?? "";
  } catch {
    return "";
  }
}

function keepDraft(text) {
  try {
    sessionStorage.setItem(DRAFT, text.slice(0, 100_000));
  } catch {
    // the draft is lost on reload
  }
}
