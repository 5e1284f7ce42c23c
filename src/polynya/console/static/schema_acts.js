// The acts on the schema registry: register, set a level, delete.

import { askAct, send } from "./acts.js";
import { url } from "./api.js";
import { cli } from "./commands.js";
import { quoted, visible } from "./format.js";
import { parse } from "./json.js";

export const ROOT = "registry";
const TYPES = ["AVRO", "JSON", "PROTOBUF"];
const LEVELS = ["NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"];
const FIRST = '{"type": "record", "name": "Order", "fields": [{"name": "item", "type": "long"}]}';

/** Return the address of a subject's page. */
export function subjectHash(subject) {
  return `#/schema/${encodeURIComponent(subject)}`;
}

function subjectUrl(subject, rest = "", query = {}) {
  return url(`${ROOT}/subjects/${encodeURIComponent(subject)}${rest}`, query);
}

/** Register the first version of a subject, or the next one, which begins as `newest`: {subject, schema, schemaType, references}. */
export function registerSchema(shell, newest, done) {
  const references = newest?.references ?? [];
  askAct(shell, {
    title: newest ? `Register the next version of ${visible(newest.subject)}` : "Register a schema",
    word: "Register",
    intro: "The text must be compatible with the versions that the level of its subject names. An equal text has its version already.",
    fields: [
      { name: "subject", label: "Subject", value: newest?.subject ?? "", placeholder: "orders-value", shown: () => !newest },
      { name: "type", label: "Type", kind: "select", value: newest?.schemaType ?? "AVRO", options: TYPES.map((type) => [type, type]) },
      { name: "text", label: "Schema", kind: "area", value: newest?.schema ?? FIRST, rows: 10 },
    ],
    check: ({ subject, type, text }) => (subject ? textFault(type, text) : "The subject is missing."),
    command: ({ subject, type, text }) => {
      const options = { "--type": type.toLowerCase(), "--reference": references.map((each) => `${each.name}=${each.subject}:${each.version}`) };
      return `printf %s ${quoted(text)} | ${cli("schema register", [subject, "-"], options)}`;
    },
    run: async ({ subject, type, text }) => {
      const json = { schema: text, schemaType: type, ...(references.length ? { references } : {}) };
      const { id, version } = await (await send(subjectUrl(subject, "/versions"), { json })).json();
      if (!newest) shell.go(subjectHash(subject));
      return version ? `Version ${version} of ${visible(subject)} has the id ${id}.` : `${visible(subject)} has the id ${id}.`;
    },
    done,
  });
}

function textFault(type, text) {
  if (!text.trim()) return "The schema is empty.";
  if (type === "PROTOBUF") return "";
  try {
    parse(text);
    return "";
  } catch (error) {
    return `No valid JSON: ${error.message}`;
  }
}

/** Set the level of a subject, or of all that have none (`subject` is null). */
export function setLevel(shell, subject, level, done) {
  askAct(shell, {
    title: subject === null ? "Compatibility of all subjects" : `Compatibility of ${visible(subject)}`,
    word: "Set the level",
    intro: subject === null ? "Counts for subjects without a level of their own." : "A level of its own counts before that of all subjects.",
    fields: [{ name: "level", label: "Level", kind: "select", value: level, options: LEVELS.map((each) => [each, each]) }],
    command: ({ level: wanted }) => cli("schema config", subject === null ? [] : [subject], { "--level": wanted.toLowerCase() }),
    run: async ({ level: wanted }) => {
      const path = subject === null ? `${ROOT}/config` : `${ROOT}/config/${encodeURIComponent(subject)}`;
      await send(url(path), { method: "PUT", json: { compatibility: wanted } });
      return `The level is ${wanted}.`;
    },
    done,
  });
}

export function deleteSubject(shell, subject) {
  askAct(shell, {
    title: `Delete subject ${visible(subject)}?`,
    word: "Delete the subject",
    danger: true,
    intro: "Records with its ids can still be read. A second deletion, with --permanent on the command line, ends that too.",
    typed: subject,
    command: () => cli("schema delete", [subject]),
    run: async () => {
      await send(subjectUrl(subject), { method: "DELETE" });
      shell.go("#/schemas");
      return `Subject ${visible(subject)} was deleted.`;
    },
  });
}
