// One stream: its records by offset and time, filtered, and live.

import { ApiError, ask, facts, isJson, recordsPage, rfc3339 } from "./api.js";
import { actRow } from "./acts.js";
import { curlRead, curlTail, readCommand, tailCommand } from "./commands.js";
import { h, put } from "./dom.js";
import { matcher } from "./filter.js";
import { bytes, compact, count, instant, parsePlace, parseToken, streamHash, token, visible } from "./format.js";
import { Series } from "./rates.js";
import { Pane, PanedView, rowOf, timeOf, valueText } from "./record.js";
import { Rows } from "./rows.js";
import { sparkline } from "./spark.js";
import { snapshotsHash } from "./snapshot_acts.js";
import { appendTo, attributesUrl, closeStream, deleteStream, describeStream, forkStream, retainStream, trimStream } from "./stream_acts.js";
import { markFollowing, OneStream, Tail } from "./tail.js";

const PAGE = 100;
const PAGE_BYTES = 512 << 10;
const ROWS_MAX = 500; // while following
const ROWS_BYTES_MAX = 32 << 20;
const POLL_MS = 2000;
const ATTRIBUTES_CHARACTERS = 1000;
const NEWEST_BYTES_MAX = 64 << 10; // of a record that is a template

export function open(place, shell) {
  const name = place.rest;
  const view = new StreamView(name, place, shell);
  view.start();
  return view;
}

class StreamView extends PanedView {
  constructor(name, place, shell) {
    super();
    this.name = name;
    this.title = visible(name);
    this.shell = shell;
    this.abort = new AbortController();
    this.at = place.query.get("at") ?? "";
    this.wantsLive = place.query.get("live") === "1";
    this.facts = null;
    this.records = []; // of the page, or of those that arrived
    this.begin = 0; // the offset where the page begins
    this.next = null; // the offset after it
    this.matches = matcher("");
    this.tail = null;
    this.paused = false;
    this.lost = false; // the last refresh of the stream's properties failed
    this.series = new Series();
    this.sizes = new Series();
    this.build();
    this.keys = {
      "/": () => this.place.select(),
      f: () => this.filter.select(),
      n: () => this.forth(),
      p: () => this.back(),
      l: () => this.follow(!this.tail),
      " ": () => this.tail && this.pause(!this.paused),
      c: () => this.copyCurl(),
      x: () => this.copyCommand(),
      ...this.paneKeys(),
      Escape: () => this.leave(),
    };
  }

  build() {
    const button = (name, act, title) => h("button", { type: "button", class: "button", title, on: { click: act } }, name);
    this.chips = h("div", { class: "chips" });
    this.numbers = h("dl", { class: "numbers" });
    this.attributes = h("p", { class: "attributes", hidden: true });
    this.picture = h("div", { class: "stream-spark" });
    this.place = field("place", this.at, "120, -20, 10m, 2026-11-01T00:00Z");
    this.filter = field("filter", "", "text, or key:customer-9");
    this.filter.addEventListener("input", () => this.narrow());
    this.state = h("p", { class: "state", role: "status" });
    this.list = h("ol", { class: "records" });
    this.rows = new Rows(this.list);
    this.live = button("Follow", () => this.follow(!this.tail), "Show records as they arrive (l)");
    this.live.id = "follow";
    this.live.setAttribute("aria-pressed", "false");
    this.hold = button("Pause", () => this.pause(!this.paused), "Hold new records (Space)");
    this.hold.id = "pause";
    this.hold.hidden = true;
    this.older = button("Older", () => this.back(), "The page before (p)");
    this.newer = button("Newer", () => this.forth(), "The page after (n)");
    const actions = [
      ["Copy value", "The value alone", (record) => this.copyValue(record)],
      ["Copy record", "The whole record as JSON", (record) => this.shell.copy(record.source, "The record")],
      ["Copy command", "polynya read … (x)", (record) => this.copyCommand(record)],
      ["Copy as curl", "The same with curl (c)", (record) => this.copyCurl(record)],
    ];
    this.pane = new Pane(actions, () => this.closePane());
    const go = h(
      "form",
      { class: "goto", on: { submit: (event) => this.jump(event) } },
      h("label", {}, h("span", { class: "label" }, "Go to an offset or a time"), this.place),
      h("button", { type: "submit", class: "button" }, "Go"),
    );
    const buttons = h(
      "div",
      { class: "row" },
      button("First", () => this.goTo({ start: true }), "The first retained record"),
      this.older,
      this.newer,
      button("Last", () => this.goTo({ end: true }), "The newest records"),
      this.live,
      this.hold,
      h("a", { class: "button", href: snapshotsHash(this.name) }, "Snapshots"),
      button("Copy command", () => this.copyCommand(null), "polynya read … (x)"),
      button("Copy as curl", () => this.copyCurl(null), "The same with curl (c)"),
    );
    const narrow = h("label", { class: "narrow" }, h("span", { class: "label" }, "Show only records with"), this.filter);
    this.element = h(
      "section",
      { class: "page stream", "aria-labelledby": "title" },
      h(
        "div",
        { class: "head" },
        h(
          "div",
          {},
          h("p", { class: "trail" }, h("a", { href: "#/streams" }, "Streams")),
          h("h1", { id: "title", class: "name" }, this.title),
          this.chips,
        ),
        this.picture,
      ),
      this.numbers,
      this.attributes,
      this.acts(),
      h("div", { class: "row controls" }, go, narrow),
      h("div", { class: "row controls" }, buttons),
      this.state,
      h("div", { class: "split" }, h("div", { class: "panel scroll", hidden: true }, this.list), this.pane.element),
    );
  }

