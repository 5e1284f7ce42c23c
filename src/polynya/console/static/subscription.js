// One subscription: its worker, and the acknowledged offset and lag of each of its streams. Or one group
// of workers: its lanes.

import { actRow } from "./acts.js";
import { askJson, curl, facts, url } from "./api.js";
import { h, put } from "./dom.js";
import { count, duration, instant, parseToken, visible } from "./format.js";
import { curlButton, grid, page, titleOf } from "./page.js";
import { deleteSubscription, resetSubscription, subscriptionHash } from "./subscription_acts.js";
import { ROOT, stateOf, watched, woken, workersOf } from "./subscriptions.js";

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
  let lanes = [];
  let onKnown = null;
  const reset = ["Reset …", () => resetSubscription(shell, id, lanes, poll), "danger"];
  const acts = h("div", {}, actRow([reset, ["Delete …", () => deleteSubscription(shell, id), "danger"]], new Promise((resolve) => (onKnown = resolve))));
  const below = h("h2", {}, "Streams");
  const table = h("div", { class: "panel scroll" }, grid("nodes", heads, body));
  const element = page(
    titleOf(id, "Subscriptions", "#/subscriptions"),
    curlButton(command),
    numbers,
    acts,
    note,
    below,
    table,
  );

  function command() {
    shell.copy(curl(url(path)), "The command");
  }

  async function poll() {
    clearTimeout(timer);
    const begun = performance.now();
    try {
      if (!document.hidden) {
        const group = await groupOf(id);
        if (group) drawGroup(group);
        else await draw(await askJson(path, { limit: SHOWN_MAX }, { signal: abort.signal }));
        onKnown();
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

  /** Return the group of workers with this name; null if a subscription has it, or nothing. */
  async function groupOf(name) {
    try {
      const { subscriptions } = await askJson(ROOT, { prefix: name, limit: 1, groups: "true" }, { signal: abort.signal });
      if (subscriptions.some((each) => each.id === name && each.group === null)) return null;
      return subscriptions.find((each) => each.group === name) ?? null;
    } catch (error) {
      if (error.status === 403) return null; // the token may see this subscription only
      throw error;
    }
  }

  function drawGroup(group) {
    put(
      numbers,
      number("State", stateOf(group)),
      number("Watches", watched(group)),
      number("Wakes", woken(group)),
      number("Lag", group.lag === null ? "–" : count(group.lag)),
      number("Lanes", count(group.lanes.length)),
      number("Workers", workersOf(group)),
      number("Lease", duration(group.lease_ttl_ms / 1000)),
      group.dead_letter_stream ? number("Dead letters", h("a", { class: "name", href: `#/stream/${encodeURIComponent(group.dead_letter_stream)}` }, visible(group.dead_letter_stream))) : null,
      number("Created", instant(group.created_at)),
    );
    if (!lanes.length) {
      put(acts, actRow([reset])); // a lane is deleted on its own page
      put(below, "Lanes");
      put(table, grid("nodes lanes", [["Lane"], ["State"], ["Worker"], ["Kept by"], ["Lag", "number"]], body));
    }
    lanes = group.lanes.map((lane) => lane.id);
    put(body, group.lanes.map(laneRow));
  }

  async function draw(found) {
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

function number(label, value) {
  return h("div", {}, h("dt", {}, label), h("dd", {}, value));
}

function laneRow(lane) {
  return h(
    "tr",
    {},
    h("td", {}, h("a", { class: "name", href: subscriptionHash(lane.id) }, visible(lane.id))),
    h("td", {}, stateOf(lane)),
    h("td", {}, visible(lane.current_holder ?? "–")),
    h("td", {}, visible(lane.keeper ?? "–")),
    h("td", { class: "number" }, lane.lag === null ? "–" : count(lane.lag)),
  );
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
