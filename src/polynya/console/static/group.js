// One consumer group: its members, and the offset and lag of each partition.

import { actRow } from "./acts.js";
import { askJson, curl, url } from "./api.js";
import { h, put } from "./dom.js";
import { count, visible } from "./format.js";
import { curlButton, grid, page, titleOf } from "./page.js";
import { Rows } from "./rows.js";
import { deleteGroup, resetGroup } from "./topic_acts.js";

const POLL_MS = 5000;
const SHOWN_MAX = 1000;

export function open(place, shell) {
  const id = place.rest;
  const path = `v1/groups/${encodeURIComponent(id)}`;
  const abort = new AbortController();
  const numbers = h("dl", { class: "numbers" });
  const note = h("p", { class: "quiet", role: "status" });
  const body = h("tbody", {});
  const rows = new Rows(body);
  const members = h("tbody", {});
  let topics = []; // with committed offsets
  let timer = 0;
  let onKnown = null;
  const heads = [
    ["Topic", ""],
    ["Partition", "number"],
    ["Offset", "number"],
    ["End", "number"],
    ["Lag", "number"],
    ["Member", "type"],
  ];
  const acts = actRow(
    [
      ["Reset offsets …", () => resetGroup(shell, id, topics, poll), "danger"],
      ["Delete …", () => deleteGroup(shell, id), "danger"],
    ],
    new Promise((resolve) => (onKnown = resolve)),
  );
  const element = page(
    titleOf(id, "Consumer groups", "#/kafka"),
    curlButton(command),
    numbers,
    acts,
    h("div", { class: "panel" }, grid("tables", heads, body), note),
    h("h2", {}, "Members"),
    h("div", { class: "panel scroll" }, grid("nodes", [["Member"], ["Client"], ["Host"], ["Partitions"]], members)),
  );

  function command() {
    shell.copy(curl(url(path)), "The command");
  }

  async function poll() {
    clearTimeout(timer);
    const begun = performance.now();
    try {
      if (!document.hidden) draw(await askJson(path, {}, { signal: abort.signal }));
    } catch (error) {
      if (abort.signal.aborted) return;
      note.hidden = false;
      put(note, error.status === 404 ? `There is no consumer group “${visible(id)}”: a Kafka client creates it when it subscribes.` : `The group cannot be shown: ${error.message}. Retrying …`);
    }
    timer = setTimeout(poll, Math.max(POLL_MS, 8 * (performance.now() - begun)));
  }

  function draw(group) {
    onKnown();
    const facts = [
      ["State", visible(group.state)],
      ["Members", count(group.members.length)],
      ["Protocol", visible(group.kind)],
      ["Assignor", visible(group.protocol || "–")],
      ["Lag", count(group.lag)],
    ];
    put(numbers, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    const readers = new Map();
    for (const member of group.members)
      for (const [topic, partitions] of Object.entries(member.partitions))
        for (const partition of partitions) readers.set(`${topic} ${partition}`, member.instance ?? member.id);
    topics = [...new Set(group.offsets.map((entry) => entry.topic))].slice(0, SHOWN_MAX);
    put(members, group.members.length ? group.members.slice(0, SHOWN_MAX).map(memberRow) : h("tr", {}, h("td", { colspan: 4, class: "quiet" }, "The group has no members now.")));
    const shown = group.offsets.slice(0, SHOWN_MAX);
    rows.show(shown, keyOf, row, (element, entry) => refresh(element, entry, readers.get(keyOf(entry))));
    note.hidden = group.offsets.length > 0 && group.offsets.length <= SHOWN_MAX;
    put(
      note,
      group.offsets.length
        ? `The first ${count(SHOWN_MAX)} of ${count(group.offsets.length)} partitions.`
        : "The group has committed no offset in a topic that you may read.",
    );
  }

  poll();
  return {
    title: id,
    element,
    keys: { j: () => rows.move(1), k: () => rows.move(-1), c: command, Escape: () => shell.go("#/kafka") },
    close: () => {
      abort.abort();
      clearTimeout(timer);
    },
  };
}

function memberRow(member) {
  const read = Object.entries(member.partitions).map(([topic, partitions]) => `${topic}: ${partitions.join(", ")}`);
  return h(
    "tr",
    {},
    h("td", {}, visible(member.instance ?? member.id)),
    h("td", {}, visible(member.client_id || "–")),
    h("td", {}, visible(member.host || "–")),
    h("td", {}, visible(read.join("; ") || "–")),
  );
}

function keyOf(entry) {
  return `${entry.topic} ${entry.partition}`;
}

function row(entry) {
  const place = `#/stream/${encodeURIComponent(entry.stream)}`;
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { class: "name", href: place, "data-row": true }, visible(entry.topic))),
    h("td", { class: "number" }, count(entry.partition)),
    h("td", { class: "number", "data-label": " offset" }),
    h("td", { class: "number", "data-label": " end" }),
    h("td", { class: "number", "data-label": " behind" }),
    h("td", { class: "type" }),
  );
}

function refresh(element, entry, member) {
  const [, , offset, end, lag, reader] = element.children;
  put(offset, entry.offset === null ? "–" : count(entry.offset));
  put(end, count(entry.end));
  put(lag, entry.lag === null ? "–" : count(entry.lag));
  put(reader, visible(member ?? "–"));
}
