// The answer of an SQL query as a table. Values keep their text, so numbers keep their digits.

import { h } from "./dom.js";
import { visible } from "./format.js";
import { plain, unquoted } from "./json.js";

const NUMBERS = /^(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DOUBLE|FLOAT|DECIMAL.*)$/;

/** Return {columns, rows, truncated, tables} of the parsed body of `POST /v1/sql`; the rows are nodes. */
export function answerOf(tree) {
  const answer = Object.fromEntries(tree.entries.map(([key, value]) => [unquoted(key), value]));
  return { columns: plain(answer.columns), rows: answer.rows.items, truncated: plain(answer.truncated), tables: plain(answer.tables) };
}

/** Return whether a column of this type of DuckDB holds numbers. */
export function isNumeric(type) {
  return NUMBERS.test(type);
}

/** Return the table of an answer. */
export function tableOf({ columns, rows }) {
  const heads = columns.map((column) =>
    h(
      "th",
      { scope: "col", class: isNumeric(column.type) ? "number" : null, title: visible(column.type) },
      visible(column.name),
      h("span", { class: "kind" }, visible(column.type.toLowerCase())),
    ),
  );
  const body = rows.map((row) => h("tr", {}, row.items.map((node, index) => cell(node, isNumeric(columns[index].type)))));
  return h("table", { class: "list answer" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, body));
}

function cell(node, isNumber) {
  if (node.kind === "string") return h("td", { class: isNumber ? "number" : null }, visible(unquoted(node.source))); // decimals come as text
  if (node.kind === "number") return h("td", { class: "number" }, node.source);
  if (node.kind === "word") return h("td", { class: "j-word" }, node.source);
  return h("td", {}, h("code", {}, visible(compactJson(node))));
}

/** Return the text of a node on one line. */
export function compactJson(node) {
  if (node.kind === "array") return `[${node.items.map(compactJson).join(", ")}]`;
  if (node.kind === "object") return `{${node.entries.map(([key, value]) => `${key}: ${compactJson(value)}`).join(", ")}}`;
  return node.source;
}
