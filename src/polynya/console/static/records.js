// The records of many streams, searched by text, key, time and JSON path, the newest first; or as they arrive.

import { recordsPage, rfc3339 } from "./api.js";
import { chosen, selectionOf, STREAMS_MAX } from "./choose.js";
import { curlRead, curlTailMany, readCommand, tailManyCommand } from "./commands.js";
import { h, put } from "./dom.js";
import { matcher } from "./filter.js";
import { count, instant, parsePlace, streamHash, token, visible } from "./format.js";
import { condition, SYNTAX } from "./jsonpath.js";
import { page } from "./page.js";
import { Pane, PanedView, rowOf, valueText } from "./record.js";
import { Rows } from "./rows.js";
import { orderTime, Scan } from "./scan.js";
import { ManyStreams, markFollowing, Tail } from "./tail.js";

const PAGE = 100;
const PAGE_BYTES = 256 << 10; // of one stream
const FOLLOWED_MAX = 500; // rows while following
const FOLLOWED_BYTES_MAX = 32 << 20;
const DRAW_MS = 80; // at most so often, however fast records arrive
const FAULTS_SHOWN = 3;
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
  if (place.query.get("live") === "1") view.follow(true);
  else view.start();
  return view;
}

class RecordsView extends PanedView {
  constructor(query, shell) {
    super();
    this.title = "Records";
    this.query = query;
    this.shell = shell;
    this.abort = new AbortController();
    this.busy = null; // the controller of the step that runs
    this.scan = null;
    this.records = []; // of the page, the newest first
    this.tail = null;
    this.paused = false;
    this.build();
    this.mark();
    this.keys = {
      "/": () => this.of.select(),
      f: () => this.fields.text.select(),
      ...this.paneKeys(),
      n: () => this.start(),
      p: () => this.older(),
      l: () => this.follow(!this.tail),
      " ": () => this.tail && this.pause(!this.paused),
      c: () => this.copy(curlSpan, curlTailMany),
      x: () => this.copy(readCommand, tailManyCommand),
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
        ["Copy command", "polynya read … (x)", () => this.copy(readCommand, tailManyCommand)],
        ["Copy as curl", "The same with curl (c)", () => this.copy(curlSpan, curlTailMany)],
      ],
      () => this.closePane(),
    );
    this.next = button("Older", () => this.older(), "The records before (p)");
    this.stop = button("Stop", () => this.busy?.abort(), "End the search (Esc)");
    this.live = button("Follow", () => this.follow(!this.tail), "Show records as they arrive (l)");
    this.live.id = "follow";
    this.hold = button("Pause", () => this.pause(!this.paused), "Hold new records (Space)");
    this.hold.id = "pause";
    const buttons = [
      button("Newest", () => this.start(), "Search again (n)"),
      this.next,
      this.stop,
      this.live,
      this.hold,
      button("Copy command", () => this.copy(readCommand, tailManyCommand), "polynya read … or tail … (x)"),
      button("Copy as curl", () => this.copy(curlSpan, curlTailMany), "The same with curl (c)"),
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
    const live = this.tail ? "1" : "";
    this.query = new URLSearchParams(searchHash({ kind, of: this.of.value.trim(), ...given, live }).split("?")[1] ?? "");
    this.shell.rename(searchHash(Object.fromEntries(this.query)));
    if (live) this.follow(true);
    else this.start();
  }

  // --- searching ------------------------------------------------------------------------------------------------------------------------

