// Follow a stream: turn its events into records, in bounded memory, with pause. A lost connection resumes where it ended.

import { ApiError, isJson, isText, live } from "./api.js";
import { parseToken, token } from "./format.js";
import { elements } from "./json.js";

const KEPT_RECORDS_MAX = 2000; // while paused; then the oldest are dropped
const KEPT_BYTES_MAX = 16 << 20;
const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 15_000;
const ENDED = new Set(["GONE", "NOT_FOUND", "STREAM_RECREATED", "TRIMMED", "INVALID_NAME"]);

export class Tail {
  #abort = new AbortController();
  #lastId = "";
  #waiting = []; // received and not yet taken
  #waitingBytes = 0;
  #retry = FIRST_RETRY_MS;

  /** Follow from the boundary `next` ({record, byte}). `changed` is called when records arrive or `state` changes. */
  constructor(name, contentType, next, changed) {
    this.name = name;
    this.contentType = contentType;
    this.next = next;
    this.changed = changed;
    this.state = "connecting"; // live, waiting, closed, failed
    this.reason = "";
    this.skipped = 0;
    this.paused = false;
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
    let data = "";
    for await (const event of live(this.name, { offset: token(this.next.record, this.next.byte), lastId: this.#lastId, signal })) {
      if (event.event === "data") {
        data = event.data;
      } else if (event.event === "control") {
        this.#control(JSON.parse(event.data), data);
        data = "";
        this.#lastId = event.id;
        if (this.state === "closed") return;
      } else if (event.event === "error") {
        const { error } = JSON.parse(event.data);
        throw new ApiError(0, String(error.code), String(error.message), new Headers());
      }
    }
  }

  #control(control, data) {
    const next = parseToken(control.streamNextOffset);
    if (data) for (const record of this.#records(data, next)) this.#keep(record);
    this.next = next;
    this.#retry = FIRST_RETRY_MS;
    if (control.streamClosed) this.#become("closed");
    else if (data || this.state !== "live") this.#become("live");
  }

  /** Return the records of one event: elements of a JSON array; else one, or several batched ones that cannot be separated. */
  #records(data, next) {
    if (!isJson(this.contentType)) {
      const bytes = isText(this.contentType)
        ? new TextEncoder().encode(data)
        : Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
      return [{ number: this.next.record, byte: this.next.byte, bytes, joined: next.record - this.next.record }];
    }
    const encoder = new TextEncoder();
    const sources = elements(data).map((source) => encoder.encode(source));
    let byte = next.byte - sources.reduce((sum, source) => sum + source.length + 1, 0);
    return sources.map((bytes, index) => {
      const record = { number: next.record - sources.length + index, byte, bytes };
      byte += bytes.length + 1;
      return record;
    });
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
