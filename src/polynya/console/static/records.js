// The records of many streams: searched by text, key, time and JSON path, the newest first.

import { recordsPage, rfc3339 } from "./api.js";
import { chosen, STREAMS_MAX } from "./choose.js";
import { curlRead, readCommand } from "./commands.js";
import { h, put } from "./dom.js";
import { matcher } from "./filter.js";
import { count, instant, parsePlace, token, visible } from "./format.js";
import { condition, SYNTAX } from "./jsonpath.js";
import { page } from "./page.js";
import { Pane, rowOf, valueText } from "./record.js";
import { Rows } from "./rows.js";
import { orderTime, Scan } from "./scan.js";

const PAGE = 100;
const PAGE_BYTES = 256 << 10; // of one stream
const KINDS = [
  ["prefix", "Name prefix", "orders/, or nothing for all streams"],
  ["pattern", "Pattern", "runs/*/log, or runs/**"],
  ["list", "List of names", "orders payments"],
];
const CONDITIONS = [
  ["text", "Text in key, headers or value", "timeout"],
  ["key", "Text in the key", "customer-9"],
  ["where", "JSON path", "$.order.total>=100"],
  ["since", "Appended since", "2h, or 2026-11-01T00:00Z"],
  ["until", "Appended before", "10m"],
];

/** Return the address of a search. */
export function searchHash(search) {
  const query = String(new URLSearchParams(Object.entries(search).filter(([, text]) => text)));
  return `#/records${query ? `?${query}` : ""}`;
}

export function open(place, shell) {
  const view = new RecordsView(place.query, shell);
  view.start();
  return view;
}

class RecordsView {
  constructor(query, shell) {
    this.title = "Records";
    this.query = query;
    this.shell = shell;
    this.abort = new AbortController();
    this.busy = null; // the controller of the step that runs
    this.scan = null;
    this.records = []; // of the page, the newest first
    this.build();
    this.keys = {
      "/": () => this.of.select(),
      f: () => this.fields.text.select(),
      j: () => this.walk(1),
      k: () => this.walk(-1),
      n: () => this.start(),
      p: () => this.older(),
      c: () => this.copy(curlSpan),
      x: () => this.copy(readCommand),
      1: () => this.pane.mode("tree"),
      2: () => this.pane.mode("text"),
      3: () => this.pane.mode("hex"),
      Escape: () => this.leave(),
    };
  }

  // --- the form -------------------------------------------------------------------------------------------------------------------------

  build() {
    const button = (name, act, title) => h("button", { type: "button", class: "button", title, on: { click: act } }, name);
    this.state = h("p", { class: "state", role: "status" });
    this.list = h("ol", { class: "records timed" });
    this.rows = new Rows(this.list);
    this.pane = new Pane(
      [
        ["Copy value", "The value alone", (record) => this.shell.copy(valueText(record), "The value")],
        ["Copy record", "The whole record as JSON", (record) => this.shell.copy(record.source, "The record")],
        ["Copy command", "polynya read … (x)", () => this.copy(readCommand)],
        ["Copy as curl", "The same with curl (c)", () => this.copy(curlSpan)],
      ],
      () => this.closePane(),
    );
    this.next = button("Older", () => this.older(), "The records before (p)");
    this.stop = button("Stop", () => this.busy?.abort(), "End the search (Esc)");
    const buttons = [
      button("Newest", () => this.start(), "Search again (n)"),
      this.next,
      this.stop,
      button("Copy command", () => this.copy(readCommand), "polynya read … (x)"),
      button("Copy as curl", () => this.copy(curlSpan), "The same with curl (c)"),
    ];
    this.element = page(
      "Records",
      h("p", { class: "hint" }, "The newest records of one or many streams"),
      this.form(),
      h("div", { class: "row controls" }, buttons),
      this.state,
      h("div", { class: "split" }, h("div", { class: "panel scroll merged", hidden: true, tabindex: "0", role: "region", "aria-label": "The records found" }, this.list), this.pane.element),
    );
    this.element.classList.add("topic");
  }

