// Whole records, as the server shows them in JSON: offset, key, headers, times and value. Pure.

import { elements, unquoted } from "./json.js";

export const WHOLE = "application/vnd.polynya.records+json";
const MEMBER = /^"(\w+)"\s*:\s*/;
const BASE64 = /^\{\s*"\$base64"\s*:\s*("(?:[^"\\]|\\.)*")\s*\}$/;

/**
 * Return a record from its source: {offset, timestamp, appendTime, key, headers, bytes, absent, asJson, source}. Times are in ms; a time, the key and the
 * value of a header may be null. `bytes` is the value: its source in a JSON stream (`asJson`). `absent`: a record of another stream has no value.
 */
export function recordOf(source, asJson) {
  const fields = fieldsOf(source);
  const bytes = asJson ? encode(fields.value) : dataOf(fields.value);
  return {
    offset: Number(fields.offset),
    timestamp: momentOf(fields.timestamp),
    appendTime: momentOf(fields.append_time),
    key: dataOf(fields.key),
    headers: elements(fields.headers).map((pair) => {
      const [name, value] = elements(pair);
      return [unquoted(name), dataOf(value)];
    }),
    bytes: bytes ?? new Uint8Array(),
    absent: bytes === null,
    asJson,
    source,
  };
}

/** Return the source of each member of an object, whose names are plain words. */
export function fieldsOf(source) {
  const fields = {};
  for (const member of elements(source)) {
    const head = MEMBER.exec(member);
    fields[head[1]] = member.slice(head[0].length);
  }
  return fields;
}

/** Return the bytes of a string or of base64 in an object; null of null. */
export function dataOf(source) {
  if (source === "null") return null;
  const coded = BASE64.exec(source);
  if (!coded) return encode(unquoted(source));
  const text = atob(unquoted(coded[1]));
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) bytes[at] = text.charCodeAt(at);
  return bytes;
}

function encode(text) {
  return new TextEncoder().encode(text);
}

/** Return a time in ms; null if the record has none, which Kafka says with -1. */
function momentOf(source) {
  return source === undefined || source === "null" || source.startsWith("-") ? null : Number(source);
}
