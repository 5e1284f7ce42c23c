// The acts on subscriptions: create, delete.

import { askAct, send } from "./acts.js";
import { url } from "./api.js";
import { cli } from "./commands.js";
import { parseSeconds, visible } from "./format.js";

export function subscriptionHash(id) {
  return `#/subscription/${encodeURIComponent(id)}`;
}

function subscriptionUrl(id) {
  return url(`v1/stream/__ds/subscriptions/${encodeURIComponent(id)}`);
}

export function createSubscription(shell) {
  const linesOf = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
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
