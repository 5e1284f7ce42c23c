// The acts on Kafka topics and consumer groups: create, produce, configs, delete; reset of offsets, delete.

import { askAct, send } from "./acts.js";
import { url } from "./api.js";
import { cli } from "./commands.js";
import { h } from "./dom.js";
import { headersOf, templatesOf } from "./drafts.js";
import { count, parsePlace, visible } from "./format.js";
import { grid } from "./page.js";

const NAME = /^[\w.-]{1,249}$/;
const GROUP_SHOWN_MAX = 200;
const LINES_MAX = 1000; // of one act; they are one batch

export function topicHash(name) {
  return `#/topic/${encodeURIComponent(name)}`;
}

function topicUrl(name, ...rest) {
  return url(["v1/topics", encodeURIComponent(name), ...rest].join("/"));
}

function groupUrl(id, ...rest) {
  return url(["v1/groups", encodeURIComponent(id), ...rest].join("/"));
}

export function createTopic(shell) {
  askAct(shell, {
    title: "Create a topic",
    word: "Create",
    fields: [
      { name: "name", label: "Name", placeholder: "orders" },
      { name: "partitions", label: "Partitions", placeholder: "6", help: "empty: the node's kafka.partitions" },
      { name: "configs", label: "Configs", kind: "area", rows: 4, placeholder: "retention.ms=86400000", help: "one NAME=VALUE a line" },
    ],
    check: ({ name, partitions, configs }) =>
      (NAME.test(name) ? "" : "A topic's name has letters, digits, '.', '_' and '-'.") || partitionsFault(partitions) || (headersOf(configs) === null ? "A line of the configs is not NAME=VALUE." : ""),
    command: ({ name, partitions, configs }) => cli("topic create", [name], { "--partitions": partitions, "--config": pairsOf(configs) }),
    run: async ({ name, partitions, configs }) => {
      const json = { configs: Object.fromEntries(headersOf(configs)), ...(partitions ? { partitions: Number(partitions) } : {}) };
      const answer = await send(topicUrl(name), { method: "PUT", json });
      shell.go(topicHash(name));
      return answer.status === 201 ? `Topic ${visible(name)} was created.` : `Topic ${visible(name)} exists already, with these settings.`;
    },
  });
}

/** Change configs and the number of partitions of a topic. A line that is removed returns its config to the default. */
export function changeTopic(shell, topic, done) {
  const before = Object.entries(topic.configs).map(([name, value]) => `${name}=${value}`);
  const steps = (configs) => {
    const after = Object.fromEntries(headersOf(configs) ?? []);
    const set = Object.entries(after).filter(([name, value]) => topic.configs[name] !== value);
    return { set, unset: Object.keys(topic.configs).filter((name) => !(name in after)) };
  };
  askAct(shell, {
    title: `Configs of ${visible(topic.name)}`,
    word: "Change",
    danger: ({ configs }) => steps(configs).set.some(([name]) => name.startsWith("retention.")),
    fields: [
      { name: "partitions", label: "Partitions", value: String(topic.partitions), help: "a topic never shrinks" },
      { name: "configs", label: "Configs", kind: "area", rows: 6, value: before.join("\n"), help: "one NAME=VALUE a line; without its line a config has its default" },
    ],
    check: ({ partitions, configs }) => {
      if (headersOf(configs) === null) return "A line of the configs is not NAME=VALUE.";
      const { set, unset } = steps(configs);
      const grown = Number(partitions) !== topic.partitions;
      return partitionsFault(partitions) || (set.length || unset.length || grown ? "" : "Nothing is changed yet.");
    },
    note: ({ configs }) => (steps(configs).set.some(([name]) => name.startsWith("retention.")) ? "Records beyond the retention are deleted, now and later." : ""),
    command: ({ partitions, configs }) => {
      const { set, unset } = steps(configs);
      return cli("topic alter", [topic.name], { "--partitions": Number(partitions) === topic.partitions ? "" : partitions, "--config": set.map((pair) => pair.join("=")), "--unset": unset });
    },
    run: async ({ partitions, configs }) => {
      const { set, unset } = steps(configs);
      const changed = Object.fromEntries([...set, ...unset.map((name) => [name, null])]);
      const json = { configs: changed, ...(Number(partitions) === topic.partitions ? {} : { partitions: Number(partitions) }) };
      const { notes } = await (await send(topicUrl(topic.name), { method: "PATCH", json })).json();
      return ["The topic was changed.", ...notes.map(visible)].join(" ");
    },
    done,
  });
}

