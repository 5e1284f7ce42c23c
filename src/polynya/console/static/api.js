// The client of the public HTTP API: paths, the user's token, errors, pages of records, and live events.

import { parseToken, quoted } from "./format.js";
import { Members } from "./json.js";
import { SseParser } from "./sse.js";
import { recordOf, WHOLE } from "./whole.js";

const KEY = "polynya.token";
const EVENT_CHARACTERS_MAX = 96 << 20; // one append may hold 32 MiB; base64 adds a third
const ANSWER_MS = 15_000; // a node that sends no response for so long is reported as one that is down
const LIVE_SILENCE_MS = 40_000; // the server sends a comment every 15 seconds
const SILENT = "the node does not respond";

let memory = ""; // fallback where the tab has no storage
export const denied = new EventTarget(); // event "token": the server requires a token, or rejected the current one
export const trouble = new EventTarget(); // event "silent": the node did not respond to a request

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

/**
 * Send a request and return the response, of which the head has arrived. Throws ApiError, or TypeError when the server is unreachable or sends
 * nothing for `wait` ms; 0 waits without a limit. Unless it is `quiet`, the latter is an event of `trouble`.
 */
export async function ask(target, { method = "GET", headers = {}, body, signal, allow = [], wait = ANSWER_MS, quiet = false } = {}) {
  const secret = accessToken();
  const sent = secret ? { ...headers, Authorization: `Bearer ${secret}` } : headers;
  const late = new AbortController();
  const timer = wait ? setTimeout(() => late.abort(new TypeError(SILENT)), wait) : 0;
  const signals = AbortSignal.any(signal ? [signal, late.signal] : [late.signal]);
  const options = { method, headers: sent, body, signal: signals, cache: "no-store", credentials: "omit", redirect: "error" };
  const answer = await fetch(target, options)
    .catch((error) => silent(error, quiet))
    .finally(() => clearTimeout(timer));
  if (answer.ok || allow.includes(answer.status)) return answer;
  throw await refusal(answer, secret);
}

/** Browsers word a network error differently: "Failed to fetch", "Load failed", "NetworkError …". */
function silent(error, quiet) {
  if (!(error instanceof TypeError)) throw error;
  if (!quiet) trouble.dispatchEvent(new Event("silent"));
  throw new TypeError(SILENT, { cause: error });
}

export async function askJson(path, query, options) {
  return (await ask(url(path, query), options)).json();
}

async function refusal(answer, secret) {
  let code = `HTTP ${answer.status}`;
  let message = answer.statusText || "the server gave no reason";
  try {
    const told = await answer.json();
    const error = told.error ?? { code: told.error_code, message: told.message }; // the latter of the schema registry
    code = String(error.code ?? code);
    message = String(error.message ?? message);
  } catch {
    // not an error of this server, perhaps a proxy's
  }
  const isOfToken = secret === accessToken(); // a late response to a request with an earlier token denies nothing
  if (answer.status === 401 && isOfToken) denied.dispatchEvent(new Event("token"));
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

/**
 * Return a page of whole records from `place` (offset, from_time or from_record_time): {records, next}. It has up to `records` records and about
 * `bytes` of text, and at least one record. The rest of a response, which holds whole batches, is not read.
 */
export async function recordsPage(name, place, { records, bytes, asJson, signal }) {
  const stop = new AbortController();
  const answer = await ask(streamUrl(name, { ...place, max_bytes: bytes }), {
    headers: { Accept: WHOLE },
    signal: AbortSignal.any([stop.signal, signal]),
  });
  const next = parseToken(answer.headers.get("stream-next-offset"));
  const members = new Members();
  const found = [];
  let size = 0;
  for await (const text of texts(answer)) {
    size += text.length;
    found.push(...members.feed(text));
    if (found.length > records || (size > bytes && found.length)) break;
  }
  stop.abort();
  const isCut = found.length > records || !members.ended;
  const shown = found.slice(0, records).map((source) => recordOf(source, asJson));
  return { records: shown, next: isCut ? shown.at(-1).offset + 1 : next.record };
}

/** Format a moment in ms for the server. */
export function rfc3339(time) {
  return new Date(time).toISOString();
}

/** Yield the events of live reads, with whole records as data: {event, data, id}. Ends with the response, or if it falls silent. */
export async function* events(target, { lastId, signal }) {
  const headers = { Accept: `text/event-stream, ${WHOLE}`, ...(lastId ? { "Last-Event-ID": lastId } : {}) };
  const silence = new AbortController();
  const answer = await ask(target, { headers, signal: AbortSignal.any([signal, silence.signal]) });
  const parser = new SseParser();
  let timer = 0;
  const listen = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silence.abort(new TypeError(SILENT)), LIVE_SILENCE_MS);
  };
  try {
    listen();
    for await (const text of texts(answer)) {
      listen();
      yield* parser.feed(text);
      if (parser.pending > EVENT_CHARACTERS_MAX)
        throw new ApiError(0, "EVENT_TOO_LARGE", "an event is larger than the limit of the console", new Headers());
    }
  } finally {
    clearTimeout(timer);
  }
}

/** Yield the text of a response as it arrives. */
async function* texts(answer) {
  const decoder = new TextDecoder();
  const reader = answer.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield decoder.decode(value, { stream: true });
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
