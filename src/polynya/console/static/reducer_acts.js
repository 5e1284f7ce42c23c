// The acts on reducers: add, change, verify, remove.

import { askAct, send } from "./acts.js";
import { curl, url } from "./api.js";
import { cli } from "./commands.js";
import { count, parseSeconds, parseSize, parseToken, spellSeconds, visible } from "./format.js";

export const PATH = "v1/reducers";
const NAME = /^[a-z0-9][a-z0-9_-]{0,63}$/;
const BUILTINS = [
  ["latest", "latest: the last record of each key"],
  ["merge-patch", "merge-patch: a JSON document"],
  ["count", "count: records, bytes and times"],
];

function reducerUrl(name, ...rest) {
  return url([PATH, encodeURIComponent(name), ...rest].join("/"));
}

/** Add a reducer, or change a known one. A module is uploaded by the command line. */
export function addReducer(shell, known, done) {
  const builtins = known?.module ? [["", `the module ${known.module.slice(0, 12)}`], ...BUILTINS] : BUILTINS;
  const bodyOf = ({ pattern, builtin, key, records, bytes, every, retain }) => ({
    ...(known?.module && !builtin ? { module: known.module, memory: known.memory, fuel: known.fuel } : { builtin }),
    pattern,
    key: builtin === "latest" ? key : "",
    every_records: Number(records),
    every_bytes: parseSize(bytes),
    every_seconds: parseSeconds(every),
    retain,
  });
  askAct(shell, {
    title: known ? `Change the reducer ${visible(known.name)}` : "Add a reducer",
    word: known ? "Change" : "Add",
    danger: ({ retain }) => retain && !known?.retain,
    intro: known ? "Another builtin or key is a new revision, which begins at the first record." : "Workers compute its states: `polynya reduce run`, or the node's own.",
    fields: [
      { name: "name", label: "Name", value: known?.name ?? "", placeholder: "carts", shown: () => !known },
      { name: "pattern", label: "Pattern of streams", value: known?.pattern ?? "", placeholder: "carts/*", help: "'*' is one segment, '**' any number" },
      { name: "builtin", label: "State", kind: "select", value: known ? (known.builtin ?? "") : "latest", options: builtins },
      { name: "key", label: "JSON pointer of the key", value: known?.key ?? "", placeholder: "/item", help: "empty: the key of the record", shown: ({ builtin }) => builtin === "latest" },
      { name: "records", label: "A stream is due after records", value: String(known?.every_records ?? 10_000) },
      { name: "bytes", label: "or after bytes", value: known ? String(known.every_bytes) : "8MiB" },
      { name: "every", label: "or after", value: spellSeconds(known?.every_seconds ?? 300) },
      { name: "retain", label: "Each publish trims the stream to its snapshots", kind: "check", value: known?.retain === true },
    ],
    check: ({ name, pattern, key, records, bytes, every }) => {
      if (!NAME.test(name)) return "A reducer's name has small letters, digits, '_' and '-'.";
      if (!pattern) return "The pattern is missing.";
      if (key && !key.startsWith("/")) return `“${visible(key)}” is no JSON pointer; expected a form like /item.`;
      if (!/^[1-9]\d{0,14}$/.test(records)) return "The number of records is missing.";
      if (!parseSize(bytes)) return `“${visible(bytes)}” is no size; expected a form like 8MiB.`;
      return parseSeconds(every) ? "" : `“${visible(every)}” is no duration; expected a form like 5min.`;
    },
    note: ({ retain }) => (retain && !known?.retain ? "Records before the oldest snapshot that can be read are deleted from then on." : ""),
    command: (values) => commandOf(values, known, bodyOf(values)),
    run: async (values) => {
      const answer = await send(reducerUrl(values.name), { method: "PUT", json: bodyOf(values) });
      return `The reducer ${visible(values.name)} was ${answer.status === 201 ? "added" : "changed"}.`;
    },
    done,
  });
}

function commandOf(values, known, json) {
  if (json.module) return curl(reducerUrl(values.name), { method: "PUT", headers: { "Content-Type": "application/json" }, body: JSON.stringify(json) });
  const { name, pattern, builtin, key, records, bytes, every, retain } = values;
  return cli("reduce add", [name], {
    "--pattern": pattern,
    "--builtin": builtin,
    "--key": builtin === "latest" ? key : "",
    "--every-records": records === "10000" && !known ? "" : records,
    "--every-bytes": parseSize(bytes) === 8 << 20 && !known ? "" : (parseSize(bytes) ?? bytes),
    "--every": parseSeconds(every) === 300 && !known ? "" : every,
    "--retain": retain,
  });
}

export function verifyReducer(shell, { name, pattern }, done) {
  askAct(shell, {
    title: `Verify ${visible(name)} on a stream`,
    word: "Compute again",
    danger: true,
    intro: "The node computes the newest snapshot of the stream again. One that differs stops the reducer; the published one stays.",
    fields: [{ name: "stream", label: "Stream", value: pattern.includes("*") ? "" : pattern, placeholder: pattern }],
    check: ({ stream }) => (stream ? "" : "The stream is missing."),
    command: ({ stream }) => cli("reduce verify", [name, stream]),
    run: async ({ stream }) => {
      const found = await (await send(reducerUrl(name, "verify"), { json: { stream } })).json();
      const at = count(parseToken(found.offset).record);
      return found.equal ? `The snapshot at record ${at} is the same when it is computed again.` : `The snapshot at record ${at} differs: the reducer is stopped.`;
    },
    done,
  });
}

export function removeReducer(shell, name, done) {
  askAct(shell, {
    title: `Remove the reducer ${visible(name)}?`,
    word: "Remove the reducer",
    danger: true,
    intro: "Its states are not computed again. Its snapshots stay.",
    typed: name,
    command: () => cli("reduce rm", [name]),
    run: async () => {
      await send(reducerUrl(name), { method: "DELETE" });
      return `The reducer ${visible(name)} was removed.`;
    },
    done,
  });
}
