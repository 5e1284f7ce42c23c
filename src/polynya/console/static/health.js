// The node's health, identity, and metrics with their rates.

import { ask, askJson, curl, url } from "./api.js";
import { h, put } from "./dom.js";
import { bytes, compact, count, duration, instant, visible } from "./format.js";
import { parseMetrics } from "./metrics.js";
import { curlButton, grid, page } from "./page.js";
import { Book } from "./rates.js";
import { sparkline } from "./spark.js";

const POLL_MS = 2000;
const WAIT_MS = 3000; // a node that is silent for so long counts as down
const CARDS = [
  { title: "Appends", metric: "polynya_http_appends_total", kind: "rate", unit: "/s" },
  { title: "Appended bytes", metric: "polynya_http_append_bytes_total", kind: "byterate" },
  { title: "Responses", metric: "polynya_http_responses_total", kind: "rate", unit: "/s" },
  { title: "Live readers", metric: "polynya_live_readers", kind: "gauge" },
  { title: "Streams", metric: "polynya_streams", kind: "gauge" },
  { title: "Unflushed", metric: "polynya_hot_bytes", kind: "bytes" },
  { title: "Memory", metric: "polynya_process_resident_bytes", kind: "bytes" },
  { title: "CPU", metric: "polynya_process_cpu_seconds_total", kind: "percent" },
  { title: "Event-loop lag", metric: "polynya_loop_lag_seconds", kind: "seconds" },
  { title: "Connections", metric: "polynya_http_connections", kind: "gauge" },
  { title: "Journal on disk", metric: "polynya_journal_disk_bytes", kind: "bytes" },
  { title: "Packs", metric: "polynya_packs", kind: "gauge" },
];

