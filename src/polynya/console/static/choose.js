// Choose streams: by a list of names, by a prefix, or by a pattern.

import { ApiError, askJson, facts, isJson } from "./api.js";
import { parseToken } from "./format.js";

export const STREAMS_MAX = 50; // each costs requests, and holds a page
const NAMES_MAX = 5000; // that are compared with a pattern
const PAGE = 1000;

/** Return the names of a typed list: separated by commas or spaces, which are %2C and %20 within a name. */
export function namesOf(text) {
  return [...new Set(text.split(/[\s,]+/).filter(Boolean).map(decoded))];
}

/** Return a function that tells whether a name fits a pattern: `*` is one segment, `**` any number of them, `%2A` a star. Null if a star is not a whole segment. */
export function patternOf(text) {
  const segments = text.split("/");
  if (segments.some((segment) => segment.includes("*") && segment !== "*" && segment !== "**")) return null;
  const wanted = segments.map((segment) => ({ one: segment === "*", many: segment === "**", text: segment.replace(/%2a/gi, "*") }));
  return (name) => fits(wanted, name.split("/"));
}

/** Return the text with which all names begin that a pattern can fit. */
export function prefixOf(text) {
  const segments = text.split("/");
  const star = segments.findIndex((segment) => segment.startsWith("*"));
  const fixed = star < 0 ? text : segments.slice(0, star).map((segment) => `${segment}/`).join("");
  return fixed.replace(/%2a/gi, "*");
}

function fits(wanted, segments) {
  const spread = (places) => {
    for (const place of places) if (wanted[place]?.many) places.add(place + 1);
    return places;
  };
  let reached = spread(new Set([0])); // the parts of the pattern that may come next
  for (const segment of segments) {
    const next = new Set();
    for (const place of reached) {
      const part = wanted[place];
      if (part?.many) next.add(place);
      else if (part && (part.one || part.text === segment)) next.add(place + 1);
    }
    reached = spread(next);
  }
  return reached.has(wanted.length);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Return what `/v1/live` selects for this choice: {prefix}, {match} or {names}. */
export function selectionOf(kind, text) {
  if (kind === "list") return { names: namesOf(text) };
  if (kind === "pattern") return { match: text };
  return text ? { prefix: text } : { match: "**" };
}

/** Return {streams, left, missing}: the first streams that are meant, whether there are more, and the listed names that do not exist. */
export async function chosen(kind, text, signal) {
  if (kind === "list") return listed(namesOf(text), signal);
  const matches = kind === "pattern" ? patternOf(text) : () => true;
  if (!matches) throw new Error("a star of a pattern is a whole segment: runs/*, or runs/** for any number of segments");
  const prefix = kind === "pattern" ? prefixOf(text) : text;
  const streams = [];
  let after = "";
  for (let seen = 0; seen < NAMES_MAX; seen += PAGE) {
    const limit = kind === "pattern" ? PAGE : STREAMS_MAX + 1;
    const page = await askJson("v1/streams", { prefix, after, limit }, { signal });
    streams.push(...page.streams.filter((entry) => matches(entry.name)).map(streamOf));
    if (streams.length > STREAMS_MAX || !page.next) return { streams: streams.slice(0, STREAMS_MAX), left: streams.length > STREAMS_MAX, missing: [] };
    after = page.next;
  }
  return { streams, left: true, missing: [] };
}

async function listed(names, signal) {
  const missing = [];
  const found = await Promise.all(
    names.slice(0, STREAMS_MAX).map(async (name) => {
      try {
        const { first, tail, contentType } = await facts(name, signal);
        return { name, first: first.record, end: tail.record, asJson: isJson(contentType) };
      } catch (error) {
        if (!(error instanceof ApiError) || ![400, 403, 404, 410].includes(error.status)) throw error;
        missing.push(name);
        return null;
      }
    }),
  );
  return { streams: found.filter(Boolean), left: names.length > STREAMS_MAX, missing };
}

function streamOf(entry) {
  const first = parseToken(entry.retained_offset)?.record ?? 0;
  return { name: entry.name, first, end: parseToken(entry.next_offset).record, asJson: isJson(entry.content_type) };
}