  start() {
    this.measure();
  }

  /** Return the buttons of the acts. Fork and trim begin with the offset of the record that is open. */
  acts() {
    const { name, shell } = this;
    const open = () => this.pane.record?.offset ?? null;
    const done = () => this.measured();
    const acts = [
      ["Append …", () => appendTo(shell, name, this.facts.contentType, this.newest, done), "primary"],
      ["Fork …", () => forkStream(shell, name, open() === null ? null : open() + 1)],
      ["Retention …", () => retainStream(shell, name, done)],
      ["Attributes …", () => describeStream(shell, name, done)],
      ["Trim …", () => trimStream(shell, name, open(), done), "danger"],
      ["Close …", () => closeStream(shell, name, done), "danger"],
      ["Delete …", () => deleteStream(shell, name), "danger"],
    ];
    return actRow(acts, new Promise((resolve) => (this.onKnown = resolve)));
  }

  /** Return the text of the newest record of the page; null without one. */
  get newest() {
    const record = this.records.at(-1);
    return record && !record.absent && record.bytes.length < NEWEST_BYTES_MAX ? valueText(record) : null;
  }

  /** Measure at once after an act, and show the newest records. */
  async measured() {
    clearTimeout(this.timer);
    await this.measure();
    this.readAttributes();
    if (this.facts && !this.tail) this.end();
  }

  /** Show the stream's attributes, as text. */
  async readAttributes() {
    try {
      const text = await (await ask(attributesUrl(this.name), { signal: this.abort.signal })).text();
      this.attributes.hidden = text.trim() === "{}";
      put(this.attributes, h("span", { class: "label" }, "Attributes "), h("code", {}, visible(text.slice(0, ATTRIBUTES_CHARACTERS))), text.length > ATTRIBUTES_CHARACTERS ? " …" : "");
    } catch {
      this.attributes.hidden = true; // the token may not read them, or the stream is gone, which the page says elsewhere
    }
  }

  /** Start once the stream's properties are known, which may be after a failed first request. */
  async open() {
    const place = parsePlace(this.at) ?? { end: true };
    await this.goTo(place);
    if (this.wantsLive) this.follow(true);
  }

  // --- properties -----------------------------------------------------------------------------------------------------------------------

