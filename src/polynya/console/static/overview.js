// The overview: health and what needs attention, rates, the last 24 hours, storage by tier, the busiest streams, the map of the cluster.

import { ask, askJson, curl, url } from "./api.js";
import { chart } from "./charts.js";
import { clusterMap } from "./clustermap.js";
import { h, put } from "./dom.js";
import { bytes, compact, count, duration, parseToken, streamHash, visible } from "./format.js";
import { parseMetrics } from "./metrics.js";
import { curlButton, grid, page } from "./page.js";
import { Book } from "./rates.js";

const POLL_MS = 5000;
const RECENT_MS = 60_000;
const WAIT_MS = 3000;
const DAY_MS = 24 * 3_600_000;
const SPAN_MS_MIN = 900_000; // of the charts of a node that started lately
const STREAMS_MAX = 1000; // of which the busiest are looked for
const BUSIEST = 8;
const ATTENTION_MAX = 30;

const RATE = (value) => `${compact(Number(value.toPrecision(3)))}/s`;
const BYTE_RATE = (value) => `${bytes(value)}/s`;
const CHARTS = [
  ["Appends", [["", "appends"]], RATE],
  ["Appended bytes", [["", "append_bytes"]], BYTE_RATE],
  ["Append latency", [["p50", "append_p50"], ["p99", "append_p99"]], duration],
  ["Journal write, mean", [["", "write_seconds"]], duration],
  ["Requests", [["HTTP", "responses"], ["Kafka", "kafka_requests"]], RATE],
  ["Server errors", [["", "errors"]], RATE],
  ["Flushed bytes", [["", "flush_bytes"]], BYTE_RATE],
  ["Requests to the store", [["", "store_requests"]], RATE],
  ["Memory", [["", "memory"]], bytes],
  ["CPU", [["", "cpu"]], (value) => `${(value * 100).toFixed(value < 0.1 ? 1 : 0)} %`],
  ["Connections", [["", "connections"]], (value) => count(value)],
  ["Lag of consumer groups", [["", "group_lag"]], (value) => count(value)],
];
const KINDS = ["first", "second"];
const TIERS = [
  ["Memory", "polynya_hot_bytes", "records that are not in the object store yet"],
  ["Journal", "polynya_journal_disk_bytes", "on the local disk"],
  ["Cache", "polynya_cache_bytes", "blocks of the object store on the local disk"],
  ["Disk", "polynya_disk_free_bytes", "free on the disk of the data folder"],
];