  form() {
    const labelled = (words, field, kind = "") => h("label", { class: `narrow ${kind}` }, h("span", { class: "label" }, words), field);
    const field = (id, hint) => h("input", { type: "text", id, placeholder: hint, autocomplete: "off", spellcheck: "false" });
    const chosenKind = this.query.get("kind") ?? "prefix";
    this.kind = h("select", { id: "kind" }, KINDS.map(([kind, words]) => h("option", { value: kind, selected: kind === chosenKind }, words)));
    this.of = field("of", "");
    this.of.value = this.query.get("of") ?? "";
    this.kind.addEventListener("change", () => this.hint());
    this.hint();
    this.fields = {};
    for (const [name, , hint] of CONDITIONS) {
      this.fields[name] = field(`by-${name}`, hint);
      this.fields[name].value = this.query.get(name) ?? "";
    }
    return h(
      "form",
      { class: "search-form", on: { submit: (event) => this.submit(event) } },
      labelled("Streams by", this.kind, "kinds"),
      labelled("Streams", this.of, "wide"),
      CONDITIONS.map(([name, words]) => labelled(words, this.fields[name])),
      h("button", { type: "submit", class: "button primary" }, "Search"),
    );
  }

  hint() {
    this.of.placeholder = KINDS.find(([kind]) => kind === this.kind.value)[2];
  }

  submit(event) {
    event.preventDefault();
    const given = Object.fromEntries(CONDITIONS.map(([name]) => [name, this.fields[name].value.trim()]));
    const kind = this.kind.value === "prefix" ? "" : this.kind.value;
    this.query = new URLSearchParams(searchHash({ kind, of: this.of.value.trim(), ...given }).split("?")[1] ?? "");
    this.shell.rename(searchHash(Object.fromEntries(this.query)));
    this.start();
  }

  // --- searching ------------------------------------------------------------------------------------------------------------------------

  /** Search from the newest records on. */
  start() {
    this.closePane();
    this.scan = null;
    this.show([]);
    return this.step(async (signal) => {
      const wanted = this.wanted();
      const { streams, left, missing } = await chosen(this.query.get("kind") ?? "prefix", this.query.get("of") ?? "", signal);
      const ended = wanted.until === null ? streams : await Promise.all(streams.map((stream) => this.endedBefore(stream, wanted.until, signal)));
      this.left = left;
      this.missing = missing;
      this.matches = (record) => wanted.text(record) && wanted.key(record) && wanted.where(record.bytes);
      this.scan = new Scan(ended, (stream, begin, most) => this.read(stream, begin, most), { since: wanted.since });
    });
  }

  older() {
    if (!this.scan || this.busy || this.scan.isOver) return;
    this.closePane();
    this.step(async () => {});
  }

  /** Return the conditions. Throws an Error that says what is wrong. */
  wanted() {
    const text = (name) => this.query.get(name) ?? "";
    const where = condition(text("where"));
    if (!where) throw new Error(`the JSON path is not understood: write ${SYNTAX}`);
    const key = text("key");
    return { text: matcher(text("text")), key: key ? matcher(`key:${key}`) : () => true, where, since: timeOf(text("since")), until: timeOf(text("until")) };
  }

  /** Return a stream that ends with its last record appended before a time. */
  async endedBefore(stream, time, signal) {
    if (stream.end <= stream.first) return stream;
    const { records, next } = await recordsPage(stream.name, { from_time: rfc3339(time) }, { records: 1, bytes: 1, asJson: stream.asJson, signal });
    return { ...stream, end: Math.min(stream.end, records[0]?.offset ?? next) };
  }

  read(stream, begin, most) {
    const signal = AbortSignal.any([this.abort.signal, this.busy.signal]);
    return recordsPage(stream.name, { offset: token(begin) }, { records: most, bytes: PAGE_BYTES, asJson: stream.asJson, signal });
  }

  /** Prepare, and show the next page of what is found. */
  async step(prepare) {
    this.busy?.abort();
    const busy = new AbortController();
    this.busy = busy;
    this.mark();
    this.tell("Searching …");
    try {
      await prepare(AbortSignal.any([this.abort.signal, busy.signal]));
      const found = await this.scan.older(PAGE, this.matches, (looked) => this.busy === busy && this.tell(`Searching … ${count(looked)} records read`));
      if (this.busy !== busy) return;
      this.show(found);
      this.tell(this.words(found));
    } catch (error) {
      if (this.busy !== busy || this.abort.signal.aborted) return;
      const found = this.scan?.found ?? [];
      this.show(found);
      if (busy.signal.aborted) this.tell(`Stopped. ${this.scan ? this.words(found) : ""}`);
      else this.tell(`The records cannot be searched: ${error.message}.`, true);
    } finally {
      if (this.busy === busy) this.busy = null;
      this.mark();
    }
  }

