// The result of an SQL query as CSV and as JSON, with each value as the server sent it. Pure.

import { unquoted } from "./json.js";
import { compactJson } from "./result.js";

/** Return CSV (RFC 4180) with a header. A null is an empty field, an empty text is `""`. */
export function csvOf({ columns, rows }) {
  const lines = [columns.map((column) => quotedField(column.name)), ...rows.map((row) => row.items.map(fieldOf))];
  return lines.map((fields) => `${fields.join(",")}\r\n`).join("");
}

/** Return a JSON array with an object a row. Of columns with the same name, the second is `name_2`. */
export function jsonOf({ columns, rows }) {
  const names = uniqueNames(columns.map((column) => column.name)).map((name) => JSON.stringify(name));
  const lines = rows.map((row) => `{${row.items.map((node, index) => `${names[index]}: ${compactJson(node)}`).join(", ")}}`);
  return lines.length ? `[\n${lines.join(",\n")}\n]\n` : "[]\n";
}

function fieldOf(node) {
  if (node.kind === "string") return quotedField(unquoted(node.source));
  if (node.kind === "word" && node.source === "null") return "";
  return node.kind === "number" || node.kind === "word" ? node.source : quotedField(compactJson(node));
}

function quotedField(text) {
  return text === "" || /[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Return the names, of which repeated ones are numbered: "n", "n_2". */
export function uniqueNames(names) {
  const taken = new Set();
  return names.map((name) => {
    let free = name;
    for (let number = 2; taken.has(free); number += 1) free = `${name}_${number}`;
    taken.add(free);
    return free;
  });
}