  async measure() {
    try {
      const now = performance.now();
      const found = await facts(this.name, this.abort.signal);
      if (this.facts && this.facts.incarnation !== found.incarnation)
        this.tell("The stream was deleted and recreated. The page shows the new incarnation.");
      const known = this.facts !== null;
      this.facts = found;
      this.series.add(now, found.tail.record);
      this.sizes.add(now, found.tail.byte);
      this.describe();
      if (!known) {
        this.open().then(this.onKnown);
        this.readAttributes();
      }
      if (known && this.lost && !this.tail && this.next !== null) this.tellPage();
      this.lost = false;
    } catch (error) {
      if (this.abort.signal.aborted) return;
      this.tell(
        error instanceof ApiError && error.status === 404
          ? `The stream “${this.title}” does not exist. Case counts in names; the page Streams lists and creates them.`
          : `The stream cannot be read: ${error.message}. Retrying …`,
        true,
      );
      this.lost = true;
      if (error.status === 404 || error.status === 410 || error.status === 400) {
        this.element.classList.toggle("missing", !this.facts);
        return;
      }
    }
    this.timer = setTimeout(() => this.again(), POLL_MS);
  }

  again() {
    if (document.hidden) this.timer = setTimeout(() => this.again(), POLL_MS);
    else this.measure();
  }

  describe() {
    const { contentType, closed, ttl, expires, first, tail, incarnation, segment, writer } = this.facts;
    const chip = (text, kind = "") => h("span", { class: `mark ${kind}` }, text);
    put(
      this.chips,
      chip(visible(contentType)),
      closed ? chip("closed", "warn") : chip("open", "good"),
      ttl ? chip(`ttl ${ttl} s`) : null,
      expires ? chip(`expires ${instant(expires)}`) : null,
      segment ? chip("leased") : null,
    );
    const rate = this.series.rate();
    const number = (label, value, title) => h("div", { title }, h("dt", {}, label), h("dd", {}, value));
    put(
      this.numbers,
      number("Records", count(tail.record - first.record)),
      number("Bytes", bytes(tail.byte - first.byte)),
      number("Rate", rate === null ? "…" : `${compact(rate)}/s`, `${bytes(this.sizes.rate() ?? 0)}/s`),
      number("First offset", String(first.record), token(first.record, first.byte)),
      number("Next offset", String(tail.record), token(tail.record, tail.byte)),
      segment ? number("Segment", segment, `epoch of the open segment; node ${writer} writes it`) : null,
      segment ? number("Writer", `node ${writer}`) : null,
      number("Incarnation", h("code", {}, incarnation)),
    );
    put(this.picture, sparkline(this.series.rates, { width: 220, height: 44, label: "Records per second, last two minutes" }));
    this.newer.disabled = !!this.tail || (this.next !== null && this.next >= tail.record);
    if (!this.tail && this.next !== null && !this.state.classList.contains("wrong")) this.tellPage();
  }

  // --- pages ----------------------------------------------------------------------------------------------------------------------------

  get asJson() {
    return isJson(this.facts.contentType);
  }

  async goTo(place) {
    if (!this.facts) return;
    this.follow(false);
    const { first, tail } = this.facts;
    if (place.time !== undefined) return this.load({ time: place.time });
    if (place.end) return this.end();
    const last = Math.max(first.record, tail.record - (place.last ?? 0));
    await this.load({ record: place.start ? first.record : (place.record ?? last) });
  }

  /** Show the newest records, of which the last is in sight. */
  async end() {
    await this.load({ before: this.facts.tail.record });
    this.bottom();
  }

  /** Show the page that begins at `record` or at a `time`, or the one that ends `before` an offset. */
  async load(place) {
    this.busy?.abort();
    this.busy = new AbortController();
    const signal = AbortSignal.any([this.abort.signal, this.busy.signal]);
    try {
      const page = await (place.before === undefined ? this.pageFrom(place, signal) : this.pageBefore(place.before, signal));
      this.show(page);
      this.remember(place.time === undefined ? page : place);
    } catch (error) {
      if (signal.aborted) return;
      const kept = error instanceof ApiError && parseToken(error.headers?.get?.("stream-retained-offset"));
      this.tell(kept ? `${error.message}: the first retained offset is ${kept.record}.` : error.message, true);
    }
  }

