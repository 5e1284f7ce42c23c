// Follow streams: turn their events into records, in bounded memory, with pause. A lost connection resumes where it ended.

import { ApiError, events, streamUrl, url } from "./api.js";
import { put } from "./dom.js";
import { parseToken, token } from "./format.js";
import { elements } from "./json.js";
import { fieldsOf, recordOf } from "./whole.js";

const KEPT_RECORDS_MAX = 2000; // while paused; then the oldest are dropped
const KEPT_BYTES_MAX = 16 << 20;
const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 15_000;
const ENDED = new Set(["GONE", "NOT_FOUND", "STREAM_RECREATED", "TRIMMED", "INVALID_NAME", "LIVE_LIMIT"]);
const PLACES_CHARACTERS_MAX = 40_000; // of the offsets in an address: a request's head has at most 64 KiB

/** Mark the buttons `live` and `hold` of a page, and its element: whether it follows (it has a `tail`), and whether it is paused. */
export function markFollowing(view) {
  const following = !!view.tail;
  view.live.setAttribute("aria-pressed", String(following));
  put(view.live, following ? "Following" : "Follow");
  view.hold.hidden = !following;
  view.hold.setAttribute("aria-pressed", String(view.paused));
  put(view.hold, view.paused ? "Resume" : "Pause");
  view.element.classList.toggle("following", following && !view.paused);
}

export class Tail {
  #abort = new AbortController();
  #lastId = "";
  #waiting = []; // received and not yet taken
  #waitingBytes = 0;
  #retry = FIRST_RETRY_MS;

  /**
   * Follow a source. `source.target(lastId)` is where its events behind this one are; `source.read(event)` returns null, or what they amount to: {records, closed}, after which a
   * lost connection goes on behind this event. `changed` is called when records arrive or `state` changes.
   */
  constructor(source, changed) {
    this.source = source;
    this.changed = changed;
    this.state = "connecting"; // live, waiting, closed, failed
    this.reason = "";
    this.skipped = 0;
    this.#run();
  }

  /** Return the records received since the last call. */
  take() {
    const taken = this.#waiting;
    this.#waiting = [];
    this.#waitingBytes = 0;
    return taken;
  }

  get waiting() {
    return this.#waiting.length;
  }

  stop() {
    this.#abort.abort();
  }

  #become(state, reason = "") {
    this.state = state;
    this.reason = reason;
    if (!this.#abort.signal.aborted) this.changed();
  }

  async #run() {
    const { signal } = this.#abort;
    while (!signal.aborted) {
      try {
        await this.#follow(signal);
      } catch (error) {
        if (signal.aborted) return;
        if (error.code === "CURSOR_GONE") {
          this.#lastId = ""; // the source names the places of its streams
          continue;
        }
        if (error instanceof ApiError && (ENDED.has(error.code) || (error.status >= 400 && error.status < 500 && error.status !== 429))) {
          this.#become("failed", error.message);
          return;
        }
        this.#become("waiting", error.message);
        await new Promise((resolve) => setTimeout(resolve, this.#retry));
        this.#retry = Math.min(this.#retry * 2, LAST_RETRY_MS);
        continue;
      }
      if (this.state === "closed") return;
    }
  }

  async #follow(signal) {
    for await (const event of events(this.source.target(this.#lastId), { lastId: this.#lastId, signal })) {
      if (event.event === "error") {
        const { error } = JSON.parse(event.data);
        throw new ApiError(0, String(error.code), String(error.message), new Headers());
      }
      const read = this.source.read(event);
      if (!read) continue;
      this.#lastId = event.id;
      this.#retry = FIRST_RETRY_MS;
      for (const record of read.records) this.#keep(record);
      if (read.closed) {
        this.#become("closed");
        return;
      }
      if (read.records.length || this.state !== "live") this.#become("live");
    }
  }

  #keep(record) {
    this.#waiting.push(record);
    this.#waitingBytes += record.bytes.length;
    while (this.#waiting.length > KEPT_RECORDS_MAX || (this.#waitingBytes > KEPT_BYTES_MAX && this.#waiting.length > 1)) {
      this.#waitingBytes -= this.#waiting.shift().bytes.length;
      this.skipped += 1;
    }
  }
}

/** The events of one stream from the offset `next` on. */
export class OneStream {
  #data = "";

  constructor(name, asJson, next) {
    this.name = name;
    this.asJson = asJson;
    this.next = next;
  }

  target() {
    this.#data = "";
    return streamUrl(this.name, { live: "sse", offset: token(this.next) });
  }

  read(event) {
    if (event.event === "data") this.#data = event.data;
    if (event.event !== "control") return null;
    const control = JSON.parse(event.data);
    const records = this.#data ? elements(this.#data).map((source) => recordOf(source, this.asJson)) : [];
    this.#data = "";
    this.next = parseToken(control.streamNextOffset).record;
    return { records, closed: control.streamClosed };
  }
}

/** The events of many streams from now on. `selection`: {prefix}, {match} or {names}; `matches` tells whether a record is kept. */
export class ManyStreams {
  #json = new Set(); // names of the streams of JSON
  #places = new Map(); // by name, the offset behind its last event
  #target = null; // that the present cursor is of

  constructor(selection, matches) {
    this.selection = selection;
    this.matches = matches;
    this.looked = 0; // records
    this.faults = new Map(); // by name, why a stream cannot be read
  }

  get streams() {
    return this.#places.size;
  }

  target(lastId = "") {
    if (!lastId || !this.#target) this.#target = this.#again();
    return this.#target;
  }

  /** Return the address without a cursor: each stream goes on at its place. */
  #again() {
    const target = liveUrl(this.selection);
    const { names } = this.selection;
    if (!this.#places.size) return target;
    target.searchParams.delete("stream");
    let length = target.href.length;
    for (const [name, place] of this.#places) {
      const text = `${name}@${place.replace(/(?<=^|_)0+(?=\d)/g, "")}`;
      length += encodeURIComponent(text).length + 8;
      if (length > PLACES_CHARACTERS_MAX) break;
      target.searchParams.append("stream", text);
    }
    for (const name of names ?? []) if (!this.#places.has(name)) target.searchParams.append("stream", name);
    return target;
  }

  read(event) {
    if (event.event !== "data" && event.event !== "control") return null;
    const fields = fieldsOf(event.data);
    if (fields.stream === undefined) return { records: [] };
    const name = JSON.parse(fields.stream);
    if (event.event === "control") this.#control(name, JSON.parse(event.data));
    else if (fields.streamNextOffset) this.#places.set(name, JSON.parse(fields.streamNextOffset));
    return { records: event.event === "data" && fields.data ? this.#records(name, fields.data) : [] };
  }

  #control(name, control) {
    if (control.streamNextOffset) this.#places.set(name, control.streamNextOffset);
    if (control.contentType?.split(";")[0].trim().toLowerCase() === "application/json") this.#json.add(name);
    if (control.error) this.faults.set(name, String(control.error.message ?? control.error));
    else this.faults.delete(name);
    if (!control.streamDeleted) return;
    this.#places.delete(name);
    this.#json.delete(name);
  }

  #records(name, data) {
    const all = elements(data).map((source) => Object.assign(recordOf(source, this.#json.has(name)), { stream: name }));
    this.looked += all.length;
    return all.filter(this.matches);
  }
}

/** Return where the events of many streams are, from now on. */
export function liveUrl({ prefix, match, names }) {
  const target = url("v1/live", { offset: "now", prefix, match });
  for (const name of names ?? []) target.searchParams.append("stream", name);
  return target;
}
