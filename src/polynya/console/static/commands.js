// The same reads and acts as commands: polynya and curl. A command never contains the token.

import { curl, streamUrl } from "./api.js";
import { quoted, token } from "./format.js";
import { liveUrl } from "./tail.js";
import { WHOLE } from "./whole.js";

const SAFE_WORD = /^[\w@%+=:,./][\w@%+=:,./-]*$/;
const SERVED = /\/v1\/stream\/s$/;
const PAGE_BYTES = 1; // one record, or the rest of the batch that holds it

/** Return the command that prints `count` records from an offset on. */
export function readCommand(name, offset, count) {
  return polynya("read", word(name), "--offset", token(offset), "--limit", count);
}

/** Return the command that prints new records from an offset on. */
export function tailCommand(name, offset) {
  return polynya("tail", word(name), "--offset", token(offset));
}

/** Return the request for the records of a page, or of one record, from an offset on. */
export function curlRead(name, offset, { bytes = PAGE_BYTES } = {}) {
  return curl(streamUrl(name, { offset: token(offset), max_bytes: bytes }), { headers: { Accept: WHOLE } });
}

/** Return the command that prints the new records of many streams: one of curl where `polynya` has no such selection. */
export function tailManyCommand(selection) {
  const { prefix, match, names } = selection;
  if (prefix && !prefix.endsWith("/")) return curlTailMany(selection);
  return polynya("tail", ...(names ?? [match ?? prefix]).map(word));
}

/** Return the request for the new records of many streams. */
export function curlTailMany(selection) {
  return curl(liveUrl(selection), { headers: { Accept: WHOLE }, flags: "-sN" });
}

/** Return the request for new records from an offset on. */
export function curlTail(name, offset) {
  return curl(streamUrl(name, { live: "sse", offset: token(offset) }), { headers: { Accept: WHOLE }, flags: "-sN" });
}

/**
 * Return a command line: the verb as it is, the names and values quoted, and the options. An option without a value is left out, true is a flag,
 * a list is repeated.
 */
export function cli(verb, names = [], chosen = {}) {
  const given = Object.entries(chosen).flatMap(([name, value]) => (Array.isArray(value) ? value : [value]).flatMap((each) => optionOf(name, each)));
  const options = [...given, "--server", word(server())];
  const places = names.map(word);
  const ordered = names.some((name) => name.startsWith("-")) ? [...options, "--", ...places] : [...places, ...options];
  return ["polynya", verb, ...ordered].join(" ");
}

function optionOf(name, value) {
  if (value === null || value === undefined || value === "" || value === false) return [];
  return value === true ? [name] : [name, word(String(value))];
}

function polynya(...words) {
  return ["polynya", ...words, "--records", "--server", word(server())].join(" ");
}

function server() {
  return streamUrl("s").href.replace(SERVED, "");
}

function word(name) {
  return SAFE_WORD.test(name) ? name : quoted(name);
}
