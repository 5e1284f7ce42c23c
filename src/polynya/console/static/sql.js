// SQL queries on tables: one SELECT, answered by the server.

import { ApiError, ask, askJson, curl, url } from "./api.js";
import { h, put } from "./dom.js";
import { count, visible } from "./format.js";
import { parse } from "./json.js";
import { curlButton, page } from "./page.js";
import { answerOf, tableOf } from "./result.js";

const ROWS = 1000;
const DRAFT = "polynya.question";

export function open(place, shell) {
  const abort = new AbortController();
  const asked = place.query.get("q");
  const field = h("textarea", {
    id: "question",
    rows: "6",
    spellcheck: "false",
    autocapitalize: "off",
    placeholder: "select stream, count(*) from orders group by stream",
  });
  field.value = asked ?? draft();
  const run = h("button", { type: "button", class: "button primary", id: "run", on: { click: submit } }, "Run");
  const state = h("p", { class: "state", role: "status", id: "sql-state" });
  const result = h("div", { class: "panel scroll result", id: "result", hidden: true });
  const names = h("div", { class: "chips" });
  let running = null;
  const element = page(
    "SQL",
    names,
    h("label", { class: "field" }, h("span", {}, "SQL query: one SELECT in DuckDB's dialect"), field),
    h(
      "div",
      { class: "row between" },
      h("div", { class: "row" }, run, h("span", { class: "hint" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter"))),
      curlButton(command),
    ),
    state,
    result,
  );

  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      submit();
    }
  });

  async function submit() {
    if (running) {
      running.abort();
      return;
    }
    const statement = field.value.trim();
    if (!statement) return;
    keepDraft(field.value);
    running = new AbortController();
    put(run, "Stop");
    tell("Running …");
    const begun = performance.now();
    try {
      const answer = await ask(url("v1/sql"), {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: bodyOf(statement),
        wait: 0, // the server limits the time of a query
        signal: AbortSignal.any([abort.signal, running.signal]),
      });
      show(parse(await answer.text()), performance.now() - begun);
    } catch (error) {
      if (abort.signal.aborted) return;
      result.hidden = true;
      tell(running.signal.aborted ? "Stopped." : told(error), !running.signal.aborted);
    } finally {
      running = null;
      put(run, "Run");
    }
  }

  function show(tree, took) {
    const answer = answerOf(tree);
    const { rows, truncated } = answer;
    put(result, tableOf(answer));
    result.hidden = false;
    tell(
      `${count(rows.length)} ${rows.length === 1 ? "row" : "rows"}${truncated ? " (truncated)" : ""}, in ${Math.round(took)} ms.${behind(answer.tables)}`,
    );
  }

  function command() {
    shell.copy(
      curl(url("v1/sql"), { method: "POST", headers: { "Content-Type": "application/json" }, body: bodyOf(field.value.trim()) }),
      "The command",
    );
  }

  function tell(text, wrong = false) {
    put(state, text);
    state.classList.toggle("wrong", wrong);
  }

  askJson("v1/tables", {}, { signal: abort.signal })
    .then(({ tables }) => {
      if (tables.length) field.placeholder = `select stream, count(*) from ${tables[0].name} group by stream`;
      else tell("There are no tables yet. Create one with “polynya table create orders --prefix orders”, then “polynya table sync orders”.");
      put(
        names,
        tables
          .slice(0, 30)
          .map((table) =>
            h(
              "button",
              {
                type: "button",
                class: "mark",
                title: "Query the newest rows",
                on: { click: () => (field.value = `select * from ${table.name} order by append_time desc limit 50`) },
              },
              visible(table.name),
            ),
          ),
      );
    })
    .catch((error) => abort.signal.aborted || running || tell(`The tables cannot be listed: ${error.message}.`, true));
  if (asked) submit();
  return {
    title: "SQL",
    element,
    keys: { "/": () => field.focus(), c: command, Escape: () => running?.abort() },
    close: () => {
      keepDraft(field.value);
      abort.abort();
    },
  };
}

function bodyOf(statement) {
  return JSON.stringify({ sql: statement, rows: ROWS });
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
