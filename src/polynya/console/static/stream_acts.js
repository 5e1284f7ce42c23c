// The acts on streams: create, append, fork, trim, retention, attributes, close, delete.

import { askAct, send } from "./acts.js";
import { ask, askJson, curl, isJson, isText, streamUrl } from "./api.js";
import { cli } from "./commands.js";
import { bodyOf, checkJson, headersOf, templatesOf } from "./drafts.js";
import { count, parsePlace, parseSeconds, parseSize, quoted, spellSeconds, streamHash, token, visible } from "./format.js";
import { elements, parse, unquoted } from "./json.js";

const TYPES = ["application/json", "text/plain", "application/octet-stream"];
const MEMBER_NAME = /^"(?:[^"\\]|\\.)*"/;
const NO_SPAN = "is no duration; expected a form like 90s, 12h or 7d.";
const NO_SIZE = "is no size; expected a form like 64MiB or 10GB.";

export function createStream(shell, prefix = "") {
  askAct(shell, {
    title: "Create a stream",
    word: "Create",
    fields: [
      { name: "name", label: "Name", value: prefix, placeholder: "shop/orders" },
      { name: "type", label: "Content type", value: TYPES[0], list: TYPES },
      {
        name: "profile",
        label: "Profile",
        kind: "select",
        options: [
          ["", "the default of its bucket"],
          ["replicated", "replicated"],
          ["diskless", "diskless: in the object store alone"],
          ["leased", "leased: segments with one writer each"],
        ],
      },
      { name: "age", label: "Keep records for", placeholder: "30d", help: "empty: no limit" },
      { name: "bytes", label: "Keep at most", placeholder: "10GiB", help: "of the newest bytes; empty: no limit" },
      { name: "ttl", label: "Delete the stream when it is unused for", placeholder: "7d", help: "empty: never" },
    ],
    check: ({ name, type, age, bytes, ttl }) => nameFault(name) || (type ? "" : "The content type is missing.") || spanFault(age) || sizeFault(bytes) || spanFault(ttl),
    command: ({ name, type, profile, age, bytes, ttl }) =>
      cli("create", [name], { "--content-type": type === TYPES[0] ? "" : type, "--profile": profile, "--keep-age": age, "--keep-bytes": bytes, "--ttl": ttl }),
    run: async ({ name, type, profile, age, bytes, ttl }) => {
      const headers = { "Content-Type": type };
      if (profile) headers["Stream-Profile"] = profile;
      if (age) headers["Stream-Retention-Age"] = String(parseSeconds(age));
      if (bytes) headers["Stream-Retention-Bytes"] = String(parseSize(bytes));
      if (ttl) headers["Stream-TTL"] = String(parseSeconds(ttl));
      const answer = await send(streamUrl(name), { method: "PUT", headers });
      shell.go(streamHash(name));
      return answer.status === 201 ? `${visible(name)} was created.` : `${visible(name)} exists already, with these settings.`;
    },
  });
}

/** Append to a stream of this content type. `newest`: the text of its newest record, or null. */
export function appendTo(shell, name, contentType, newest, done) {
  const asJson = isJson(contentType);
  const templates = templatesOf(asJson, isText(contentType) || asJson ? newest : null);
  const texts = new Map(templates.map(([key, , text]) => [key, text]));
  let last = templates[0][0];
  const draft = (values) => ({ text: values.text, asJson, contentType, key: values.keyed && values.key ? values.key : null, headers: values.keyed ? (headersOf(values.headers) ?? []) : [] });
  askAct(shell, {
    title: "Append",
    word: "Append",
    fields: [
      { name: "template", label: "Template", kind: "select", value: last, options: templates.map(([key, words]) => [key, words]) },
      { name: "text", label: asJson ? "Value (each element of an array is a record)" : `Value (${visible(contentType)})`, kind: "area", value: texts.get(last), rows: 8 },
      { name: "keyed", label: "With a key or headers", kind: "check" },
      { name: "key", label: "Key", placeholder: "customer-9", shown: ({ keyed }) => keyed },
      { name: "headers", label: "Headers", kind: "area", rows: 2, placeholder: "source=web", help: "one NAME=VALUE a line", shown: ({ keyed }) => keyed },
    ],
    changed: (values, set) => {
      if (values.template === last) return;
      last = values.template;
      set("text", texts.get(last));
    },
    check: ({ text, headers }) => {
      if (headersOf(headers) === null) return "A line of the headers is not NAME=VALUE.";
      return asJson ? checkJson(text).fault : text ? "" : "The value is empty.";
    },
    note: ({ text }) => {
      if (!asJson) return `${count(new TextEncoder().encode(text).length)} bytes`;
      const found = checkJson(text);
      return found.fault ? "" : `Valid JSON: ${count(found.count)} ${found.count === 1 ? "record" : "records"}`;
    },
    command: ({ text, keyed, key, headers }) => {
      const options = { "--whole": asJson ? text.trim().startsWith("[") : text.includes("\n"), "--key": keyed ? key : "", "--header": keyed ? (headersOf(headers) ?? []).map(([header, value]) => `${header}=${value}`) : [] };
      if (options["--whole"]) return `printf %s ${quoted(text)} | ${cli("append", [name], options)}`;
      return cli("append", [name, asJson ? text.trim() : text], options);
    },
    run: async (values) => {
      const { contentType: type, body } = bodyOf(draft(values));
      await send(streamUrl(name), { headers: { "Content-Type": type }, body });
      return `Appended to ${visible(name)}.`;
    },
    done,
  });
}

