// The subscriptions: what they watch, whom they wake, and whether their work is held or fails.

import { actRow } from "./acts.js";
import { askJson, curl, url } from "./api.js";
import { h, put } from "./dom.js";
import { count, instant, visible } from "./format.js";
import { openList } from "./list.js";
import { createSubscription, subscriptionHash } from "./subscription_acts.js";

const LISTED_MAX = 100;
const HEADS = [["Subscription"], ["Type", "type"], ["Watches"], ["Wakes"], ["State"], ["Lag", "number"], ["Lanes", "number"], ["Workers"], ["Created", "moment"]];
export const ROOT = "v1/stream/__ds/subscriptions";

export function open(place, shell) {
  return openList(shell, {
    title: "Subscriptions",
    beside: actRow([["Create a subscription …", () => createSubscription(shell), "primary"]]),
    kind: "nodes subscriptions",
    heads: HEADS,
    ask: async (options) => {
      const { subscriptions, next } = await askJson(ROOT, { limit: LISTED_MAX, groups: "true" }, options);
      return { entries: subscriptions, isCut: !!next };
    },
    key: (each) => `${each.id} ${each.created_at}`,
    row,
    refresh,
    what: "subscriptions",
    empty: "There are no subscriptions yet. A subscription wakes a webhook or a worker when its streams have new records.",
    cut: `The first ${LISTED_MAX} subscriptions.`,
    curl: () => curl(url(ROOT)),
  });
}

function row(each) {
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { class: "name", href: subscriptionHash(each.id), "data-row": true }, visible(each.id))),
    h("td", { class: "type" }, each.type === "webhook" ? "webhook" : "worker"),
    h("td", {}, watched(each)),
    h("td", {}, woken(each)),
    h("td", {}),
    h("td", { class: "number" }),
    h("td", { class: "number" }),
    h("td", {}),
    h("td", { class: "moment" }, instant(each.created_at)),
  );
}

function refresh(element, each) {
  const [, , , , state, lag, lanes, workers] = element.children;
  put(state, stateOf(each));
  put(lag, each.lag === null ? "–" : count(each.lag));
  put(lanes, each.lanes.length ? count(each.lanes.length) : "–");
  put(workers, workersOf(each));
}

/** Return the names of one or two workers, or the number of more. */
export function workersOf({ workers }) {
  if (workers.length > 2) return count(workers.length);
  return visible(workers.join(", ") || "–");
}

/** Return the streams that a subscription watches, in words. */
export function watched({ pattern, explicit_streams: named }) {
  const streams = named ? `${named} ${named === 1 ? "stream" : "streams"}` : "";
  return [pattern ? h("code", {}, visible(pattern)) : null, pattern && streams ? ` and ${streams}` : streams];
}

/** Return the webhook, or the stream of the wakes. */
export function woken({ webhook, wake_stream: wakes }) {
  if (webhook) return h("code", {}, visible(webhook.url));
  return h("a", { class: "name", href: `#/stream/${encodeURIComponent(wakes)}` }, visible(wakes));
}

/** Return a badge of the state, with the next attempt of a wake or record that fails. */
export function stateOf({ state, status, next_attempt_at: next, attempts, failure }) {
  const failed = attempts ?? failure?.attempts ?? 0;
  if (failed && status !== "failed") return h("span", { class: "mark warn", title: failure?.error ?? null }, `${visible(state)}, ${failed} failed`);
  if (status === "failed") return h("span", { class: "mark warn", title: next ? `The next attempt is at ${instant(next)}` : null }, `${visible(state)}, failing`);
  return h("span", { class: state === "idle" ? "mark good" : "mark" }, visible(state));
}
