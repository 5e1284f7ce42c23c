// One stream: its records by number, offset and time, and live.

import { ApiError, curl, facts, isJson, jsonPage, rawNumber, rawRecord, rfc3339, streamUrl } from "./api.js";
import { h, put } from "./dom.js";
import { bytes, compact, count, instant, ordinal, parsePlace, token, visible } from "./format.js";
import { Series } from "./rates.js";
import { Pane, preview } from "./record.js";
import { Rows } from "./rows.js";
import { sparkline } from "./spark.js";
import { Tail } from "./tail.js";

const JSON_PAGE = 100;
const RAW_PAGE = 25; // one request for each: raw bytes show no record boundaries
const PAGE_BYTES = 512 << 10;
const ROWS_MAX = 500; // while following
const ROWS_BYTES_MAX = 32 << 20;
const POLL_MS = 2000;

export function open(place, shell) {
  const name = place.rest;
  const view = new StreamView(name, place, shell);
  view.start();
  return view;
}

class StreamView {
  constructor(name, place, shell) {
    this.name = name;
    this.title = visible(name);
    this.shell = shell;
    this.abort = new AbortController();
    this.at = place.query.get("at") ?? "";
    this.wantsLive = place.query.get("live") === "1";
    this.facts = null;
    this.records = []; // displayed records
    this.next = null; // the boundary after them
    this.tail = null;
    this.paused = false;
    this.lost = false; // the last refresh of the stream's properties failed
    this.series = new Series();
    this.sizes = new Series();
    this.build();
    this.keys = {
      "/": () => this.place.select(),
      j: () => this.walk(1),
      k: () => this.walk(-1),
      n: () => this.forth(),
      p: () => this.back(),
      l: () => this.follow(!this.tail),
      " ": () => this.tail && this.pause(!this.paused),
      c: () => this.copyCurl(),
      1: () => this.pane.mode("tree"),
      2: () => this.pane.mode("text"),
      3: () => this.pane.mode("hex"),
      Escape: () => this.leave(),
    };
  }

