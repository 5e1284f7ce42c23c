// The acts on snapshots: publish, delete; and where they are.

import { askAct, send } from "./acts.js";
import { curl, isJson, streamUrl } from "./api.js";
import { cli } from "./commands.js";
import { count, parseToken, quoted, token, visible } from "./format.js";
import { parse } from "./json.js";

const TYPES = ["application/json", "text/plain", "application/octet-stream"];

export function snapshotsHash(name) {
  return `#/snapshots/${name.split("/").map(encodeURIComponent).join("/")}`;
}

export function snapshotUrl(name, offset, query = {}) {
  return below(name, `snapshot/${offset}`, query);
}

export function snapshotsUrl(name) {
  return below(name, "snapshots", {});
}

export function bootstrapUrl(name) {
  return below(name, "bootstrap", { live: "sse" });
}

export function stateUrl(name) {
  return below(name, "state", {});
}

function below(name, rest, query) {
  const target = streamUrl(name, query);
  target.pathname += `/${rest}`;
  return target;
}

/** Publish a state of a stream with these facts. */
export function publishSnapshot(shell, name, { contentType, incarnation, tail }, done) {
  const isAtTail = (record) => record === "" || Number(record) === tail.record;
  const request = ({ record, type, text }) => ({
    target: isAtTail(record) ? snapshotUrl(name, token(tail.record, tail.byte)) : below(name, "snapshot", { record }),
    headers: { "Content-Type": type, "Stream-Incarnation": incarnation },
    body: text,
  });
  askAct(shell, {
    title: `Publish a snapshot of ${visible(name)}`,
    word: "Publish",
    intro: "The state after all records before an offset. Readers begin with the newest snapshot and go on from its offset.",
    fields: [
      { name: "record", label: "After the records before offset", value: String(tail.record), help: "empty: all records" },
      { name: "type", label: "Content type", value: isJson(contentType) ? TYPES[0] : contentType, list: TYPES },
      { name: "text", label: "State", kind: "area", value: isJson(contentType) ? "{}" : "", rows: 8 },
    ],
    check: ({ record, type, text }) => {
      if (record !== "" && !/^\d{1,15}$/.test(record)) return `“${visible(record)}” is no offset; expected a number such as 120.`;
      if (Number(record) > tail.record) return `The stream ends at offset ${tail.record}.`;
      if (!type) return "The content type is missing.";
      return isJson(type) ? jsonFault(text) : "";
    },
    note: ({ type, text }) => (isJson(type) && !jsonFault(text) ? "Valid JSON" : `${count(new TextEncoder().encode(text).length)} bytes`),
    command: (values) => {
      const { target, headers, body } = request(values);
      if (!isAtTail(values.record)) return curl(target, { method: "PUT", headers, body });
      const options = { "--type": values.type === TYPES[0] ? "" : values.type, "--incarnation": incarnation };
      return `printf %s ${quoted(body)} | ${cli("snapshot publish", [name, token(tail.record, tail.byte)], options)}`;
    },
    run: async (values) => {
      const { target, headers, body } = request(values);
      const answer = await send(target, { method: "PUT", headers, body });
      return answer.status === 201 ? "The snapshot was published." : "This snapshot has been published already.";
    },
    done,
  });
}

export function deleteSnapshot(shell, name, { offset, origin }, done) {
  const { record } = parseToken(offset);
  askAct(shell, {
    title: `Delete the snapshot at record ${count(record)}?`,
    word: "Delete the snapshot",
    danger: true,
    intro: `Readers of ${name} then begin with an older snapshot, or at the first record. It is refused if records before it are trimmed and no other snapshot covers them.`,
    typed: String(record),
    command: () => (origin ? curl(snapshotUrl(name, offset, { origin }), { method: "DELETE" }) : cli("snapshot rm", [name, offset])),
    run: async () => {
      await send(snapshotUrl(name, offset, { origin }), { method: "DELETE" });
      return `The snapshot at record ${count(record)} was deleted.`;
    },
    done,
  });
}

function jsonFault(text) {
  try {
    parse(text);
    return "";
  } catch (error) {
    return `No valid JSON: ${error.message}`;
  }
}