export function open(place, shell) {
  const abort = new AbortController();
  const book = new Book();
  const verdict = h("div", { class: "verdict" });
  const attention = h("ul", { class: "attention" });
  const numbers = h("dl", { class: "numbers" });
  const tiers = h("div", { class: "cards" });
  const trends = h("div", { class: "trends" }, h("p", { class: "quiet" }, "Loading …"));
  const busiest = h("tbody", {});
  const noStreams = h("p", { class: "quiet", role: "status", hidden: true });
  const map = h("div", {});
  const note = h("p", { class: "state", role: "status" });
  let timer = 0;
  let asked = -Infinity; // when the figures of the day were read
  const element = page(
    "Overview",
    curlButton(command),
    verdict,
    attention,
    note,
    numbers,
    h("h2", {}, "Last 24 hours"),
    trends,
    h("h2", {}, "Storage"),
    tiers,
    h("h2", {}, "Busiest streams"),
    h("div", { class: "panel scroll" }, grid("nodes", [["Stream"], ["Bytes/s", "number"], ["Records/s", "number"], ["Records", "number"]], busiest), noStreams),
    map,
  );

  function command() {
    shell.copy(curl(url("v1/node/recent")), "The command");
  }

  async function poll() {
    const begun = performance.now();
    if (!document.hidden) {
      const faults = await Promise.all([health(), part("metrics", measure), part("figures of the day", recent), part("streams", streams), cluster()]);
      if (abort.signal.aborted) return;
      put(note, faults.find(Boolean) ?? "");
    }
    timer = setTimeout(poll, Math.max(POLL_MS, 8 * (performance.now() - begun)));
  }

  /** Return the words of a failure, or null. */
  async function part(what, work) {
    try {
      await work();
      return null;
    } catch (error) {
      if (abort.signal.aborted) return null;
      const words = error.status === 403 ? `This token has no access to the ${what}: ${error.message}` : `The ${what} cannot be read: ${error.message}. Retrying …`;
      if (work === recent && asked === -Infinity) put(trends, h("p", { class: "quiet" }, words));
      return words;
    }
  }

  // --- health -------------------------------------------------------------------------------------------------------------------------

  async function health() {
    let words = "Down";
    let good = false;
    let told = { failed: [], warnings: [], unsafe: [] };
    try {
      const answer = await ask(url("health"), { signal: abort.signal, allow: [503], wait: WAIT_MS });
      told = await answer.json();
      good = answer.ok;
      words = { pass: "Healthy", warn: "Healthy, with warnings", fail: "Not ready" }[told.status] ?? "Unknown";
    } catch (error) {
      if (abort.signal.aborted) return null;
      words = error.status ? "Unknown" : "Down";
    }
    put(verdict, h("p", { class: `big ${good ? "good" : "bad"}` }, words));
    const [tables, subscriptions] = await Promise.all([failedTables(), failedSubscriptions()]);
    const found = [
      ...told.failed.map((each) => ["bad", `Core ${each.core}, ${each.check}: ${each.reason}`, "#/health"]),
      ...told.warnings.map((each) => ["warn", `Core ${each.core}, ${each.check}: ${each.reason}`, "#/health"]),
      ...told.unsafe.map((line) => ["warn", line, "#/health"]),
      ...tables,
      ...subscriptions,
    ];
    put(
      attention,
      found.slice(0, ATTENTION_MAX).map(([kind, line, href]) => h("li", { class: kind }, h("a", { href }, visible(line)))),
      found.length > ATTENTION_MAX ? h("li", { class: "warn" }, `and ${count(found.length - ATTENTION_MAX)} more`) : null,
      found.length ? null : h("li", { class: "good" }, good ? "Nothing needs attention." : "The node told no reason."),
    );
    return null;
  }

  async function failedTables() {
    try {
      const { tables } = await askJson("v1/tables", {}, { signal: abort.signal });
      return tables.flatMap((table) => {
        const href = `#/table/${encodeURIComponent(table.name)}`;
        if (table.fault) return [["bad", `Table ${table.name}: ${table.fault}`, href]];
        if (table.ranges_aside) return [["warn", `Table ${table.name}: ${count(table.ranges_aside)} ranges are set aside`, href]];
        return table.behind_seconds > 3600 ? [["warn", `Table ${table.name} is ${duration(table.behind_seconds)} behind its streams`, href]] : [];
      });
    } catch {
      return []; // a token may see streams alone
    }
  }

  async function failedSubscriptions() {
    try {
      const { subscriptions } = await askJson("v1/stream/__ds/subscriptions", { limit: 500 }, { signal: abort.signal });
      return subscriptions.filter((each) => each.status === "failed").map((each) => ["warn", `Subscription ${each.id}: its webhook fails`, `#/subscription/${encodeURIComponent(each.id)}`]);
    } catch {
      return [];
    }
  }

  // --- figures ------------------------------------------------------------------------------------------------------------------------

  async function measure() {
    const answer = await ask(url("metrics"), { signal: abort.signal });
    const samples = parseMetrics(await answer.text());
    const now = performance.now();
    const sum = (metric) => samples.reduce((total, sample) => (sample.name === metric ? total + sample.value : total), 0);
    const rate = (...metrics) => {
      const series = book.get(metrics[0]);
      series.add(now, metrics.reduce((total, metric) => total + sum(metric), 0));
      return series.rate();
    };
    const number = (label, value) => h("div", {}, h("dt", {}, label), h("dd", {}, value));
    const appends = rate("polynya_http_appends_total", "polynya_kafka_batches_total");
    const size = rate("polynya_http_append_bytes_total", "polynya_kafka_batch_bytes_total");
    put(
      numbers,
      number("Appends", appends === null ? "…" : RATE(appends)),
      number("Appended bytes", size === null ? "…" : BYTE_RATE(size)),
      number("Live readers", count(sum("polynya_live_readers"))),
      number("Streams", count(sum("polynya_streams"))),
      number("Connections", count(sum("polynya_http_connections") + sum("polynya_kafka_connections"))),
      number("Cores up", `${count(sum("polynya_cores_up"))} of ${count(sum("polynya_cores"))}`),
      number("Packs", count(sum("polynya_packs"))),
    );
    const cards = TIERS.map(([title, metric, words]) => h("div", { class: "card" }, h("h3", {}, title), h("p", { class: "value" }, bytes(sum(metric))), h("p", { class: "help" }, words)));
    const stored = samples.filter((sample) => sample.name === "polynya_store_bytes_total" && sample.labels.includes('direction="up"'));
    cards.push(h("div", { class: "card" }, h("h3", {}, "Object store"), h("p", { class: "value" }, bytes(stored.reduce((total, sample) => total + sample.value, 0))), h("p", { class: "help" }, `stored since the start; ${count(sum("polynya_packs"))} packs are known`)));
    put(tiers, cards);
  }

  async function recent() {
    if (performance.now() - asked < RECENT_MS) return;
    const told = await askJson("v1/node/recent", {}, { signal: abort.signal });
    if (!told.times_ms.length) {
      put(trends, h("p", { class: "quiet" }, "The first figures come some seconds after the node's start."));
      return;
    }
    asked = performance.now();
    const span = Math.min(DAY_MS, Math.max(SPAN_MS_MIN, told.times_ms.at(-1) - told.times_ms[0]));
    const shown = CHARTS.filter(([, lines]) => lines.some(([, name]) => told.series[name]?.some((value) => value !== null)));
    put(
      trends,
      shown.map(([title, lines, spell]) => {
        const drawn = lines.map(([name, series], index) => [name, told.series[series] ?? [], KINDS[index]]);
        return chart(title, told.times_ms, drawn, { spell, step: told.step_seconds, span });
      }),
    );
  }

  async function streams() {
    const now = performance.now();
    const { streams: found } = await askJson("v1/streams", { limit: STREAMS_MAX }, { signal: abort.signal });
    const key = (entry) => `stream ${entry.incarnation}`;
    const rows = found.map((entry) => {
      const [tail, first] = [parseToken(entry.next_offset), parseToken(entry.retained_offset) ?? { record: 0, byte: 0 }];
      const [records, size] = [book.get(`${key(entry)} r`), book.get(`${key(entry)} b`)];
      records.add(now, tail.record);
      size.add(now, tail.byte);
      return { entry, isNew: records.rate(30) === null, held: tail.record - first.record, records: records.rate(30) ?? 0, size: size.rate(30) ?? 0 };
    });
    const busy = rows.filter((row) => row.records > 0).sort((one, other) => other.size - one.size);
    put(busiest, busy.slice(0, BUSIEST).map(streamRow));
    noStreams.hidden = busy.length > 0;
    const isFirst = found.length > 0 && rows.every((row) => row.isNew);
    put(noStreams, isFirst ? "Measuring …" : found.length ? `No stream has new records${found.length === STREAMS_MAX ? ` among the first ${count(STREAMS_MAX)}` : ""}.` : "There are no streams yet.");
  }

  async function cluster() {
    try {
      const told = await askJson("v1/cluster", {}, { signal: abort.signal });
      const said = (lines, kind) => (lines ?? []).map((line) => h("li", { class: kind }, visible(line)));
      put(map, told.nodes.length ? [h("h2", {}, "Cluster"), h("ul", { class: "checks cluster" }, said(told.problems, "bad"), said(told.notes, "warn")), clusterMap(told)] : "");
    } catch {
      put(map, ""); // a token without admin sees no map
    }
    return null;
  }

  poll();
  return {
    title: "Overview",
    element,
    keys: { c: command },
    close: () => {
      abort.abort();
      clearTimeout(timer);
    },
  };
}

function streamRow({ entry, held, records, size }) {
  const number = (value) => h("td", { class: "number" }, value);
  return h("tr", {}, h("td", {}, h("a", { class: "name", href: streamHash(entry.name) }, visible(entry.name))), number(bytes(size)), number(compact(records)), number(count(held)));
}
