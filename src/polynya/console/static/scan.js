// Read many streams backward, merged by time, the newest record first. Memory is bounded: of each stream one page is held. Pure, but for `read`.

import { parseToken } from "./format.js";

const PAGE_BEGIN = 25; // records of the first page of a stream; the pages grow while nothing matches …
const PAGE_MAX = 500; // … up to this number
const LOOKED_MAX = 20_000; // records that one step looks at
const LOOKED_BYTES_MAX = 64 << 20;
const FOUND_BYTES_MAX = 8 << 20;
const GONE = new Set([400, 403, 404, 410, 416]); // of a stream that was deleted, recreated or closed to this token; the others go on

/** The time by which records are merged. */
export function orderTime(record) {
  return record.appendTime ?? record.timestamp ?? 0;
}

/** A stream that is read backward. */
class Source {
  #size = PAGE_BEGIN;
  buffer = []; // the records before `end` that were not taken yet, the newest last

  constructor({ name, first, end, asJson }) {
    this.name = name;
    this.first = first;
    this.end = end; // the records before it are not read yet
    this.asJson = asJson;
    this.fault = null;
  }

  get isEmpty() {
    return !this.buffer.length && this.end > this.first;
  }

  stop() {
    this.buffer = [];
    this.end = this.first;
  }

  /** Read the page before `end`: a shorter one where the records are larger than a page may be. */
  async fill(read) {
    let isCut = false;
    while (this.end > this.first) {
      const begin = Math.max(this.first, this.end - this.#size);
      try {
        const { records, next } = await read(this, begin, this.end - begin);
        if (next < this.end && this.end - begin > 1) {
          this.#size = Math.max(1, next - begin);
          isCut = true;
          continue;
        }
        this.buffer = records.filter((record) => record.offset < this.end);
        this.end = begin;
        if (!isCut) this.#size = Math.min(this.#size * 2, PAGE_MAX);
        return;
      } catch (error) {
        this.refused(error);
      }
    }
  }

  /** Go on behind a trim; give up a stream that is gone. */
  refused(error) {
    if (!GONE.has(error.status)) throw error;
    const kept = parseToken(error.headers?.get?.("stream-retained-offset"));
    if (kept && kept.record > this.first) {
      this.first = kept.record;
      return;
    }
    this.fault = error.message;
    this.stop();
  }
}

/** A search through streams, [{name, first, end, asJson}]. `read(stream, begin, count)` returns {records, next}; `since` is a time in ms, or null. */
export class Scan {
  constructor(streams, read, { since = null } = {}) {
    this.sources = streams.map((stream) => new Source(stream));
    this.read = read;
    this.since = since;
    this.looked = 0; // records, of all steps
    this.found = []; // of the last step, also of one that failed: the next one goes on behind it
  }

  get isOver() {
    return this.sources.every((source) => !source.buffer.length && !source.isEmpty);
  }

  get faults() {
    return this.sources.filter((source) => source.fault).map(({ name, fault }) => ({ name, fault }));
  }

  /**
   * Return up to `most` older records that match, each with its `stream`. One step looks at a bounded number of records, so it may return fewer before the
   * search is over. A failed step can be repeated. `progress` is called after each read.
   */
  async older(most, matches, progress = () => {}) {
    const found = (this.found = []);
    const end = this.looked + LOOKED_MAX;
    let bytes = 0;
    let kept = 0;
    while (found.length < most && this.looked < end && bytes < LOOKED_BYTES_MAX && kept < FOUND_BYTES_MAX) {
      const empty = this.sources.filter((source) => source.isEmpty);
      if (empty.length) {
        await Promise.all(empty.map((source) => source.fill(this.read)));
        progress(this.looked);
        continue;
      }
      const source = this.newest();
      if (!source) break;
      const record = source.buffer.pop();
      this.looked += 1;
      bytes += record.bytes.length;
      if (this.since !== null && record.appendTime !== null && record.appendTime < this.since) source.stop();
      else if (matches(record)) {
        kept += record.bytes.length;
        found.push(Object.assign(record, { stream: source.name }));
      }
    }
    return found;
  }

  newest() {
    let best = null;
    for (const source of this.sources)
      if (source.buffer.length && (!best || orderTime(source.buffer.at(-1)) > orderTime(best.buffer.at(-1)))) best = source;
    return best;
  }
}