  /** Search from the newest records on. */
  start() {
    this.end();
    this.closePane();
    this.scan = null;
    this.show([]);
    return this.step(async (signal) => {
      const wanted = this.wanted();
      const { streams, left, missing } = await chosen(this.query.get("kind") ?? "prefix", this.query.get("of") ?? "", signal);
      const ended = wanted.until === null ? streams : await Promise.all(streams.map((stream) => this.endedBefore(stream, wanted.until, signal)));
      this.left = left;
      this.missing = missing;
      this.matches = wanted.matches;
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
    const [hasText, hasKey] = [matcher(text("text")), key ? matcher(`key:${key}`) : () => true];
    return { matches: (record) => hasText(record) && hasKey(record) && where(record.bytes), since: timeOf(text("since")), until: timeOf(text("until")) };
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
    const following = !!this.tail;
    this.stop.hidden = !this.busy;
    this.next.disabled = following || !!this.busy || !this.scan || this.scan.isOver;
    markFollowing(this);
  }

  // --- following ------------------------------------------------------------------------------------------------------------------------

  /** Show the records that arrive from now on, or search again. */
  follow(wanted) {
    if (!wanted) {
      this.remember("");
      this.start();
      return;
    }
    this.end();
    this.busy?.abort();
    this.busy = null;
    this.scan = null;
    this.closePane();
    this.show([]);
    try {
      this.tail = new Tail(new ManyStreams(this.selection, this.wanted().matches), () => this.schedule());
      this.remember("1");
      this.tellLive();
    } catch (error) {
      this.tell(`The records cannot be followed: ${error.message}.`, true);
    }
    this.mark();
  }

  get selection() {
    return selectionOf(this.query.get("kind") ?? "prefix", this.query.get("of") ?? "");
  }

  /** Keep in the address whether the page follows. */
  remember(live) {
    this.query.delete("live");
    if (live) this.query.set("live", live);
    this.shell.rename(searchHash(Object.fromEntries(this.query)));
  }

  /** Stop following. */
  end() {
    this.tail?.stop();
    this.tail = null;
    this.paused = false;
    this.mark();
  }

  pause(wanted) {
    this.paused = wanted;
    this.mark();
    this.flush();
  }

  schedule() {
    if (this.scheduled) return;
    this.scheduled = true;
    setTimeout(() => {
      this.scheduled = false;
      if (!this.abort.signal.aborted) this.flush();
    }, DRAW_MS);
  }

  flush() {
    if (!this.tail) return;
    const came = this.paused ? [] : this.tail.take();
    if (came.length) this.show(newestOf([...came.reverse(), ...this.records]), { keepsPlace: true });
    this.tellLive();
  }

  tellLive() {
    const { state, reason, waiting, skipped, source } = this.tail;
    const held = this.paused && waiting ? `, ${count(waiting)} on hold` : "";
    const lost = skipped ? `, ${count(skipped)} not shown (they are in their streams)` : "";
    const faults = [...source.faults].slice(0, FAULTS_SHOWN).map(([name, fault]) => ` ${visible(name)}: ${visible(fault)}.`).join("");
    const words = {
      connecting: "Connecting …",
      live: `${this.paused ? "Paused" : "Live"}: ${plural(source.streams, "stream")}, ${plural(source.looked, "new record")}`,
      waiting: `Not connected: ${reason}. Retrying …`,
      failed: `Stopped following: ${reason}`,
    };
    const end = state === "live" || state === "failed" ? "." : ""; // the others end in dots
    this.tell(`${words[state]}${held}${lost}${end}${faults}`, state === "failed");
  }

  words(found) {
    const { scan } = this;
    const streams = scan.sources.length;
    if (!streams && !this.missing.length) return "No stream has such a name; case counts. The page Streams lists them.";
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

  show(records, { keepsPlace = false } = {}) {
    const box = this.list.parentElement;
    const [height, top] = [box.scrollHeight, box.scrollTop];
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
    box.hidden = !records.length;
    box.scrollTop = keepsPlace && top > 0 ? top + box.scrollHeight - height : 0; // what is read stays in sight
  }

  openRecord(record, button) {
    super.openRecord(record, button);
    const href = `${streamHash(record.stream)}?at=${record.offset}`;
    put(this.pane.title, h("a", { href, class: "name", title: "The stream at this offset" }, visible(record.stream)), ` offset ${record.offset}`);
  }

  leave() {
    if (!this.pane.element.hidden) this.closePane();
    else if (this.busy) this.busy.abort();
    else if (this.tail) this.follow(false);
    else this.shell.go("#/streams");
  }

  /** Copy the command of the open record, of what is followed, or one for each stream of the page, from its oldest to its newest record here. */
  copy(spell, spellLive) {
    const { record } = this.pane;
    if (!record && this.tail) return this.shell.copy(spellLive(this.selection), "The command");
    const spans = record ? [[record.stream, record.offset, 1]] : spansOf(this.records);
    if (!spans.length) return this.shell.say("There is no record to copy a command of.");
    return this.shell.copy(spans.map((span) => spell(...span)).join("\n"), "The command");
  }

  close() {
    this.abort.abort();
    this.busy?.abort();
    this.tail?.stop();
  }
}

/** Return the records, the newest first, that a page may hold while it follows. */
function newestOf(records) {
  let size = 0;
  const end = records.findIndex((record, index) => index >= FOLLOWED_MAX || ((size += record.bytes.length) > FOLLOWED_BYTES_MAX && index > 0));
  return end < 0 ? records : records.slice(0, end);
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
