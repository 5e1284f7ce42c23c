// The snapshots of one stream: where they stand, what they hold, and the state of its reducer now.

import { actRow } from "./acts.js";
import { ask, askJson, curl, facts, isJson } from "./api.js";
import { cli } from "./commands.js";
import { h, put } from "./dom.js";
import { bytes, count, instant, parseToken, streamHash, visible } from "./format.js";
import { curlButton, grid, page } from "./page.js";
import { Pane, PanedView, valueText } from "./record.js";
import { Rows } from "./rows.js";
import { bootstrapUrl, deleteSnapshot, publishSnapshot, snapshotsUrl, snapshotUrl, stateUrl } from "./snapshot_acts.js";

const POLL_MS = 5000;
const BODY_MAX = 1 << 20; // of a snapshot that is shown
const HEADS = [["Record", "number"], ["Records behind", "number"], ["Size", "number"], ["Type", "type"], ["Origin"], ["State"], ["Published", "moment"], ["Act"]];

export function open(place, shell) {
  const view = new SnapshotsView(place.rest, shell);
  view.poll();
  return view;
}

class SnapshotsView extends PanedView {
  constructor(name, shell) {
    super();
    this.name = name;
    this.title = `Snapshots of ${visible(name)}`;
    this.shell = shell;
    this.abort = new AbortController();
    this.stream = null;
    this.build();
    this.keys = { ...this.paneKeys(), c: () => this.copyCurl(), x: () => this.copyCommand(), Escape: () => this.leave() };
  }

  build() {
    const button = (words, act, title) => h("button", { type: "button", class: "button", title, on: { click: act } }, words);
    this.numbers = h("dl", { class: "numbers" });
    this.listNote = h("p", { class: "state", role: "status" }); // of the list: a look replaces it
    this.note = h("p", { class: "state", role: "status" }); // the answer to a click
    this.list = h("tbody", {});
    this.rows = new Rows(this.list);
    this.pane = new Pane([["Copy value", "The value alone", (record) => this.shell.copy(valueText(record), "The value")]], () => this.closePane());
    const publish = ["Publish …", () => publishSnapshot(this.shell, this.name, this.stream, () => this.poll()), "primary"];
    this.box = h("div", { class: "panel scroll", hidden: true }, grid("nodes snapshots", HEADS, this.list));
    this.element = page(
      h("div", {}, h("p", { class: "trail" }, h("a", { href: "#/streams" }, "Streams"), " / ", h("a", { href: streamHash(this.name), class: "name" }, visible(this.name))), h("h1", { id: "title" }, "Snapshots")),
      [button("Copy command", () => this.copyCommand(), "polynya snapshot ls … (x)"), curlButton(() => this.copyCurl())],
      this.numbers,
      h(
        "div",
        { class: "row" },
        actRow([publish], new Promise((resolve) => (this.onKnown = resolve))),
        button("State now", () => this.showState(), "The state of all records, as the stream's reducer computes it"),
        button("Copy bootstrap", () => this.shell.copy(curl(bootstrapUrl(this.name), { flags: "-sN" }), "The request"), "The newest snapshot, the records behind it, and new ones as they arrive"),
      ),
      this.listNote,
      this.note,
      h("div", { class: "split" }, this.box, this.pane.element),
    );
    this.element.classList.add("topic");
  }

  async poll() {
    clearTimeout(this.timer);
    const begun = performance.now();
    try {
      if (!document.hidden) await this.read();
    } catch (error) {
      if (this.abort.signal.aborted) return;
      tell(this.listNote, error.status === 404 ? `The stream “${visible(this.name)}” does not exist.` : `The snapshots cannot be listed: ${error.message}. Retrying …`, true);
      if (error.status === 404) return;
    }
    if (!this.abort.signal.aborted) this.timer = setTimeout(() => this.poll(), Math.max(POLL_MS, 8 * (performance.now() - begun)));
  }

  async read() {
    const { signal } = this.abort;
    this.stream = await facts(this.name, signal);
    const found = await askJson(snapshotsUrl(this.name).href, {}, { signal });
    const snapshots = found.snapshots.sort((one, other) => parseToken(other.offset).record - parseToken(one.offset).record);
    const { first, tail } = this.stream;
    const number = (label, value) => h("div", {}, h("dt", {}, label), h("dd", {}, value));
    const newest = snapshots[0] ? parseToken(snapshots[0].offset) : null;
    put(
      this.numbers,
      number("Snapshots", count(snapshots.length)),
      number("Bytes", bytes(snapshots.reduce((sum, each) => sum + each.bytes, 0))),
      number("Newest at record", newest ? count(newest.record) : "–"),
      number("Records behind it", newest ? count(tail.record - newest.record) : "–"),
      number("First retained record", count(first.record)),
    );
    this.rows.show(snapshots, (each) => `${this.stream.incarnation} ${each.offset} ${each.origin}`, (each) => this.row(each), (element, each) => this.refresh(element, each, newest));
    this.box.hidden = !snapshots.length;
    tell(this.listNote, snapshots.length ? "" : "The stream has no snapshots yet. A client publishes one, or a reducer does.");
    this.onKnown();
  }