/** Produce one record to a topic, or one for each line. `newest`: the text of its newest record, or null. */
export function produceTo(shell, topic, newest, done) {
  const asJson = topic.content_type === "application/json";
  const templates = templatesOf(asJson, newest).filter(([key]) => key !== "several");
  const texts = new Map(templates.map(([key, , text]) => [key, text]));
  let last = templates[0][0];
  askAct(shell, {
    title: `Produce to ${visible(topic.name)}`,
    word: "Produce",
    fields: [
      { name: "template", label: "Template", kind: "select", value: last, options: templates.map(([key, words]) => [key, words]) },
      { name: "text", label: "Value", kind: "area", rows: 6, value: texts.get(last) },
      { name: "lines", label: "Each line is a record", kind: "check", value: false },
      { name: "key", label: "Key", placeholder: "customer-9", help: "empty: none" },
      { name: "headers", label: "Headers", kind: "area", rows: 2, placeholder: "source=web", help: "one NAME=VALUE a line" },
      { name: "partition", label: "Partition", help: "empty: by the key, or 0 without one" },
    ],
    changed: (values, set) => {
      if (values.template === last) return;
      last = values.template;
      set("text", texts.get(last));
    },
    check: ({ text, lines, headers, partition }) =>
      (lines ? linesFault(text) : "") ||
      (headersOf(headers) === null ? "A line of the headers is not NAME=VALUE." : partition === "" || (/^\d{1,6}$/.test(partition) && Number(partition) < topic.partitions) ? "" : `The partitions are 0 to ${topic.partitions - 1}.`),
    note: ({ text, lines }) => (lines ? `${count(linesOf(text).length)} records, with the same key and headers. Empty lines are left out.` : ""),
    command: ({ text, lines, key, headers, partition }) => cli("produce", [topic.name, ...valuesOf(text, lines)], { "--key": key, "--header": pairsOf(headers), "--partition": partition }),
    run: async ({ text, lines, key, headers, partition }) => {
      const values = valuesOf(text, lines);
      const records = values.map((value) => ({ key: key === "" ? null : key, headers: headersOf(headers), value }));
      const json = { records, partition: partition === "" ? null : Number(partition) };
      const found = await (await send(topicUrl(topic.name, "records"), { json })).json();
      const many = values.length > 1 ? `${count(values.length)} records ` : "";
      return `Produced ${many}to partition ${found.partition} at offset ${count(found.offset)}.`;
    },
    done,
  });
}

export function deleteTopic(shell, name) {
  askAct(shell, {
    title: `Delete topic ${visible(name)}?`,
    word: "Delete the topic",
    danger: true,
    intro: "All its partitions are deleted with their records. Streams that it adopted are kept.",
    typed: name,
    command: () => cli("topic rm", [name]),
    run: async () => {
      await send(topicUrl(name), { method: "DELETE" });
      shell.go("#/kafka");
      return `Topic ${visible(name)} was deleted.`;
    },
  });
}

// --- consumer groups ----------------------------------------------------------------------------------------------------------------------