  /** Return a page as {records, begin, next}: the offsets where it begins, and after it. */
  async pageFrom({ record, time }, signal) {
    const from = record === undefined ? { from_time: rfc3339(time) } : { offset: token(record) };
    const page = await recordsPage(this.name, from, { records: PAGE, bytes: PAGE_BYTES, asJson: this.asJson, signal });
    return { ...page, begin: record ?? page.records[0]?.offset ?? page.next };
  }

  /** Return the page that ends before `end`: a shorter one where so many records are larger than a page. */
  async pageBefore(end, signal) {
    const first = this.facts.first.record;
    for (let size = Math.min(PAGE, end - first); ; size = Math.ceil(size / 4)) {
      const page = await this.pageFrom({ record: Math.max(first, end - size) }, signal);
      if (page.next >= end || size <= 1)
        return { ...page, records: page.records.filter((record) => record.offset < end), next: Math.min(page.next, end) };
    }
  }

  back() {
    if (!this.facts || this.tail) return;
    if (this.begin > this.facts.first.record) this.load({ before: this.begin });
  }

  forth() {
    if (this.next !== null && !this.tail && this.next < this.facts.tail.record) this.load({ record: this.next });
  }

  jump(event) {
    event.preventDefault();
    const place = parsePlace(this.place.value);
    if (!place) {
      this.tell("Type an offset (the first is 0), -20 for the last ones, 10m for ten minutes ago, or a date.", true);
      return;
    }
    this.place.blur();
    this.goTo(place);
  }

  remember({ time, begin }) {
    const at = time === undefined ? begin : new Date(time).toISOString();
    this.shell.rename(`${streamHash(this.name)}?at=${at}`);
  }

  show({ records, begin, next }) {
    this.records = records;
    this.begin = begin;
    this.next = next;
    this.draw();
    this.older.disabled = !!this.tail || begin <= this.facts.first.record;
    this.newer.disabled = !!this.tail || next >= this.facts.tail.record;
    this.tellPage();
    this.list.parentElement.scrollTop = 0;
  }

  narrow() {
    this.matches = matcher(this.filter.value);
    if (!this.facts) return;
    this.draw();
    if (this.tail) this.tellLive();
    else this.tellPage();
  }

  draw() {
    const shown = this.records.filter(this.matches);
    this.shown = shown.length;
    this.rows.show(
      shown,
      (record) => `${this.facts.incarnation} ${record.offset}`,
      (record) => rowOf(record, (button) => this.openRecord(record, button)),
    );
    this.list.classList.toggle("timed", shown.some((record) => timeOf(record) !== null));
    this.list.parentElement.hidden = !shown.length;
  }

  leave() {
    if (!this.pane.element.hidden) this.closePane();
    else if (this.tail) this.follow(false);
    else this.shell.go("#/streams");
  }

  // --- following ------------------------------------------------------------------------------------------------------------------------

  follow(wanted) {
    if (!wanted) {
      this.tail?.stop();
      this.tail = null;
    } else if (!this.tail && this.facts) {
      this.catchUp();
    }
    this.paused = false;
    this.marks();
  }

  /** Begin where the page ends if that is near the tail, else at the tail. */
  async catchUp() {
    if (this.next === null || this.facts.tail.record - this.next > ROWS_MAX) {
      await this.load({ before: this.facts.tail.record });
      if (this.abort.signal.aborted || this.tail) return;
    }
    this.tail = new Tail(new OneStream(this.name, this.asJson, this.next ?? this.facts.tail.record), () => this.schedule());
    this.marks();
    this.bottom();
  }

  pause(wanted) {
    this.paused = wanted;
    this.marks();
    this.flush();
  }

  marks() {
    const following = !!this.tail;
    markFollowing(this);
    this.older.disabled = following || !this.facts || this.begin <= this.facts.first.record;
    this.newer.disabled = following || !this.facts || (this.next ?? 0) >= this.facts.tail.record;
    if (!following && this.facts && this.next !== null) this.tellPage();
  }

