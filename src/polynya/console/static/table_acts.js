// The acts on tables: create, alter, retry, drop; and the runs in Spark on the node: sync, rebuild, replay.

import { askAct, send } from "./acts.js";
import { url } from "./api.js";
import { cli } from "./commands.js";
import { headersOf } from "./drafts.js";
import { visible } from "./format.js";

const NAME = /^[a-z_][a-z0-9_]{0,127}$/;

export function tableHash(name) {
  return `#/table/${encodeURIComponent(name)}`;
}

function tableUrl(name, ...rest) {
  return url(["v1/tables", encodeURIComponent(name), ...rest].join("/"));
}

const linesOf = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const typedOf = (text) => headersOf(text.replaceAll(":", "="));
const wordsOf = (text) => (typedOf(text) ?? []).map((pair) => pair.join(":"));
const COLUMNS = { name: "columns", label: "Declared columns", kind: "area", rows: 3, placeholder: "delay:long", help: "one FIELD:TYPE a line" };

export function createTable(shell) {
  askAct(shell, {
    title: "Create a table",
    word: "Create",
    fields: [
      { name: "name", label: "Name", placeholder: "flights" },
      { name: "prefix", label: "Prefix of its streams", placeholder: "flights/" },
      COLUMNS,
      { name: "partitions", label: "Partitions", kind: "area", rows: 2, placeholder: "day(timestamp)", help: "one expression a line" },
      { name: "hold", label: "Retention waits until the table has the records", kind: "check" },
    ],
    check: ({ name, prefix, columns }) =>
      !NAME.test(name) ? "A table's name has small letters, digits and '_'." : !prefix ? "The prefix is missing." : typedOf(columns) === null ? "A line of the columns is not FIELD:TYPE." : "",
    command: ({ name, prefix, columns, partitions, hold }) => cli("table create", [name], { "--prefix": prefix, "--column": wordsOf(columns), "--partition": linesOf(partitions), "--hold": hold }),
    run: async ({ name, prefix, columns, partitions, hold }) => {
      const json = { prefix, hold, columns: Object.fromEntries(typedOf(columns)), partitions: linesOf(partitions) };
      const answer = await send(tableUrl(name), { method: "PUT", json });
      shell.go(tableHash(name));
      return answer.status === 201 ? `Table ${visible(name)} was created. It has rows after its first sync.` : `Table ${visible(name)} exists already, with these settings.`;
    },
  });
}

export function alterTable(shell, table, done) {
  askAct(shell, {
    title: `Alter table ${visible(table.name)}`,
    word: "Alter",
    fields: [
      { name: "name", label: "Name", value: table.name },
      { ...COLUMNS, help: "more columns, one FIELD:TYPE a line; a declared type never changes" },
      { name: "hold", label: "Retention waits until the table has the records", kind: "check", value: table.hold },
    ],
    check: ({ name, columns, hold }) => {
      if (!NAME.test(name)) return "A table's name has small letters, digits and '_'.";
      if (typedOf(columns) === null) return "A line of the columns is not FIELD:TYPE.";
      return name === table.name && !typedOf(columns).length && hold === table.hold ? "Nothing is changed yet." : "";
    },
    command: ({ name, columns, hold }) => {
      const change = { "--column": wordsOf(columns), "--hold": hold && !table.hold, "--no-hold": !hold && table.hold };
      const alter = Object.values(change).some((value) => (Array.isArray(value) ? value.length : value)) ? [cli("table alter", [table.name], change)] : [];
      const rename = name === table.name ? [] : [cli("table rename", [table.name, name])];
      return [...alter, ...rename].join(" && ") || cli("table alter", [table.name]);
    },
    run: async ({ name, columns, hold }) => {
      const json = { columns: Object.fromEntries(typedOf(columns)), ...(hold === table.hold ? {} : { hold }), ...(name === table.name ? {} : { name }) };
      await send(tableUrl(table.name, "alter"), { json });
      if (name !== table.name) shell.go(tableHash(name));
      return "The table was altered.";
    },
    done,
  });
}