export function open(place, shell) {
  const abort = new AbortController();
  const book = new Book();
  const filter = h("input", { type: "search", id: "metric", placeholder: "flush, http, …", autocomplete: "off", spellcheck: "false" });
  const verdict = h("div", { class: "verdict" });
  const cards = h("div", { class: "cards" });
  const node = h("dl", { class: "numbers" });
  const members = h("div", {});
  const body = h("tbody", {});
  const note = h("p", { class: "state", role: "status" });
  let samples = [];
  let timer = 0;
  const element = page(
    "Health",
    curlButton(command),
    verdict,
    node,
    members,
    note,
    h("h2", {}, "Figures"),
    cards,
    h(
      "div",
      { class: "head" },
      h("h2", {}, "Metrics"),
      h("label", { class: "search" }, h("span", { class: "label" }, "Filter metrics"), filter, h("kbd", {}, "/")),
    ),
    h("div", { class: "panel scroll" }, grid("metrics", [["Metric"], ["Value", "number"], ["Per second", "number"]], body)),
  );
  filter.addEventListener("input", list);

  function command() {
    shell.copy(curl(url("metrics")), "The command");
  }

  async function poll() {
    if (!document.hidden) {
      const faults = await Promise.all([ready().catch(unknown), guarded(who), guarded(measure)]);
      if (abort.signal.aborted) return;
      put(note, faults.find(Boolean) ?? "");
    }
    timer = setTimeout(poll, POLL_MS);
  }

  /** Return the words of a failure, or null. */
  async function guarded(work) {
    try {
      await work();
      return null;
    } catch (error) {
      return error.status === 403 ? `This token has no access: ${error.message}` : `The node's health cannot be read: ${error.message}. Retrying …`;
    }
  }

  /** Show no verdict of an earlier moment when the node does not tell its health. */
  function unknown(error) {
    if (!abort.signal.aborted) put(verdict, h("p", { class: "big bad" }, error.status ? "Unknown" : "Down"));
    return guarded(() => Promise.reject(error));
  }

  async function ready() {
    const answer = await ask(url("readyz", { verbose: "1" }), { signal: abort.signal, allow: [503], wait: WAIT_MS });
    const lines = (await answer.text()).trim().split("\n");
    put(
      verdict,
      h("p", { class: `big ${answer.ok ? "good" : "bad"}` }, answer.ok ? "Ready" : "Not ready"),
      h(
        "ul",
        { class: "checks" },
        lines
          .slice(0, -1)
          .map((line) =>
            h("li", { class: line.startsWith("[+]") ? "good" : line.startsWith("[!]") ? "warn" : "bad" }, visible(line.slice(4))),
          ),
      ),
    );
  }

  async function who() {
    const told = await askJson("v1/node", {}, { signal: abort.signal });
    const number = (label, value) => h("div", {}, h("dt", {}, label), h("dd", {}, value));
    put(
      node,
      number("Version", visible(told.commit ? `${told.version} (${told.commit})` : told.version)),
      number("Cores", count(told.cores)),
      number("Groups", count(told.groups)),
      number("Object store", visible(told.objects)),
      number(
        "Ports",
        Object.entries(told.ports)
          .map(([name, port]) => `${name} ${port}`)
          .join(", "),
      ),
      number("Cluster", h("code", {}, visible(told.cluster))),
    );
    if (told.node) await others().catch((error) => error.status === 403 || Promise.reject(error)); // admins only
  }

  async function others() {
    const told = await askJson("v1/cluster", {}, { signal: abort.signal });
    const moving = told.groups.filter((group) => String(group.voters) !== String(group.goal)).length;
    const zoned = told.nodes.some((each) => each.zone);
    const row = (each) =>
      h(
        "tr",
        {},
        h("td", {}, `${each.id}`, each.role === "reader" ? " (read replica)" : null, each.id === told.node ? " (this node)" : null),
        h("td", {}, visible(each.http)),
        zoned ? h("td", {}, visible(each.zone)) : null,
        h("td", {}, stateOf(each)),
        h("td", {}, visible(each.release ?? "")),
        h("td", { class: "number" }, count(each.leader_of)),
        h("td", { class: "number" }, count(each.replicas)),
      );
    const heads = [["Node"], ["URL"], ...(zoned ? [["Zone"]] : []), ["State"], ["Release"], ["Leader of", "number"], ["Replicas", "number"]];
    const said = (lines, kind) => (lines ?? []).map((line) => h("li", { class: kind }, visible(line)));
    put(members, [
      h("h2", {}, moving ? `Nodes (${count(moving)} ${moving === 1 ? "group" : "groups"} moving)` : "Nodes"),
      h("ul", { class: "checks cluster" }, said(told.problems, "bad"), said(told.notes, "warn")),
      h("div", { class: "panel scroll" }, grid("nodes", heads, h("tbody", {}, told.nodes.map(row)))),
    ]);
  }

  /** Return the state with the words of `polynya cluster status`. */
  function stateOf(each) {
    const condition = each.condition ?? each.state; // an older release has no condition
    const state = condition === "active" ? "" : visible(condition);
    if (each.up) return state || "up";
    return h("span", { class: "mark warn" }, state ? `${state}, down` : "down");
  }

  async function measure() {
    const answer = await ask(url("metrics"), { signal: abort.signal });
    const now = performance.now();
    samples = parseMetrics(await answer.text());
    for (const sample of samples) book.get(sample.name + sample.labels).add(now, sample.value);
    for (const card of CARDS) book.get(`card ${card.metric}`).add(now, sum(card.metric));
    book.keep([...samples.map((sample) => sample.name + sample.labels), ...CARDS.map((card) => `card ${card.metric}`)]);
    put(cards, CARDS.map(cardOf));
    list();
  }

  function sum(metric) {
    return samples.reduce((total, sample) => (sample.name === metric ? total + sample.value : total), 0);
  }

  function cardOf(card) {
    const series = book.get(`card ${card.metric}`);
    const counted = card.kind === "rate" || card.kind === "byterate" || card.kind === "percent";
    const value = counted ? series.rate() : series.last;
    return h(
      "div",
      { class: "card" },
      h("h3", {}, card.title),
      h("p", { class: "value" }, value === null ? "…" : worded(value, card)),
      sparkline(counted ? series.rates : series.values, { label: `${card.title}, last two minutes`, width: 160, height: 34 }),
    );
  }

  function list() {
    const wanted = filter.value.trim().toLowerCase();
    const found = samples.filter((sample) => !wanted || `${sample.name}${sample.labels} ${sample.help}`.toLowerCase().includes(wanted));
    put(body, found.map(rowOf));
  }

  function rowOf(sample) {
    const rate = sample.kind === "counter" ? book.get(sample.name + sample.labels).rate() : null;
    const value =
      sample.name.endsWith("_bytes") || sample.name.endsWith("_bytes_total")
        ? bytes(sample.value)
        : sample.name.endsWith("_start_seconds")
          ? instant(sample.value * 1000)
          : Number.isInteger(sample.value) || Math.abs(sample.value) >= 10_000
            ? count(sample.value)
            : String(Number(sample.value.toPrecision(4)));
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, h("code", {}, visible(sample.name + sample.labels)), h("span", { class: "help" }, visible(sample.help))),
      h("td", { class: "number", title: String(sample.value) }, value),
      h("td", { class: "number" }, rate === null ? "" : rate === 0 ? "–" : compact(rate)),
    );
  }

  poll();
  return {
    title: "Health",
    element,
    keys: { "/": () => filter.select() ?? filter.focus(), c: command },
    close: () => {
      abort.abort();
      clearTimeout(timer);
    },
  };
}

function worded(value, card) {
  if (card.kind === "bytes") return bytes(value);
  if (card.kind === "byterate") return `${bytes(value)}/s`;
  if (card.kind === "percent") return `${(value * 100).toFixed(value < 0.1 ? 1 : 0)} %`;
  if (card.kind === "seconds") return duration(value);
  return `${compact(value)}${card.unit ?? ""}`;
}
