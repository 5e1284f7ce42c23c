// One subscription: its worker, and the acknowledged offset and lag of each of its streams.

import { actRow } from "./acts.js";
import { askJson, curl, facts, url } from "./api.js";
import { h, put } from "./dom.js";
import { count, duration, instant, parseToken, visible } from "./format.js";
import { curlButton, grid, page, titleOf } from "./page.js";
import { deleteSubscription } from "./subscription_acts.js";
import { ROOT, stateOf, watched, woken } from "./subscriptions.js";

const POLL_MS = 5000;
const LAGS_MAX = 25; // streams whose lag is shown: each costs a request
const SHOWN_MAX = 500;

export function open(place, shell) {
  const id = place.rest;
  const path = `${ROOT}/${encodeURIComponent(id)}`;
  const abort = new AbortController();
  const numbers = h("dl", { class: "numbers" });
  const body = h("tbody", {});
  const note = h("p", { class: "state", role: "status" });
  let timer = 0;
  const heads = [["Stream"], ["Watched by", "type"], ["Acknowledged", "number"], ["End", "number"], ["Lag", "number"]];
  const element = page(
    titleOf(id, "Subscriptions", "#/subscriptions"),
    curlButton(command),
    numbers,
    actRow([["Delete …", () => deleteSubscription(shell, id), "danger"]]),
    note,
    h("h2", {}, "Streams"),
    h("div", { class: "panel scroll" }, grid("nodes", heads, body)),
  );

  function command() {
    shell.copy(curl(url(path)), "The command");
  }

  async function poll() {
    const begun = performance.now();
    try {
      if (!document.hidden) {
        const found = await askJson(path, { limit: SHOWN_MAX }, { signal: abort.signal });
        await draw(found);
        put(note, "");
        note.classList.remove("wrong");
      }
    } catch (error) {
      if (abort.signal.aborted) return;
      put(note, error.status === 404 || error.status === 403 ? error.message : `The subscription cannot be read: ${error.message}. Retrying …`);
      note.classList.add("wrong");
      if (error.status === 404) return;
    }
    timer = setTimeout(poll, Math.max(POLL_MS, 8 * (performance.now() - begun)));
  }

  async function draw(found) {
    const number = (label, value) => h("div", {}, h("dt", {}, label), h("dd", {}, value));
    put(
      numbers,
      number("State", stateOf(found)),
      number("Type", found.type === "webhook" ? "webhook" : "worker"),
      number("Watches", watched(found)),
      number("Wakes", woken(found)),
      number("Worker", visible(found.current_holder ?? "–")),
      number("Lease", duration(found.lease_ttl_ms / 1000)),
      number("Generation", count(found.generation)),
      found.next_attempt_at ? number("Next attempt", instant(found.next_attempt_at)) : null,
      number("Created", instant(found.created_at)),
      found.description ? number("Description", visible(found.description)) : null,
    );
    const tails = await Promise.all(found.streams.slice(0, LAGS_MAX).map((link) => tailOf(link.path)));
    put(body, found.streams.length ? found.streams.map((link, index) => row(link, tails[index])) : h("tr", {}, h("td", { colspan: 5, class: "quiet" }, "No stream matches yet.")));
  }

  /** Return the offset after the last record; null if it cannot be read. */
  async function tailOf(name) {
    try {
      return (await facts(name, abort.signal)).tail.record;
    } catch (error) {
      if (abort.signal.aborted) throw error;
      return null;
    }
  }

  poll();
  return {
    title: visible(id),
    element,
    keys: { c: command, Escape: () => shell.go("#/subscriptions") },
    close: () => {
      abort.abort();
      clearTimeout(timer);
    },
  };
}

function row(link, tail) {
  const acked = parseToken(link.acked_offset)?.record ?? null;
  const cell = (value) => h("td", { class: "number" }, value === null || value === undefined ? "–" : count(value));
  return h(
    "tr",
    {},
    h("td", {}, h("a", { class: "name", href: `#/stream/${encodeURIComponent(link.path)}` }, visible(link.path))),
    h("td", { class: "type" }, link.link_type === "glob" ? "pattern" : "name"),
    cell(acked),
    cell(tail),
    cell(tail === null || tail === undefined || acked === null ? null : Math.max(0, tail - acked)),
  );
}