  mark() {
    this.stop.hidden = !this.busy;
    this.next.disabled = !!this.busy || !this.scan || this.scan.isOver;
  }

  words(found) {
    const { scan } = this;
    const streams = scan.sources.length;
    if (!streams && !this.missing.length) return "No stream has such a name.";
    const range = found.length ? `, ${instant(orderTime(found.at(-1)))} to ${instant(orderTime(found[0]))}` : "";
    const rest = scan.isOver ? "There are no older ones." : "Older ones may follow.";
    const left = this.left ? ` These are the first ${STREAMS_MAX} streams by name; there are more.` : "";
    const missing = this.missing.length ? ` Not readable: ${visible(this.missing.join(", "))}.` : "";
    const faults = scan.faults.map(({ name, fault }) => ` ${visible(name)}: ${fault}.`).join("");
    return `${plural(found.length, "record")} of ${plural(streams, "stream")}${range}; ${count(scan.looked)} read. ${rest}${left}${missing}${faults}`;
  }

  tell(text, wrong = false) {
    put(this.state, text);
    this.state.classList.toggle("wrong", wrong);
  }

  // --- the list -------------------------------------------------------------------------------------------------------------------------

  show(records) {
    this.records = records;
    this.rows.show(
      records,
      (record) => `${record.offset} ${record.stream}`,
      (record) => {
        const row = rowOf(record, (button) => this.openRecord(record, button));
        row.querySelector(".what").prepend(h("span", { class: "origin name", title: visible(record.stream) }, visible(record.stream)));
        return row;
      },
    );
    this.list.parentElement.hidden = !records.length;
    this.list.parentElement.scrollTop = 0;
  }

  walk(step) {
    const target = this.rows.move(step);
    if (target && !this.pane.element.hidden) target.click();
  }

  openRecord(record, button) {
    for (const other of this.list.querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
    button.setAttribute("aria-current", "true");
    this.pane.show(record);
    const href = `#/stream/${record.stream.split("/").map(encodeURIComponent).join("/")}?at=${record.offset}`;
    put(this.pane.title, h("a", { href, class: "name", title: "The stream at this offset" }, visible(record.stream)), ` offset ${record.offset}`);
    this.element.classList.add("with-pane");
  }

  closePane() {
    this.pane.hide();
    this.element.classList.remove("with-pane");
    const row = this.list.querySelector("[aria-current]");
    row?.removeAttribute("aria-current");
    row?.focus();
  }

  leave() {
    if (!this.pane.element.hidden) this.closePane();
    else if (this.busy) this.busy.abort();
    else this.shell.go("#/streams");
  }

  /** Copy the command of the open record, or one for each stream of the page, from its oldest to its newest record here. */
  copy(spell) {
    const { record } = this.pane;
    const spans = record ? [[record.stream, record.offset, 1]] : spansOf(this.records);
    if (!spans.length) return this.shell.say("There is no record to copy a command of.");
    return this.shell.copy(spans.map((span) => spell(...span)).join("\n"), "The command");
  }

  close() {
    this.abort.abort();
    this.busy?.abort();
  }
}

function curlSpan(stream, offset, most) {
  return curlRead(stream, offset, most === 1 ? {} : { bytes: PAGE_BYTES });
}

/** Return [stream, first offset, how many] of each stream of some records. */
function spansOf(records) {
  const spans = new Map();
  for (const { stream, offset } of records) {
    const [low, high] = spans.get(stream) ?? [offset, offset];
    spans.set(stream, [Math.min(low, offset), Math.max(high, offset)]);
  }
  return [...spans].map(([stream, [low, high]]) => [stream, low, high - low + 1]);
}

function timeOf(text) {
  if (!text) return null;
  const place = parsePlace(text);
  if (place?.time === undefined) throw new Error(`“${visible(text)}” is no time: write 10m for ten minutes ago, or a date such as 2026-11-01T00:00Z`);
  return place.time;
}

function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}