/** Reset the offsets of a group, of all its topics or of one; the dry run shows the new ones first. */
export function resetGroup(shell, id, topics, done) {
  const ways = [
    ["earliest", "the first retained records"],
    ["latest", "the end"],
    ["time", "a time"],
    ["offset", "an offset"],
    ["shift", "further or back by a number of records"],
  ];
  const asked = ({ way, place, topic }, dryRun) => ({ ...targetOf(way, place), ...(topic ? { topics: [topic] } : {}), dry_run: dryRun });
  askAct(shell, {
    title: `Reset the offsets of ${visible(id)}`,
    word: "Reset",
    danger: ({ dry }) => !dry,
    intro: "The group must have no members. Its consumers go on at the new offsets: they repeat or skip records.",
    fields: [
      { name: "way", label: "To", kind: "select", value: "earliest", options: ways },
      { name: "place", label: "Place", placeholder: "10m, 2026-11-01T00:00Z, 42, -100", shown: ({ way }) => ["time", "offset", "shift"].includes(way) },
      { name: "topic", label: "Topics", kind: "select", options: [["", "all with offsets"], ...topics.map((name) => [name, visible(name)])] },
      { name: "dry", label: "Dry run: only show the new offsets", kind: "check", value: true },
    ],
    check: ({ way, place }) => (targetOf(way, place) ? "" : "The place is missing or malformed."),
    command: ({ way, place, topic, dry }) => {
      const target = way === "time" ? targetOf(way, place)?.time : way === "offset" ? place : way === "shift" ? "" : way;
      return cli("group reset-offsets", [id], { "--to": target, "--shift-by": way === "shift" ? place : "", "--topic": topic, "--dry-run": dry });
    },
    run: async (values) => {
      const answer = await send(groupUrl(id, "offsets"), { json: asked(values, values.dry) });
      return resetRows((await answer.json()).offsets, values.dry);
    },
    done,
  });
}

/** Return the target of a reset, or null if the place does not fit the way. */
function targetOf(way, place) {
  if (way === "time") {
    const time = parsePlace(place)?.time;
    return time === undefined ? null : { time: new Date(time).toISOString() };
  }
  if (way === "offset") return /^\d{1,15}$/.test(place) ? { to: Number(place) } : null;
  if (way === "shift") return /^[+-]?\d{1,15}$/.test(place) ? { shift_by: Number(place) } : null;
  return { to: way };
}

function resetRows(rows, dry) {
  const cell = (value) => h("td", { class: "number" }, value === null || value === undefined ? "–" : count(value));
  const body = rows.slice(0, GROUP_SHOWN_MAX).map((row) => h("tr", {}, h("td", {}, visible(row.topic)), cell(row.partition), cell(row.before), cell(row.offset)));
  const words = `${dry ? "Nothing was changed. These would be" : "These are"} the new offsets of ${count(rows.length)} ${rows.length === 1 ? "partition" : "partitions"}:`;
  const heads = [["Topic"], ["Partition", "number"], ["Before", "number"], ["New", "number"]];
  return h("div", {}, h("p", {}, words), h("div", { class: "panel scroll", tabindex: "0", role: "region", "aria-label": "New offsets" }, grid("nodes", heads, h("tbody", {}, body))));
}

export function deleteGroup(shell, id) {
  askAct(shell, {
    title: `Delete group ${visible(id)}?`,
    word: "Delete the group",
    danger: true,
    intro: "Its committed offsets are deleted. The group must have no members.",
    typed: id,
    command: () => cli("group rm", [id]),
    run: async () => {
      await send(groupUrl(id), { method: "DELETE" });
      shell.go("#/kafka");
      return `Group ${visible(id)} was deleted.`;
    },
  });
}

/** Return the values of the records that a text of the dialog means. */
function valuesOf(text, lines) {
  return lines ? linesOf(text) : [text];
}

function linesOf(text) {
  return text.split(/\r?\n/).filter((line) => line.trim());
}

function linesFault(text) {
  const { length } = linesOf(text);
  if (length > LINES_MAX) return `The text has ${count(length)} lines; at most ${count(LINES_MAX)} are produced at once.`;
  return length ? "" : "The text has no lines.";
}

function pairsOf(text) {
  return (headersOf(text) ?? []).map((pair) => pair.join("="));
}

function partitionsFault(text) {
  return text === "" || (/^\d{1,6}$/.test(text) && Number(text) > 0) ? "" : `“${visible(text)}” is no number of partitions.`;
}