export function retryTable(shell, name, done) {
  askAct(shell, {
    title: `Retry the failed ranges of ${visible(name)}`,
    word: "Retry",
    intro: "The next job reads the ranges again that were set aside.",
    command: () => cli("table retry", [name]),
    run: async () => {
      const { ranges } = await (await send(tableUrl(name, "retry"), { method: "POST" })).json();
      return ranges ? `The next job reads ${ranges} ${ranges === 1 ? "range" : "ranges"} again.` : "No range was set aside.";
    },
    done,
  });
}

export function dropTable(shell, name) {
  askAct(shell, {
    title: `Drop table ${visible(name)}?`,
    word: "Drop the table",
    danger: true,
    intro: "Its streams are kept. Rows of streams that were deleted or trimmed are lost.",
    typed: name,
    command: () => cli("table drop", [name], { "--yes": true }),
    run: async () => {
      await send(tableUrl(name), { method: "DELETE" });
      shell.go("#/tables");
      return `Table ${visible(name)} was dropped.`;
    },
  });
}

/** Start a run on the node, where Spark runs the command that the dialog shows. `intro` says what it does; `run`: {verb, path, name, options, json}. */
function startRun(shell, { title, word, intro, fields = [], typed, run, done }) {
  askAct(shell, {
    title,
    word,
    danger: !!typed,
    intro: `${intro} It runs in Spark on this node.`,
    fields,
    typed,
    check: run.check,
    command: (values) => cli(run.verb, [run.name], run.options?.(values) ?? {}),
    run: async (values) => {
      const answer = await send(tableUrl(run.name, run.path), { json: run.json?.(values) ?? {} });
      return (await answer.json()).run.state === "queued" ? "The run waits for its turn." : "The run has begun.";
    },
    done,
  });
}

export function syncTable(shell, name, done) {
  const run = { verb: "table sync", path: "sync", name };
  startRun(shell, { title: `Sync ${visible(name)}`, word: "Sync", intro: "Adds the new records of its streams as rows.", run, done });
}

export function rebuildTable(shell, name, done) {
  const fields = [
    { ...COLUMNS, help: "one FIELD:TYPE a line; replaces declared types" },
    { name: "partitions", label: "Partitions", kind: "area", rows: 2, placeholder: "day(timestamp)", help: "one expression a line; replaces all" },
  ];
  const run = {
    verb: "table rebuild",
    path: "rebuild",
    name,
    check: ({ columns }) => (typedOf(columns) === null ? "A line of the columns is not FIELD:TYPE." : ""),
    options: ({ columns, partitions }) => ({ "--column": wordsOf(columns), "--partition": linesOf(partitions) }),
    json: ({ columns, partitions }) => ({ columns: Object.fromEntries(typedOf(columns)), ...(linesOf(partitions).length ? { partitions: linesOf(partitions) } : {}) }),
  };
  const intro = "Writes all rows again, to a new folder. The table is read as it was until the new one takes its place.";
  startRun(shell, { title: `Rebuild ${visible(name)}?`, word: "Rebuild the table", intro, fields, typed: name, run, done });
}

export function replayTable(shell, name, done) {
  const run = { verb: "table replay-dlq", path: "replay", name };
  const intro = "Puts values that fit the columns now into their rows. Declare a column for them first.";
  startRun(shell, { title: `Replay the dead letters of ${visible(name)}`, word: "Replay", intro, run, done });
}

export function cancelRun(shell, name, run, done) {
  askAct(shell, {
    title: `Cancel the ${run.verb} of ${visible(name)}`,
    word: "Cancel the run",
    danger: true,
    intro: "Jobs that it has committed stay. The next run continues after them.",
    command: () => cli("table runs", [name], { "--cancel": run.id }),
    run: async () => {
      await send(tableUrl(name, "cancel"), { json: { run: run.id } });
      return "The run is asked to stop.";
    },
    done,
  });
}
