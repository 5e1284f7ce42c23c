// One Kafka topic: its newest records, merged over its partitions; the partitions; its configs.

import { actRow } from "./acts.js";
import { askJson, curl, isJson, recordsPage, rfc3339, url } from "./api.js";
import { cli, curlRead } from "./commands.js";
import { h, put } from "./dom.js";
import { matcher } from "./filter.js";
import { bytes, count, parsePlace, token, visible } from "./format.js";
import { beginOf, byTime, merged } from "./merge.js";
import { curlButton, grid, titleOf } from "./page.js";
import { Pane, PanedView, rowOf, valueText } from "./record.js";
import { Rows } from "./rows.js";
import { changeTopic, deleteTopic, produceTo, topicHash } from "./topic_acts.js";

const POLL_MS = 3000;
const ROWS_MAX = 200; // of all partitions
const BYTES_MAX = 256 << 10; // of one page of one partition
const READ_MAX = 32; // partitions whose records are shown: each costs a request
const NEWEST_BYTES_MAX = 64 << 10;

export function open(place, shell) {
  const view = new TopicView(place.rest, place.query.get("at") ?? "", shell);
  view.poll();
  return view;
}

/** Return a typed place, or "" if it is the end or none. */
function placeOf(typed) {
  const place = parsePlace(typed);
  return place && !place.end ? typed : "";
}

class TopicView extends PanedView {
  constructor(name, at, shell) {
    super();
    this.name = name;
    this.at = placeOf(at); // where the page begins, as it was typed; "": it shows the newest records
    this.title = visible(name);
    this.shell = shell;
    this.path = `v1/topics/${encodeURIComponent(name)}`;
    this.abort = new AbortController();
    this.topic = null;
    this.records = []; // merged, the newest last; each has its `partition`
    this.next = new Map(); // by partition, the offset after the records that were read
    this.matches = matcher("");
    this.build();
    this.keys = {
      "/": () => this.place.select(),
      f: () => this.filter.select(),
      c: () => this.copyCurl(),
      x: () => this.copyCommand(),
      ...this.paneKeys(),
      Escape: () => (this.pane.element.hidden ? shell.go("#/kafka") : this.closePane()),
    };
  }

  build() {
    const button = (name, act) => h("button", { type: "button", class: "button", on: { click: act } }, name);
    this.numbers = h("dl", { class: "numbers" });
    this.note = h("p", { class: "state", role: "status" });
    this.filter = h("input", { id: "filter", type: "text", placeholder: "text, or key:customer-9", autocomplete: "off", spellcheck: "false" });
    this.filter.addEventListener("input", () => {
      this.matches = matcher(this.filter.value);
      this.draw();
    });
    this.place = h("input", { id: "place", type: "text", value: this.at, placeholder: "10m, 2026-11-01T00:00Z, 120, -20", autocomplete: "off", spellcheck: "false" });
    this.list = h("ol", { class: "records timed" });
    this.rows = new Rows(this.list);
    this.pane = new Pane(this.copies(), () => this.closePane());
    this.partitions = h("tbody", {});
    this.configs = h("tbody", {});
    const partitionHeads = [["Partition", "number"], ["Stream"], ["First offset", "number"], ["Next offset", "number"], ["Bytes", "number"]];
    this.element = h(
      "section",
      { class: "page topic", "aria-labelledby": "title" },
      h("div", { class: "head" }, titleOf(this.name, "Topics", "#/kafka"), h("div", { class: "row" }, button("Copy command", () => this.copyCommand()), curlButton(() => this.copyCurl()))),
      this.numbers,
      actRow(
        [
          ["Produce …", () => produceTo(this.shell, this.topic, this.newest, () => this.again()), "primary"],
          ["Configs …", () => changeTopic(this.shell, this.topic, () => this.again())],
          ["Delete …", () => deleteTopic(this.shell, this.name), "danger"],
        ],
        new Promise((resolve) => (this.onKnown = resolve)),
      ),
      h(
        "div",
        { class: "row controls" },
        h(
          "form",
          { class: "goto", on: { submit: (event) => this.jump(event) } },
          h("label", {}, h("span", { class: "label" }, "Go to a time or an offset"), this.place),
          h("button", { type: "submit", class: "button" }, "Go"),
          button("Newest", () => this.goTo("")),
        ),
        h("label", { class: "narrow" }, h("span", { class: "label" }, "Show only records with"), this.filter),
      ),
      this.note,
      h("div", { class: "split" }, h("div", { class: "panel scroll merged", hidden: true, tabindex: "0", role: "region", "aria-label": "The newest records" }, this.list), this.pane.element),
      h("h2", {}, "Partitions"),
      h("div", { class: "panel scroll" }, grid("nodes", partitionHeads, this.partitions)),
      h("h2", {}, "Configs"),
      h("div", { class: "panel scroll" }, grid("nodes", [["Config"], ["Value"], ["Default"]], this.configs)),
    );
  }