  build() {
    const button = (name, act, title) => h("button", { type: "button", class: "button", title, on: { click: act } }, name);
    this.chips = h("div", { class: "chips" });
    this.numbers = h("dl", { class: "numbers" });
    this.picture = h("div", { class: "stream-spark" });
    this.place = h("input", {
      id: "place",
      type: "text",
      value: this.at,
      placeholder: "120, an offset, -20, 10m, 2026-11-01T00:00Z",
      autocomplete: "off",
      spellcheck: "false",
    });
    this.state = h("p", { class: "state", role: "status" });
    this.list = h("ol", { class: "records" });
    this.rows = new Rows(this.list);
    this.live = button("Follow", () => this.follow(!this.tail), "Show records as they arrive (l)");
    this.live.id = "follow";
    this.live.setAttribute("aria-pressed", "false");
    this.hold = button("Pause", () => this.pause(!this.paused), "Hold new records (Space)");
    this.hold.id = "pause";
    this.hold.hidden = true;
    this.previous = button("Previous", () => this.back(), "p");
    this.following = button("Next", () => this.forth(), "n");
    const actions = [
      ["Copy", (record) => this.copyRecord(record)],
      ["Copy as curl", (record) => this.copyCurl(record)],
    ];
    this.pane = new Pane(actions, () => this.closePane());
    const go = h(
      "form",
      { class: "goto", on: { submit: (event) => this.jump(event) } },
      h("label", {}, h("span", { class: "label" }, "Go to a record, an offset or a time"), this.place),
      h("button", { type: "submit", class: "button" }, "Go"),
    );
    const buttons = h(
      "div",
      { class: "row" },
      button("First", () => this.goTo({ start: true }), "The first retained record"),
      this.previous,
      this.following,
      button("Last", () => this.goTo({ end: true }), "The newest records"),
      this.live,
      this.hold,
      button("Copy as curl", () => this.copyCurl(), "c"),
    );
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
      h("div", { class: "row between controls" }, go, buttons),
      this.state,
      h("div", { class: "split" }, h("div", { class: "panel scroll", hidden: true }, this.list), this.pane.element),
    );
  }

  start() {
    this.measure();
  }

  /** Start once the stream's properties are known, which may be after a failed first request. */
  async begin() {
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
      if (!known) this.begin();
      else if (this.lost && !this.tail) this.tell(this.records.length ? this.range() : "");
      this.lost = false;
    } catch (error) {
      if (this.abort.signal.aborted) return;
      this.tell(
        error instanceof ApiError && error.status === 404
          ? `The stream “${this.title}” does not exist.`
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
      first.record ? number("First retained", `#${ordinal(first.record)}`, token(first.record, first.byte)) : null,
      number("Next offset", h("code", {}, token(tail.record, tail.byte))),
      segment ? number("Segment", segment, `epoch of the open segment; node ${writer} writes it`) : null,
      segment ? number("Writer", `node ${writer}`) : null,
      number("Incarnation", h("code", {}, incarnation)),
    );
    put(this.picture, sparkline(this.series.rates, { width: 220, height: 44, label: "Records per second, last two minutes" }));
    this.following.disabled = !!this.tail || (this.next !== null && this.next.record >= tail.record);
  }

  // --- pages ----------------------------------------------------------------------------------------------------------------------------

  get pageSize() {
    return isJson(this.facts.contentType) ? JSON_PAGE : RAW_PAGE;
  }

  async goTo(place) {
    if (!this.facts) return;
    this.follow(false);
    const { first, tail } = this.facts;
    const last = (number) => Math.max(first.record, tail.record - number);
    if (place.time !== undefined) return this.load({ time: place.time });
    const record = place.start
      ? first.record
      : place.end
        ? last(this.pageSize)
        : place.last !== undefined
          ? last(place.last)
          : place.record;
    await this.load({ record });
    if (place.end) this.bottom(); // the newest are last
  }

  async load(place) {
    this.busy?.abort();
    this.busy = new AbortController();
    const signal = AbortSignal.any([this.abort.signal, this.busy.signal]);
    try {
      const page = isJson(this.facts.contentType) ? await this.jsonPage(place, signal) : await this.rawPage(place, signal);
      this.show(page.records, page.next);
      this.remember(place);
    } catch (error) {
      if (signal.aborted) return;
      const kept = error instanceof ApiError && error.headers?.get?.("stream-retained-offset");
      this.tell(kept ? `${error.message}: the first retained record is at ${kept}.` : error.message, true);
    }
  }

  async jsonPage(place, signal) {
    const page = await jsonPage(
      this.name,
      place.record === undefined ? { from_time: rfc3339(place.time) } : { offset: token(place.record) },
      PAGE_BYTES,
      signal,
    );
    const records = page.records.slice(0, JSON_PAGE);
    const after = page.records[JSON_PAGE];
    return { records, next: after ? { record: after.number, byte: after.byte } : page.next };
  }

  async rawPage(place, signal) {
    const record = place.record ?? (await rawNumber(this.name, place.time, signal));
    const end = Math.min(record + RAW_PAGE, this.facts.tail.record);
    if (record > this.facts.tail.record) throw new Error(`The stream has ${count(this.facts.tail.record)} records so far.`);
    const numbers = Array.from({ length: Math.max(0, end - record) }, (_, index) => record + index);
    const records = await Promise.all(numbers.map((number) => rawRecord(this.name, number, signal)));
    const last = records.at(-1);
    return { records, next: last ? { record: end, byte: last.byte + last.bytes.length } : this.facts.tail };
  }

  back() {
    if (!this.facts || this.tail) return;
    const begin = this.records[0]?.number ?? this.next?.record ?? 0;
    if (begin > this.facts.first.record) this.load({ record: Math.max(this.facts.first.record, begin - this.pageSize) });
  }

  forth() {
    if (this.next && !this.tail && this.next.record < this.facts.tail.record) this.load({ record: this.next.record });
  }

  jump(event) {
    event.preventDefault();
    const place = parsePlace(this.place.value);
    if (!place) {
      this.tell("Type a record's number (the first is 1), an offset, -20 for the last ones, 10m for ten minutes ago, or a date.", true);
      return;
    }
    this.place.blur();
    this.goTo(place);
  }

  remember(place) {
    const at = place.time !== undefined ? new Date(place.time).toISOString() : place.record === undefined ? "" : String(place.record + 1);
    this.shell.rename(`#/stream/${this.name.split("/").map(encodeURIComponent).join("/")}${at ? `?at=${at}` : ""}`);
  }

  show(records, next) {
    this.records = records;
    this.next = next;
    this.draw();
    const { first, tail } = this.facts;
    this.previous.disabled = !!this.tail || (records[0]?.number ?? next.record) <= first.record;
    this.following.disabled = !!this.tail || next.record >= tail.record;
    if (records.length) this.tell(this.range());
    else
      this.tell(
        tail.record === first.record
          ? "The stream has no records yet. Follow it to see new records."
          : "There are no records after this position yet.",
      );
    this.list.parentElement.scrollTop = 0;
  }

  draw() {
    this.rows.show(
      this.records,
      (record) => `${this.facts.incarnation} ${record.number}`,
      (record) => this.row(record),
    );
    this.list.parentElement.hidden = !this.records.length;
  }

  row(record) {
    const told = record.joined > 1 ? `${count(record.joined)} records` : bytes(record.bytes.length);
    return h(
      "li",
      {},
      h(
        "button",
        { type: "button", class: "record", "data-row": true, on: { click: (event) => this.openRecord(record, event.currentTarget) } },
        h("span", { class: "at" }, `#${ordinal(record.number)}`),
        preview(record, isJson(this.facts.contentType)),
        h("span", { class: "size" }, told),
      ),
    );
  }

  walk(step) {
    const target = this.rows.move(step);
    if (target && !this.pane.element.hidden) target.click();
  }

  openRecord(record, button) {
    for (const other of this.list.querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
    button.setAttribute("aria-current", "true");
    this.pane.show(record, isJson(this.facts.contentType));
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
    if (!this.next || this.facts.tail.record - this.next.record > ROWS_MAX) {
      await this.load({ record: Math.max(this.facts.first.record, this.facts.tail.record - this.pageSize) });
      if (this.abort.signal.aborted || this.tail) return;
    }
    this.tail = new Tail(this.name, this.facts.contentType, this.next ?? this.facts.tail, () => this.schedule());
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
    this.live.setAttribute("aria-pressed", String(following));
    put(this.live, following ? "Following" : "Follow");
    this.hold.hidden = !following;
    this.hold.setAttribute("aria-pressed", String(this.paused));
    put(this.hold, this.paused ? "Resume" : "Pause");
    this.element.classList.toggle("following", following && !this.paused);
    this.previous.disabled = following || !this.facts || (this.records[0]?.number ?? 0) <= this.facts.first.record;
    this.following.disabled = following || !this.facts || (this.next?.record ?? 0) >= this.facts.tail.record;
    if (!following && this.facts && this.next) this.tell(this.records.length ? this.range() : "");
  }

  range() {
    const [first, last] = [this.records[0].number, this.records.at(-1).number];
    const total = count(this.facts.tail.record);
    return first === last ? `Record ${ordinal(first)} of ${total}` : `Records ${ordinal(first)} to ${ordinal(last)} of ${total}`;
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
        this.next = tail.next;
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
    this.tell(words[state] + held + lost, state === "failed");
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

  copyRecord(record) {
    this.shell.copy(new TextDecoder().decode(record.bytes), "The record");
  }

  copyCurl(record) {
    if (!this.facts) return;
    const lines = isJson(this.facts.contentType) ? { Accept: "application/x-ndjson" } : {};
    if (record)
      this.shell.copy(
        curl(streamUrl(this.name, { offset: token(record.number, record.byte), max_bytes: 1 }), { headers: lines }),
        "The command",
      );
    else if (this.tail)
      this.shell.copy(
        curl(streamUrl(this.name, { live: "sse", offset: token(this.tail.next.record, this.tail.next.byte) }), { flags: "-N" }),
        "The command",
      );
    else
      this.shell.copy(
        curl(streamUrl(this.name, { offset: token(this.records[0]?.number ?? this.facts.first.record, this.records[0]?.byte ?? 0) }), {
          headers: lines,
        }),
        "The command",
      );
  }

  close() {
    this.abort.abort();
    this.tail?.stop();
    clearTimeout(this.timer);
  }
}