export function forkStream(shell, name, at) {
  askAct(shell, {
    title: `Fork ${visible(name)}`,
    word: "Fork",
    intro: "The fork begins with the records of this stream up to an offset, and goes its own way from there. Nothing is copied.",
    fields: [
      { name: "fork", label: "Name of the fork", value: `${name}-fork` },
      { name: "offset", label: "Up to offset", value: at === null ? "" : String(at), help: "the first offset that is not in it; empty: the tail" },
    ],
    check: ({ fork, offset }) => nameFault(fork) || (offset === "" || /^\d{1,15}$/.test(offset) ? "" : `“${offset}” is no offset; expected a number such as 120.`),
    command: ({ fork, offset }) => cli("fork", [fork], { "--from": name, "--offset": offset && token(offset) }),
    run: async ({ fork, offset }) => {
      const headers = { "Stream-Forked-From": streamUrl(name).pathname, ...(offset ? { "Stream-Fork-Offset": token(offset) } : {}) };
      await send(streamUrl(fork), { method: "PUT", headers });
      shell.go(streamHash(fork));
      return `${visible(fork)} was created.`;
    },
  });
}

export function trimStream(shell, name, at, done) {
  const ways = [
    ["before", "all before an offset"],
    ["before_time", "all before a time"],
    ["keep_bytes", "all but the newest bytes"],
    ["keep_age_seconds", "all older than"],
  ];
  const hints = { before: "120", before_time: "2026-11-01T00:00Z", keep_bytes: "64MiB", keep_age_seconds: "7d" };
  askAct(shell, {
    title: `Trim ${visible(name)}`,
    word: "Delete the records",
    danger: true,
    intro: "Deletes the oldest records permanently. Forks keep what they inherited, and tables keep their rows.",
    fields: [
      { name: "way", label: "Delete", kind: "select", value: "before", options: ways },
      { name: "place", label: "Offset, time, size or age", value: at === null ? "" : String(at), placeholder: Object.values(hints).join(", ") },
    ],
    check: ({ way, place }) => (trimBody(way, place) ? "" : `“${visible(place)}” does not fit; expected a form like ${hints[way]}.`),
    command: ({ way, place }) => {
      const body = trimBody(way, place) ?? {};
      return cli("trim", [name], { "--before": body.before ?? body.before_time, "--keep-bytes": way === "keep_bytes" && place, "--keep-age": way === "keep_age_seconds" && place });
    },
    run: async ({ way, place }) => {
      const answer = await send(retentionUrl(name), { json: trimBody(way, place) });
      const { records } = await answer.json();
      return records ? `${count(records)} ${records === 1 ? "record was" : "records were"} deleted.` : "There are no records before that.";
    },
    done,
  });
}

/** Return the body of a trim, or null if the place does not fit the way. */
function trimBody(way, place) {
  if (way === "before") return /^\d{1,15}$/.test(place) ? { before: token(place) } : null;
  if (way === "keep_bytes") return parseSize(place) === null ? null : { keep_bytes: parseSize(place) };
  if (way === "keep_age_seconds") return parseSeconds(place) === null ? null : { keep_age_seconds: parseSeconds(place) };
  const time = parsePlace(place)?.time;
  return time === undefined ? null : { before_time: new Date(time).toISOString() };
}