  /** Return what the pane copies of a record. */
  copies() {
    const place = ({ partition, offset }) => cli("consume", [this.name], { "--partition": partition, "--from": offset, "--limit": 1, "--json": true });
    const stream = ({ partition }) => this.topic.details.find((each) => each.partition === partition).stream;
    return [
      ["Copy value", "The value alone", (record) => this.shell.copy(valueText(record), "The value")],
      ["Copy record", "The whole record as JSON", (record) => this.shell.copy(record.source, "The record")],
      ["Copy command", "polynya consume … (x)", (record) => this.shell.copy(place(record), "The command")],
      ["Copy as curl", "The same with curl", (record) => this.shell.copy(curlRead(stream(record), record.offset), "The command")],
    ];
  }

  // --- reading --------------------------------------------------------------------------------------------------------------------------

  async poll() {
    const begun = performance.now();
    try {
      if (!document.hidden) await this.read();
    } catch (error) {
      if (this.abort.signal.aborted) return;
      this.tell(error.status === 404 ? error.message : `The topic cannot be read: ${error.message}. Retrying …`, true);
      if (error.status === 404) return;
    }
    if (!this.abort.signal.aborted) this.timer = setTimeout(() => this.poll(), Math.max(POLL_MS, 8 * (performance.now() - begun)));
  }

  /** Read at once after an act. */
  again() {
    clearTimeout(this.timer);
    this.poll();
  }

  async read() {
    const topic = await askJson(this.path, {}, { signal: this.abort.signal });
    if (this.topic && this.topic.id !== topic.id) {
      this.records = []; // it was deleted and created again
      this.next.clear();
    }
    this.topic = topic;
    this.describe();
    this.onKnown();
    if (this.at) {
      if (!this.arrived) await this.arrive();
      return;
    }
    const changed = topic.details.slice(0, READ_MAX).filter((each) => each.next_offset !== this.next.get(each.partition));
    const found = await Promise.all(changed.map((each) => this.readPartition(each)));
    if (this.at) return; // the page went to a place meanwhile
    this.records = merged([this.records, ...found], ROWS_MAX);
    this.draw();
  }

  /** Show the records of all partitions from the place on. */
  async arrive() {
    const { at } = this;
    const place = parsePlace(at);
    const found = await Promise.all(this.topic.details.slice(0, READ_MAX).map((each) => this.readFrom(each, place)));
    if (this.at !== at) return;
    this.arrived = true;
    this.records = byTime(found);
    this.draw();
    this.list.parentElement.scrollTop = 0;
  }

  /** Return the first records of a partition from a place on. */
  async readFrom({ partition, stream, first_offset: first, next_offset: end }, place) {
    const begin = beginOf(place, first, end);
    if (!begin) return [];
    const query = begin.record === undefined ? { from_time: rfc3339(begin.time) } : { offset: token(begin.record) };
    const { records } = await this.recordsOf(stream, query);
    return records.map((record) => ({ ...record, partition }));
  }

  recordsOf(stream, query) {
    return recordsPage(stream, query, { records: this.share, bytes: BYTES_MAX, asJson: isJson(this.topic.content_type ?? ""), signal: this.abort.signal });
  }

  /** Return how many records of each partition are shown. */
  get share() {
    return Math.max(10, Math.ceil(ROWS_MAX / Math.min(READ_MAX, this.topic.partitions)));
  }

  jump(event) {
    event.preventDefault();
    const typed = this.place.value.trim();
    if (parsePlace(typed)) this.goTo(typed);
    else this.tell("Type a time (10m for ten minutes ago, or a date), an offset of each partition (the first is 0), or -20 for the last ones.", true);
  }

  /** Show the records from a place on, as it was typed; the newest ones for "". */
  goTo(typed) {
    this.at = placeOf(typed);
    this.place.value = this.at;
    this.arrived = false;
    this.records = [];
    this.next.clear();
    this.shell.rename(this.at ? `${topicHash(this.name)}?at=${encodeURIComponent(this.at)}` : topicHash(this.name));
    this.again();
  }

