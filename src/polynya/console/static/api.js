// The client of the public HTTP API: paths, the user's token, errors, pages of records, and live events.

import { parseToken, quoted, token } from "./format.js";
import { SseParser } from "./sse.js";

const KEY = "polynya.token";
const RAW_STEP_BYTES = 64 << 10; // inside a record, raw pages end at multiples of this
const EVENT_CHARACTERS_MAX = 96 << 20; // one append may hold 32 MiB; base64 adds a third

let memory = ""; // fallback where the tab has no storage
export const denied = new EventTarget(); // event "token": the server requires a token, or rejected this one

export function accessToken() {
  try {
    return sessionStorage.getItem(KEY) ?? memory;
  } catch {
    return memory;
  }
}

export function keepToken(text) {
  memory = text;
  try {
    if (text) sessionStorage.setItem(KEY, text);
    else sessionStorage.removeItem(KEY);
  } catch {
    // the token stays in memory
  }
}

/** An error response of the server. */
export class ApiError extends Error {
  constructor(status, code, message, headers) {
    super(message);
    this.status = status;
    this.code = code;
    this.headers = headers;
  }
}

/** Return the root of the API: the folder above the console's. */
export function root() {
  return new URL("..", document.baseURI.split("#")[0]);
}

/** Return the URL of a stream. Throws for invalid names. */
export function streamUrl(name, query = {}) {
  const segments = name.split("/");
  if (segments.some((segment) => segment === "" || segment === "." || segment === ".."))
    throw new Error("a stream's name has no empty, '.' or '..' segments");
  return url(`v1/stream/${segments.map(encodeURIComponent).join("/")}`, query);
}

export function url(path, query = {}) {
  const made = new URL(path, root());
  for (const [name, value] of Object.entries(query))
    if (value !== null && value !== undefined && value !== "") made.searchParams.set(name, value);
  return made;
}

/** Send a request and return the response. Throws ApiError, or TypeError when the server is unreachable. */
export async function ask(target, { method = "GET", headers = {}, body, signal, allow = [] } = {}) {
  const secret = accessToken();
  const sent = secret ? { ...headers, Authorization: `Bearer ${secret}` } : headers;
  const options = { method, headers: sent, body, signal, cache: "no-store", credentials: "omit", redirect: "error" };
  const answer = await fetch(target, options).catch(silent);
  if (answer.ok || allow.includes(answer.status)) return answer;
  throw await refusal(answer);
}

/** Browsers word a network error differently: "Failed to fetch", "Load failed", "NetworkError …". */
function silent(error) {
  throw error instanceof TypeError ? new TypeError("the node does not respond", { cause: error }) : error;
}

export async function askJson(path, query, options) {
  return (await ask(url(path, query), options)).json();
}

async function refusal(answer) {
  let code = `HTTP ${answer.status}`;
  let message = answer.statusText || "the server gave no reason";
  try {
    const { error } = await answer.json();
    code = String(error.code ?? code);
    message = String(error.message ?? message);
  } catch {
    // not an error of this server, perhaps a proxy's
  }
  if (answer.status === 401) denied.dispatchEvent(new Event("token"));
  return new ApiError(answer.status, code, message, answer.headers);
}

/** Return the properties of a stream from HEAD. */
export async function facts(name, signal) {
  const answer = await ask(streamUrl(name), { method: "HEAD", signal });
  const tail = parseToken(answer.headers.get("stream-next-offset"));
  return {
    contentType: answer.headers.get("content-type") ?? "",
    incarnation: answer.headers.get("stream-incarnation") ?? "",
    closed: answer.headers.get("stream-closed") === "true",
    ttl: answer.headers.get("stream-ttl"),
    segment: answer.headers.get("stream-segment"), // of a leased stream
    writer: answer.headers.get("stream-segment-writer"),
    expires: answer.headers.get("stream-expires-at"),
    first: parseToken(answer.headers.get("stream-retained-offset")) ?? { record: 0, byte: 0 },
    tail: tail ?? { record: 0, byte: 0 },
  };
}

export function isJson(contentType) {
  return contentType.split(";")[0].trim().toLowerCase() === "application/json";
}

export function isText(contentType) {
  return contentType.toLowerCase().startsWith("text/");
}

/** Return a page of a JSON stream from `place` (offset or from_time): {records, next, upToDate}, with records {number, byte, bytes}. */
export async function jsonPage(name, place, bytesMax, signal) {
  const answer = await ask(streamUrl(name, { ...place, max_bytes: bytesMax }), { headers: { Accept: "application/x-ndjson" }, signal });
  const body = new Uint8Array(await answer.arrayBuffer());
  const next = parseToken(answer.headers.get("stream-next-offset"));
  const lines = [];
  for (let begin = 0; begin < body.length;) {
    let end = body.indexOf(10, begin);
    if (end < 0) end = body.length;
    lines.push(body.subarray(begin, end));
    begin = end + 1;
  }
  const spanned = lines.reduce((sum, line) => sum + line.length + 1, 0);
  let byte = next.byte - spanned;
  const records = lines.map((line, index) => {
    const record = { number: next.record - lines.length + index, byte, bytes: line };
    byte += line.length + 1;
    return record;
  });
  return { records, next, upToDate: answer.headers.get("stream-up-to-date") === "true" };
}

/** Return one record of a stream that is not JSON; only the beginning of a large one (`partial`). */
export async function rawRecord(name, number, signal) {
  const answer = await ask(streamUrl(name, { offset: token(number), max_bytes: 1 }), { signal });
  const body = new Uint8Array(await answer.arrayBuffer());
  const next = parseToken(answer.headers.get("stream-next-offset"));
  return { number, byte: next.byte - body.length, bytes: body, partial: next.record === number };
}

/** Return the number of the first record from a time on, of a stream that is not JSON. */
export async function rawNumber(name, time, signal) {
  const answer = await ask(streamUrl(name, { from_time: rfc3339(time), max_bytes: 1 }), { signal });
  const body = await answer.arrayBuffer();
  const next = parseToken(answer.headers.get("stream-next-offset"));
  const isWhole = body.byteLength > 0 && body.byteLength < RAW_STEP_BYTES; // a longer record is cut
  return next.record - (isWhole ? 1 : 0);
}

/** Format a moment in ms for the server. */
export function rfc3339(time) {
  return new Date(time).toISOString();
}

/** Yield the events of a stream from an offset on: {event, data, id}. Ends with the response. */
export async function* live(name, { offset, lastId, signal }) {
  const headers = { Accept: "text/event-stream", ...(lastId ? { "Last-Event-ID": lastId } : {}) };
  const answer = await ask(streamUrl(name, { live: "sse", offset }), { headers, signal });
  const parser = new SseParser();
  const decoder = new TextDecoder();
  const reader = answer.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.feed(decoder.decode(value, { stream: true }));
      if (parser.pending > EVENT_CHARACTERS_MAX)
        throw new ApiError(0, "EVENT_TOO_LARGE", "an event is larger than the limit of the console", new Headers());
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Return a command line that sends the same request. It never contains the token. */
export function curl(target, { method = "GET", headers = {}, body, flags = "-s" } = {}) {
  const parts = ["curl", flags];
  if (method !== "GET") parts.push(method === "HEAD" ? "-I" : `-X ${method}`);
  if (accessToken()) parts.push('-H "Authorization: Bearer $POLYNYA_TOKEN"');
  for (const [name, value] of Object.entries(headers)) parts.push("-H", quoted(`${name}: ${value}`));
  if (body !== undefined) parts.push("--data-binary", quoted(body));
  parts.push(quoted(String(target)));
  return parts.join(" ");
}