export async function retainStream(shell, name, done) {
  let known = {};
  try {
    known = await askJson(retentionUrl(name));
  } catch (error) {
    shell.say(`The retention cannot be read: ${error.message}`);
    return;
  }
  const own = known.from === "stream" ? known : {};
  askAct(shell, {
    title: `Retention of ${visible(name)}`,
    word: "Set the retention",
    danger: ({ mode }) => mode === "limit",
    intro: known.from === "bucket" ? "The stream has the retention of its bucket." : known.from === "stream" ? "The stream has a retention of its own." : "The stream keeps all records.",
    fields: [
      {
        name: "mode",
        label: "Keep",
        kind: "select",
        value: own.age_seconds || own.bytes ? "limit" : known.from === "stream" ? "forever" : "clear",
        options: [
          ["clear", "what its bucket says"],
          ["limit", "records up to a limit"],
          ["forever", "everything, whatever its bucket says"],
        ],
      },
      { name: "age", label: "Delete records older than", value: own.age_seconds ? spellSeconds(own.age_seconds) : "", placeholder: "30d", shown: ({ mode }) => mode === "limit" },
      { name: "bytes", label: "Keep at least the newest", value: own.bytes ? String(own.bytes) : "", placeholder: "10GiB", shown: ({ mode }) => mode === "limit" },
      { name: "by_record", label: "Count the age by the times that clients gave", kind: "check", value: own.record_time === true, shown: ({ mode }) => mode === "limit" },
    ],
    check: ({ mode, age, bytes }) => (mode !== "limit" ? "" : age || bytes ? spanFault(age) || sizeFault(bytes) : "An age or a size is missing."),
    note: ({ mode }) => (mode === "limit" ? "Records beyond either limit are deleted, now and later." : ""),
    command: ({ mode, age, bytes, by_record: byRecord }) =>
      mode === "clear"
        ? cli("retention clear", [name])
        : cli("retention set", [name], mode === "forever" ? { "--forever": true } : { "--keep-age": age, "--keep-bytes": bytes, "--by-record-time": byRecord }),
    run: async ({ mode, age, bytes, by_record: byRecord }) => {
      const json = mode === "forever" ? {} : { age_seconds: age ? parseSeconds(age) : null, bytes: bytes ? parseSize(bytes) : null, record_time: byRecord };
      await send(retentionUrl(name), mode === "clear" ? { method: "DELETE" } : { method: "PUT", json });
      return "The retention was changed.";
    },
    done,
  });
}

/** Replace the attributes of a stream. */
export async function describeStream(shell, name, done) {
  let known = "{}";
  let tag = null;
  try {
    const answer = await ask(attributesUrl(name));
    known = await answer.text();
    tag = answer.headers.get("etag");
  } catch (error) {
    shell.say(`The attributes cannot be read: ${error.message}`);
    return;
  }
  const headers = { "Content-Type": "application/json", ...(tag ? { "If-Match": tag } : {}) };
  askAct(shell, {
    title: `Attributes of ${visible(name)}`,
    word: "Set the attributes",
    intro: "One JSON object, for what belongs to the stream and not into a record. It replaces the attributes there are, unless somebody has changed them meanwhile.",
    fields: [{ name: "attrs", label: "Attributes", kind: "area", value: known, rows: 8 }],
    check: ({ attrs }) => attributesFault(attrs),
    command: ({ attrs }) => {
      const entries = attributesFault(attrs) ? [] : elements(attrs).map(pairOf);
      if (entries.some((pair) => pair === null)) return curl(attributesUrl(name), { method: "PUT", headers, body: attrs });
      return entries.length ? cli("attrs set", [name, ...entries], { "--replace": true, "--if-match": tag }) : cli("attrs rm", [name], { "--if-match": tag });
    },
    run: async ({ attrs }) => {
      await send(attributesUrl(name), { method: "PUT", headers, body: attrs });
      return "The attributes were set.";
    },
    done,
  });
}

export function closeStream(shell, name, done) {
  askAct(shell, {
    title: `Close ${visible(name)}?`,
    word: "Close the stream",
    danger: true,
    intro: "A closed stream stays readable and accepts no further appends. Its followers reach the end. A stream cannot be opened again.",
    command: () => cli("close", [name]),
    run: async () => {
      await send(streamUrl(name), { headers: { "Stream-Closed": "true" } });
      return `${visible(name)} was closed.`;
    },
    done,
  });
}

export function deleteStream(shell, name) {
  askAct(shell, {
    title: `Delete ${visible(name)}?`,
    word: "Delete the stream",
    danger: true,
    intro: "All its records are deleted permanently. Tables keep their rows.",
    typed: name,
    command: () => cli("rm", [name]),
    run: async () => {
      await send(streamUrl(name), { method: "DELETE" });
      shell.go("#/streams");
      return `${visible(name)} was deleted.`;
    },
  });
}

function attributesFault(text) {
  try {
    return parse(text).kind === "object" ? "" : "The attributes are one JSON object.";
  } catch (error) {
    return `No valid JSON: ${error.message}`;
  }
}

/** Return a member of an object as the command line takes it, NAME=VALUE; null if its name has a "=". */
function pairOf(member) {
  const [key] = MEMBER_NAME.exec(member);
  const name = unquoted(key);
  return name.includes("=") ? null : `${name}=${member.slice(key.length).replace(/^\s*:\s*/, "")}`;
}

export function attributesUrl(name) {
  const target = streamUrl(name);
  target.pathname += "/attrs";
  return target;
}

function retentionUrl(name) {
  const target = streamUrl(name);
  target.pathname += "/retention";
  return target.href;
}

function nameFault(name) {
  if (!name) return "The name is missing.";
  try {
    streamUrl(name);
    return "";
  } catch (error) {
    return error.message;
  }
}

function spanFault(text) {
  return text === "" || parseSeconds(text) !== null ? "" : `“${visible(text)}” ${NO_SPAN}`;
}

function sizeFault(text) {
  return text === "" || parseSize(text) !== null ? "" : `“${visible(text)}” ${NO_SIZE}`;
}