  row(each) {
    const place = parseToken(each.offset);
    const opened = (event) => this.showBody(each, event.currentTarget);
    return h(
      "tr",
      {},
      h("th", { scope: "row", class: "number" }, h("button", { type: "button", class: "link", "data-row": true, title: each.offset, on: { click: opened } }, count(place.record))),
      h("td", { class: "number" }),
      h("td", { class: "number" }, bytes(each.bytes)),
      h("td", { class: "type" }, visible(each.content_type)),
      h("td", {}, originOf(each)),
      h("td", {}),
      h("td", { class: "moment" }, instant(each.created_at)),
      h("td", {}, actRow([["Delete …", () => deleteSnapshot(this.shell, this.name, each, () => this.poll()), "danger small"]])),
    );
  }

  refresh(element, each, newest) {
    const place = parseToken(each.offset);
    put(element.children[1], count(this.stream.tail.record - place.record));
    put(element.children[5], stateOf(each, place.record === newest.record));
  }

  async showBody(each, button) {
    try {
      const answer = await ask(snapshotUrl(this.name, each.offset, { origin: each.origin }), { headers: { Range: `bytes=0-${BODY_MAX - 1}` }, signal: this.abort.signal });
      const body = new Uint8Array(await answer.arrayBuffer());
      const facts = [["Published", instant(each.created_at)], ["Size", bytes(each.bytes)], ["Origin", originOf(each)], ["Digest", h("code", {}, visible(each.digest))]];
      this.openRecord(recordLike(body, each.content_type, facts), button);
      put(this.pane.title, `Snapshot at record ${count(parseToken(each.offset).record)}`);
      tell(this.note, body.length < each.bytes ? `The first ${bytes(BODY_MAX)} of ${bytes(each.bytes)}.` : "");
    } catch (error) {
      if (!this.abort.signal.aborted) tell(this.note, `The snapshot cannot be read: ${error.message}`, true);
    }
  }

  async showState() {
    try {
      const answer = await ask(stateUrl(this.name), { signal: this.abort.signal });
      const body = new Uint8Array(await answer.arrayBuffer());
      const at = parseToken(answer.headers.get("stream-next-offset"))?.record ?? 0;
      const facts = [["Reducer", visible(answer.headers.get("stream-reducer") ?? "")], ["Size", bytes(body.length)]];
      this.pane.show(recordLike(body.slice(0, BODY_MAX), answer.headers.get("content-type") ?? "", facts));
      put(this.pane.title, `State at record ${count(at)}`);
      this.element.classList.add("with-pane");
      tell(this.note, "");
    } catch (error) {
      if (!this.abort.signal.aborted) tell(this.note, error.code === "NO_REDUCER" ? "No reducer is bound to this stream. The page Reducers binds one to a pattern." : `The state cannot be read: ${error.message}`, true);
    }
  }

  leave() {
    if (!this.pane.element.hidden) this.closePane();
    else this.shell.go(streamHash(this.name));
  }

  copyCommand() {
    this.shell.copy(cli("snapshot ls", [this.name]), "The command");
  }

  copyCurl() {
    this.shell.copy(curl(snapshotsUrl(this.name)), "The command");
  }

  close() {
    this.abort.abort();
    clearTimeout(this.timer);
  }
}

function tell(note, text, wrong = false) {
  put(note, text);
  note.classList.toggle("wrong", wrong);
}

/** Return a body as the pane of records takes it. */
function recordLike(body, contentType, facts) {
  return { bytes: body, absent: false, asJson: isJson(contentType), facts };
}

function originOf({ origin }) {
  return origin ? visible(origin) : "clients";
}

function stateOf(each, isNewest) {
  const [words, kind] = each.superseded ? ["superseded", "warn"] : isNewest ? ["newest", "good"] : ["kept", ""];
  return [h("span", { class: `mark ${kind}` }, words), each.behind_trim ? [" ", h("span", { class: "mark warn", title: "Records before it are trimmed" }, "behind the trim")] : null];
}