  /** Return the records of a partition that are new, or its newest ones. */
  async readPartition({ partition, stream, first_offset: first, next_offset: end }) {
    const begin = Math.max(first, end - this.share, this.next.get(partition) ?? 0);
    this.next.set(partition, end);
    if (begin >= end) return [];
    const { records } = await this.recordsOf(stream, { offset: token(begin) });
    return records.map((record) => ({ ...record, partition }));
  }

  // --- drawing --------------------------------------------------------------------------------------------------------------------------

  describe() {
    const { topic } = this;
    const number = (label, value) => h("div", {}, h("dt", {}, label), h("dd", {}, value));
    const held = topic.details.reduce((sum, each) => sum + each.next_offset - each.first_offset, 0);
    put(
      this.numbers,
      number("Records", count(held)),
      number("Bytes", bytes(topic.details.reduce((sum, each) => sum + each.bytes, 0))),
      number("Partitions", count(topic.partitions)),
      number("Values", visible(topic.content_type ?? "bytes")),
    );
    put(
      this.partitions,
      topic.details.map((each) =>
        h(
          "tr",
          {},
          h("td", { class: "number" }, count(each.partition)),
          h("td", {}, h("a", { class: "name", href: `#/stream/${encodeURIComponent(each.stream)}` }, visible(each.stream))),
          h("td", { class: "number" }, count(each.first_offset)),
          h("td", { class: "number" }, count(each.next_offset)),
          h("td", { class: "number" }, bytes(each.bytes)),
        ),
      ),
    );
    const notes = topic.notes.map((line) => h("tr", {}, h("td", { colspan: 3, class: "quiet" }, visible(line))));
    put(this.configs, configRows(topic), notes);
  }

  draw() {
    const box = this.list.parentElement;
    const atEnd = !this.at && (box.hidden || box.scrollHeight - box.scrollTop - box.clientHeight < 40);
    const shown = this.records.filter(this.matches);
    this.rows.show(
      shown,
      (record) => `${record.partition} ${record.offset}`,
      (record) => {
        const row = rowOf(record, (button) => this.openRecord(record, button));
        put(row.querySelector(".at"), `${record.partition}:${record.offset}`);
        return row;
      },
    );
    box.hidden = !shown.length;
    if (atEnd) box.scrollTop = box.scrollHeight; // the newest are in sight
    if (!this.topic) return;
    const left = this.topic.partitions > READ_MAX ? ` The page shows the first ${READ_MAX} partitions.` : "";
    const kind = this.at ? `Up to ${count(this.share)} records of each partition from there on` : `The newest ${count(shown.length)} records`;
    const some = this.filter.value.trim() ? `${count(shown.length)} of ${count(this.records.length)} records match.` : `${kind}, by time.`;
    const none = this.at ? "No partition has records there or later." : "The topic has no records yet.";
    this.tell(this.records.length ? some + left : none);
  }

  tell(text, wrong = false) {
    if (this.note.textContent !== text) put(this.note, text);
    this.note.classList.toggle("wrong", wrong);
  }

  /** Return the text of the newest record; null without one. */
  get newest() {
    const record = this.records.at(-1);
    return record && !record.absent && record.bytes.length < NEWEST_BYTES_MAX ? valueText(record) : null;
  }

  copyCommand() {
    const { record } = this.pane;
    if (record) return this.copies()[2][2](record);
    this.shell.copy(cli("consume", [this.name], { "--from": this.at, "--exit": true }), "The command");
  }

  copyCurl() {
    this.shell.copy(curl(url(this.path)), "The command");
  }

  close() {
    this.abort.abort();
    clearTimeout(this.timer);
  }
}

/** Return the rows of a topic's configs: first those that it sets, then the others with an effect, at their defaults. */
function configRows({ configs, defaults }) {
  const row = (name, value) => {
    const same = value === undefined || value === defaults[name];
    const shown = visible(value ?? defaults[name]) || "–";
    return h("tr", {}, h("td", {}, h("code", {}, visible(name))), h("td", { class: same ? "quiet-cell" : "" }, h("code", {}, shown), same ? null : h("span", { class: "mark good" }, "set")), h("td", { class: "quiet-cell" }, h("code", {}, name in defaults ? visible(defaults[name]) || "–" : "has no effect here")));
  };
  const others = Object.keys(defaults).filter((name) => !(name in configs));
  return [...Object.entries(configs).map(([name, value]) => row(name, value)), ...others.map((name) => row(name))];
}
