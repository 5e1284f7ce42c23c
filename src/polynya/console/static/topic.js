// One Kafka topic: its newest records, merged over its partitions; the partitions; its configs.

import { actRow } from "./acts.js";
import { askJson, curl, isJson, recordsPage, url } from "./api.js";
import { cli } from "./commands.js";
import { h, put } from "./dom.js";
import { matcher } from "./filter.js";
import { bytes, count, token, visible } from "./format.js";
import { merged } from "./merge.js";
import { curlButton, grid, page, titleOf } from "./page.js";
import { Pane, PanedView, rowOf, valueText } from "./record.js";
import { Rows } from "./rows.js";
import { changeTopic, deleteTopic, produceTo } from "./topic_acts.js";

const POLL_MS = 3000;
const ROWS_MAX = 200; // of all partitions
const BYTES_MAX = 256 << 10; // of one page of one partition
const READ_MAX = 32; // partitions whose records are shown: each costs a request
const NEWEST_BYTES_MAX = 64 << 10;

export function open(place, shell) {
  const view = new TopicView(place.rest, shell);
  view.poll();
  return view;
}

class TopicView extends PanedView {
  constructor(name, shell) {
    super();
    this.name = name;
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
    this.list = h("ol", { class: "records timed" });
    this.rows = new Rows(this.list);
    this.pane = new Pane([["Copy value", "The value alone", (record) => shellCopy(this.shell, record)]], () => this.closePane());
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
      h("div", { class: "row controls" }, h("label", { class: "narrow" }, h("span", { class: "label" }, "Show only records with"), this.filter)),
      this.note,
      h("div", { class: "split" }, h("div", { class: "panel scroll merged", hidden: true, tabindex: "0", role: "region", "aria-label": "The newest records" }, this.list), this.pane.element),
      h("h2", {}, "Partitions"),
      h("div", { class: "panel scroll" }, grid("nodes", partitionHeads, this.partitions)),
      h("h2", {}, "Configs"),
      h("div", { class: "panel scroll" }, grid("nodes", [["Config"], ["Value"]], this.configs)),
    );
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
    const changed = topic.details.slice(0, READ_MAX).filter((each) => each.next_offset !== this.next.get(each.partition));
    const found = await Promise.all(changed.map((each) => this.readPartition(each)));
    this.records = merged([this.records, ...found], ROWS_MAX);
    this.draw();
  }

  /** Return the records of a partition that are new, or its newest ones. */
  async readPartition({ partition, stream, first_offset: first, next_offset: end }) {
    const share = Math.max(10, Math.ceil(ROWS_MAX / Math.min(READ_MAX, this.topic.partitions)));
    const begin = Math.max(first, end - share, this.next.get(partition) ?? 0);
    this.next.set(partition, end);
    if (begin >= end) return [];
    const { records } = await recordsPage(stream, { offset: token(begin) }, { records: share, bytes: BYTES_MAX, asJson: isJson(this.topic.content_type ?? ""), signal: this.abort.signal });
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
    const configs = Object.entries(topic.configs);
    const rows = configs.map(([name, value]) => h("tr", {}, h("td", {}, h("code", {}, visible(name))), h("td", {}, h("code", {}, visible(value)))));
    const notes = topic.notes.map((line) => h("tr", {}, h("td", { colspan: 2, class: "quiet" }, visible(line))));
    put(this.configs, configs.length ? [rows, notes] : h("tr", {}, h("td", { colspan: 2, class: "quiet" }, "All configs have their defaults.")));
  }

  draw() {
    const box = this.list.parentElement;
    const atEnd = box.hidden || box.scrollHeight - box.scrollTop - box.clientHeight < 40;
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
    const some = this.filter.value.trim() ? `${count(shown.length)} of ${count(this.records.length)} records match.` : `The newest ${count(shown.length)} records, by time.`;
    this.tell(this.records.length ? some + left : "The topic has no records yet.");
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
    this.shell.copy(cli("consume", [this.name], { "--exit": true }), "The command");
  }

  copyCurl() {
    this.shell.copy(curl(url(this.path)), "The command");
  }

  close() {
    this.abort.abort();
    clearTimeout(this.timer);
  }
}

function shellCopy(shell, record) {
  shell.copy(valueText(record), "The value");
}

