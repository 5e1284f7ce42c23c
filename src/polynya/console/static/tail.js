// Follow a stream: turn its events into records, in bounded memory, with pause. A lost connection resumes where it ended.

import { ApiError, live } from "./api.js";
import { parseToken, token } from "./format.js";
import { elements } from "./json.js";
import { recordOf } from "./whole.js";

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

  /** Follow from the offset `next`. `changed` is called when records arrive or `state` changes. */
  constructor(name, asJson, next, changed) {
    this.name = name;
    this.asJson = asJson;
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
    for await (const event of live(this.name, { offset: token(this.next), lastId: this.#lastId, signal })) {
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
    if (data) for (const source of elements(data)) this.#keep(recordOf(source, this.asJson));
    this.next = parseToken(control.streamNextOffset).record;
    this.#retry = FIRST_RETRY_MS;
    if (control.streamClosed) this.#become("closed");
    else if (data || this.state !== "live") this.#become("live");
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
