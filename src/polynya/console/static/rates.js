// Rates of polled positions, computed in the client; the server keeps no history for it. Pure.

/** The last `size` samples of one number. `rate` and `rates` apply to counters and have no value across a reset (a restarted server). */
export class Series {
  #samples = [];

  constructor(size = 60) {
    this.size = size;
  }

  add(at, value) {
    const last = this.#samples.at(-1);
    if (last && at <= last.at) this.#samples.pop();
    this.#samples.push({ at, value });
    if (this.#samples.length > this.size) this.#samples.shift();
  }

  get length() {
    return this.#samples.length;
  }

  get last() {
    return this.#samples.at(-1)?.value ?? null;
  }

  /** Values of a gauge, oldest first. */
  get values() {
    return this.#samples.map((sample) => sample.value);
  }

  /** Rates of a counter per second between neighbours, oldest first. */
  get rates() {
    return this.#samples.slice(1).map((sample, index) => {
      const before = this.#samples[index];
      return Math.max(0, ((sample.value - before.value) * 1000) / (sample.at - before.at));
    });
  }

  /** Rate per second over about the last `seconds`; null before there are two samples. */
  rate(seconds = 10) {
    const last = this.#samples.at(-1);
    if (!last || this.#samples.length < 2) return null;
    let first = this.#samples.at(-2);
    for (let index = this.#samples.length - 3; index >= 0; index -= 1) {
      const sample = this.#samples[index];
      if (sample.value > first.value || last.at - sample.at > seconds * 1000 + 500) break;
      first = sample;
    }
    if (first.value > last.value) return null;
    return ((last.value - first.value) * 1000) / (last.at - first.at);
  }
}

/** Series by key; `keep` drops all keys but the given ones. */
export class Book {
  #series = new Map();

  constructor(size = 60) {
    this.size = size;
  }

  get(key) {
    let series = this.#series.get(key);
    if (!series) this.#series.set(key, (series = new Series(this.size)));
    return series;
  }

  get count() {
    return this.#series.size;
  }

  keep(keys) {
    const kept = new Set(keys);
    for (const key of this.#series.keys()) if (!kept.has(key)) this.#series.delete(key);
  }
}