  /** Say which offsets the page shows, of those that the stream has. */
  tellPage() {
    const { first, tail } = this.facts;
    if (!this.records.length) {
      this.tell(
        tail.record === first.record
          ? "The stream has no records yet. Follow it to see new records."
          : this.next < tail.record
            ? `There are no records from offset ${this.begin} to ${this.next - 1}.`
            : "There are no records after this position yet.",
      );
      return;
    }
    const [begin, end] = [this.records[0].offset, this.records.at(-1).offset];
    const page = begin === end ? `Offset ${begin}` : `Offsets ${begin} to ${end}`;
    this.tell(`${page} of ${first.record} to ${tail.record - 1}${this.tellMatches()}`);
  }

  tellMatches() {
    const { length } = this.records;
    return this.filter.value.trim() ? `; ${count(this.shown)} of ${count(length)} ${length === 1 ? "record matches" : "records match"}` : "";
  }

  /** Draw at most every 80 ms, however fast records arrive; also in a hidden page. */
  schedule() {
    if (this.scheduled) return;
    this.scheduled = true;
    setTimeout(() => {
      this.scheduled = false;
      if (!this.abort.signal.aborted) this.flush();
    }, 80);
  }

  flush() {
    const { tail } = this;
    if (!tail) return;
    if (!this.paused) {
      const atBottom = this.isAtBottom();
      const came = tail.take();
      if (came.length) {
        this.records = this.records.concat(came);
        this.trim();
        this.begin = this.records[0].offset;
        this.next = tail.source.next;
        this.draw();
        if (atBottom) this.bottom();
      }
    }
    this.tellLive();
  }

  trim() {
    let size = this.records.reduce((sum, record) => sum + record.bytes.length, 0);
    let begin = Math.max(0, this.records.length - ROWS_MAX);
    for (let index = 0; index < begin; index += 1) size -= this.records[index].bytes.length;
    for (; size > ROWS_BYTES_MAX && begin < this.records.length - 1; begin += 1) size -= this.records[begin].bytes.length;
    this.records = this.records.slice(begin);
  }

  tellLive() {
    const { state, reason, waiting, skipped } = this.tail;
    const held = this.paused && waiting ? `, ${count(waiting)} on hold` : "";
    const lost = skipped ? `, ${count(skipped)} not shown (they are in the stream)` : "";
    const words = {
      connecting: "Connecting …",
      live: this.paused ? "Paused" : "Live",
      waiting: `Not connected: ${reason}. Retrying …`,
      closed: "The stream is closed: end of stream.",
      failed: `Stopped following: ${reason}`,
    };
    this.tell(words[state] + held + lost + this.tellMatches(), state === "failed");
  }

  isAtBottom() {
    const box = this.list.parentElement;
    return box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  }

  bottom() {
    const box = this.list.parentElement;
    box.scrollTop = box.scrollHeight;
  }

  // --- the rest -------------------------------------------------------------------------------------------------------------------------

  tell(text, wrong = false) {
    if (this.state.textContent !== text) put(this.state, text);
    this.state.classList.toggle("wrong", wrong);
  }

  copyValue(record) {
    this.shell.copy(valueText(record), "The value");
  }

  /** Copy the command that prints the record, else the page, else what arrives from now on. */
  copyCommand(record = this.pane.record) {
    if (!this.facts) return;
    const command = record
      ? readCommand(this.name, record.offset, 1)
      : this.tail
        ? tailCommand(this.name, this.tail.source.next)
        : readCommand(this.name, this.begin, Math.max(1, this.records.length));
    this.shell.copy(command, "The command");
  }

  copyCurl(record = this.pane.record) {
    if (!this.facts) return;
    const command = record
      ? curlRead(this.name, record.offset)
      : this.tail
        ? curlTail(this.name, this.tail.source.next)
        : curlRead(this.name, this.begin, { bytes: PAGE_BYTES });
    this.shell.copy(command, "The command");
  }

  close() {
    this.abort.abort();
    this.tail?.stop();
    clearTimeout(this.timer);
  }
}

function field(id, value, placeholder) {
  return h("input", { id, type: "text", value, placeholder, autocomplete: "off", spellcheck: "false" });
}
