// The acts on subscriptions: create, reset, delete.

import { askAct, send } from "./acts.js";
import { url } from "./api.js";
import { cli } from "./commands.js";
import { h } from "./dom.js";
import { count, parsePlace, parseSeconds, visible } from "./format.js";
import { grid } from "./page.js";

const SHOWN_MAX = 500;

export function subscriptionHash(id) {
  return `#/subscription/${encodeURIComponent(id)}`;
}

function subscriptionUrl(id, rest = "") {
  return url(`v1/stream/__ds/subscriptions/${encodeURIComponent(id)}${rest}`);
}

function linesOf(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

export function createSubscription(shell) {
  askAct(shell, {
    title: "Create a subscription",
    word: "Create",
    intro: "Later appends to its streams wake a webhook, or are announced in a stream where workers claim them. Existing streams count from their ends.",
    fields: [
      { name: "id", label: "Name", placeholder: "mailer" },
      { name: "pattern", label: "Pattern of streams", placeholder: "orders/*", help: "'*' is one segment, '**' any number" },
      { name: "streams", label: "Streams", kind: "area", rows: 2, help: "one name a line" },
      {
        name: "type",
        label: "Wakes",
        kind: "select",
        value: "webhook",
        options: [
          ["webhook", "a webhook"],
          ["pull-wake", "workers, by a stream of wakes"],
        ],
      },
      { name: "webhook", label: "URL of the webhook", placeholder: "https://mail.example.com/hook", shown: ({ type }) => type === "webhook" },
      { name: "wakes", label: "Stream of wakes", placeholder: "wakes", shown: ({ type }) => type === "pull-wake" },
      { name: "lease", label: "A worker loses the work after", value: "30s", help: "without a heartbeat" },
      { name: "description", label: "Description" },
    ],
    check: ({ id, pattern, streams, type, webhook, wakes, lease }) => {
      if (!id) return "The name is missing.";
      if (!pattern && !linesOf(streams).length) return "A pattern or a stream is missing.";
      if (type === "webhook" ? !/^https?:\/\/./.test(webhook) : !wakes) return type === "webhook" ? "The URL of the webhook is missing." : "The stream of wakes is missing.";
      return parseSeconds(lease) === null ? `“${visible(lease)}” is no duration; expected a form like 30s.` : "";
    },
    command: ({ id, pattern, streams, type, webhook, wakes, lease, description }) =>
      cli("sub create", [id], {
        "--pattern": pattern,
        "--stream": linesOf(streams),
        "--webhook": type === "webhook" ? webhook : "",
        "--wake-stream": type === "webhook" ? "" : wakes,
        "--lease": lease === "30s" ? "" : lease,
        "--description": description,
      }),
    run: async ({ id, pattern, streams, type, webhook, wakes, lease, description }) => {
      const target = type === "webhook" ? { webhook: { url: webhook } } : { wake_stream: wakes };
      const json = { type, pattern: pattern || null, streams: linesOf(streams), ...target, lease_ttl_ms: parseSeconds(lease) * 1000, description: description || null };
      const answer = await send(subscriptionUrl(id), { method: "PUT", json });
      shell.go(subscriptionHash(id));
      return answer.status === 201 ? `Subscription ${visible(id)} was created.` : `Subscription ${visible(id)} exists already, with these settings.`;
    },
  });
}

/** Set the cursors of a subscription, or of the lanes of a group of workers. */
export function resetSubscription(shell, id, lanes, done) {
  const ids = lanes.length ? lanes : [id];
  const targetOf = (text) => {
    if (["earliest", "latest"].includes(text)) return text;
    const time = parsePlace(text)?.time;
    return time === undefined ? null : new Date(time).toISOString();
  };
  askAct(shell, {
    title: `Reset ${visible(id)}`,
    word: "Reset",
    danger: ({ dry }) => !dry,
    intro: "Its workers get the records from there on again, also those that they have handled; or pass over some.",
    fields: [
      { name: "to", label: "To", value: "earliest", placeholder: "earliest, latest, 2h, 2026-11-01T00:00Z" },
      { name: "streams", label: "Streams", kind: "area", rows: 2, help: "one name a line; empty: all" },
      { name: "force", label: "Take the work away from a worker that has it", kind: "check" },
      { name: "dry", label: "Dry run: only show the new cursors", kind: "check", value: true },
    ],
    check: ({ to }) => (targetOf(to) ? "" : `“${visible(to)}” is no place; expected earliest, latest, an age such as 2h, or a time.`),
    command: ({ to, streams, force, dry }) => cli("sub reset", [id], { "--to": to, "--stream": linesOf(streams), "--force": force, "--dry-run": dry }),
    run: async ({ to, streams, force, dry }) => {
      const json = { to: targetOf(to), ...(linesOf(streams).length ? { streams: linesOf(streams) } : {}), force, dry_run: dry };
      const moved = [];
      for (const each of ids) moved.push(...(await (await send(subscriptionUrl(each, "/reset"), { json })).json()).streams);
      return movedRows(moved, dry);
    },
    done,
  });
}

function movedRows(rows, dry) {
  const cell = (value) => h("td", { class: "number" }, count(value));
  const body = rows.slice(0, SHOWN_MAX).map((row) => h("tr", {}, h("td", {}, visible(row.path)), cell(row.from_lag), cell(row.to_lag)));
  const words = `${dry ? "Nothing was changed. These cursors would move" : "These cursors moved"}: ${count(rows.length)}. Their lags in records:`;
  const heads = [["Stream"], ["Lag before", "number"], ["Lag after", "number"]];
  return h("div", {}, h("p", {}, words), h("div", { class: "panel scroll", tabindex: "0", role: "region", "aria-label": "The lags" }, grid("nodes", heads, h("tbody", {}, body))));
}

export function deleteSubscription(shell, id) {
  askAct(shell, {
    title: `Delete subscription ${visible(id)}?`,
    word: "Delete the subscription",
    danger: true,
    intro: "Its webhook or workers are not woken again, and its offsets are deleted. The streams are kept.",
    typed: id,
    command: () => cli("sub rm", [id]),
    run: async () => {
      await send(subscriptionUrl(id), { method: "DELETE" });
      shell.go("#/subscriptions");
      return `Subscription ${visible(id)} was deleted.`;
    },
  });
}
