// Drafts of records for the append dialog: templates, the check before they are sent, and the body of the request. Pure.

import { elements, parse } from "./json.js";

const HEADER = /^\s*([!#$%&'*+.^_`|~\w-]+)\s*=(.*)$/;
export const WHOLE_TYPE = "application/vnd.polynya.records+json";

/** Return the templates of a content type: [key, words, text]. `newest` is the text of the newest record, or null. */
export function templatesOf(asJson, newest, now = new Date()) {
  const like = newest === null ? [] : [["newest", "Like the newest record", newest]];
  if (!asJson) return [...like, ["line", "A line", "hello\n"], ["log", "A log line", `${now.toISOString()} info started\n`]];
  const event = { specversion: "1.0", id: "1", source: "/console", type: "example.created", time: now.toISOString(), data: { item: 7 } };
  return [
    ...like,
    ["object", "An object", '{"item": 7, "price": 1.50}'],
    ["several", "Several records", '[\n  {"item": 7},\n  {"item": 8}\n]'],
    ["event", "A CloudEvents event", JSON.stringify(event, null, 2)],
  ];
}

/** Return {count, fault} of a text for a JSON stream: each element of an array is a record. */
export function checkJson(text) {
  if (!text.trim()) return { count: 0, fault: "The value is empty." };
  try {
    const node = parse(text);
    if (node.kind !== "array") return { count: 1, fault: "" };
    return node.items.length ? { count: node.items.length, fault: "" } : { count: 0, fault: "An empty array appends nothing; [[]] appends one as a record." };
  } catch (error) {
    return { count: 0, fault: `No valid JSON: ${placeOf(text, error)}` };
  }
}

/** Return the words of a syntax error, with the line and the column where the browser's reader stopped. */
function placeOf(text, fault) {
  try {
    JSON.parse(text);
    return fault.message;
  } catch (error) {
    const at = /end of/.test(error.message) ? [0, text.length] : /position (\d+)/.exec(error.message);
    if (!at) return error.message;
    const before = text.slice(0, Number(at[1])).split("\n");
    return `line ${before.length}, column ${before.at(-1).length + 1}: ${error.message.replace(/\s*\(line.*\)$/, "")}`;
  }
}

/** Parse lines NAME=VALUE into pairs; null if a line is no header. */
export function headersOf(text) {
  const pairs = [];
  for (const line of text.split("\n").filter((each) => each.trim())) {
    const found = HEADER.exec(line);
    if (!found) return null;
    pairs.push([found[1], found[2].trim()]);
  }
  return pairs;
}

/**
 * Return {contentType, body} of the request that appends the value: the text itself, or whole records if they have a key, headers, or no value (`absent`).
 * JSON keeps its text.
 */
export function bodyOf({ text, asJson, contentType, key = null, headers = [], absent = false }) {
  if (key === null && !headers.length && !absent) return { contentType, body: text };
  const values = absent ? ["null"] : asJson ? valuesOf(text) : [JSON.stringify(text)];
  const head = `"key":${JSON.stringify(key)},"headers":${JSON.stringify(headers)}`;
  return { contentType: WHOLE_TYPE, body: `[${values.map((value) => `{${head},"value":${value}}`).join(",")}]` };
}

function valuesOf(text) {
  return text.trim().startsWith("[") ? elements(text.trim()) : [text];
}
