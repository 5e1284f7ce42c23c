// One transactional id of a Kafka client: its open transaction, with the partitions and groups in it.

import { actRow, askAct, send } from "./acts.js";
import { askJson, curl, url } from "./api.js";
import { cli } from "./commands.js";
import { h, put } from "./dom.js";
import { count, duration, visible } from "./format.js";
import { curlButton, grid, page, titleOf } from "./page.js";
import { Rows } from "./rows.js";

const POLL_MS = 5000;
const SHOWN_MAX = 1000;

function pathOf(id) {
  return `v1/transactions/${encodeURIComponent(id)}`;
}

/** Return how long a transaction has been open, as its cell shows it. */
export function openFor(transaction) {
  return transaction.open_ms === null ? "–" : duration(transaction.open_ms / 1000);
}

export function open(place, shell) {
  const id = place.rest;
  const abort = new AbortController();
  const numbers = h("dl", { class: "numbers" });
  const note = h("p", { class: "quiet", role: "status" });
  const body = h("tbody", {});
  const rows = new Rows(body);
  let timer = 0;
  let onKnown = null;
  const abortAct = ["Abort …", () => abortTransaction(shell, id, poll), "danger"];
  const element = page(
    titleOf(id, "Transactions", "#/kafka"),
    curlButton(command),
    numbers,
    actRow([abortAct], new Promise((resolve) => (onKnown = resolve))),
    h("div", { class: "panel" }, grid("tables", [["In the open transaction", ""], ["Partition", "number"]], body), note),
  );

  function command() {
    shell.copy(curl(url(pathOf(id))), "The command");
  }

  async function poll() {
    clearTimeout(timer);
    const begun = performance.now();
    try {
      if (!document.hidden) draw(await askJson(pathOf(id), {}, { signal: abort.signal }));
    } catch (error) {
      if (abort.signal.aborted) return;
      note.hidden = false;
      put(note, error.status === 404 ? `No Kafka client has used the transactional id “${visible(id)}” here. The page shows it as soon as one does.` : `The transaction cannot be shown: ${error.message}. Retrying …`);
    }
    timer = setTimeout(poll, Math.max(POLL_MS, 8 * (performance.now() - begun)));
  }

  function draw(transaction) {
    onKnown();
    const facts = [
      ["State", visible(transaction.state)],
      ["Open for", openFor(transaction)],
      ["Timeout", duration(transaction.timeout_ms / 1000)],
      ["Transaction", count(transaction.number)],
      ["Producer", String(transaction.producer)],
      ["Epoch", String(transaction.epoch)],
    ];
    put(numbers, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    const parts = [
      ...transaction.partitions.map((part) => ({ ...part, key: part.stream, name: part.topic ?? part.stream })),
      ...transaction.groups.map((group) => ({ key: `group ${group}`, group, name: group, partition: null })),
    ];
    rows.show(parts.slice(0, SHOWN_MAX), (part) => part.key, row);
    note.hidden = parts.length > 0 && parts.length <= SHOWN_MAX;
    put(note, parts.length ? `The first ${count(SHOWN_MAX)} of ${count(parts.length)}.` : "No transaction of this id is open now.");
  }

  poll();
  return {
    title: id,
    element,
    keys: { j: () => rows.move(1), k: () => rows.move(-1), c: command, Escape: () => shell.go("#/kafka") },
    close: () => {
      abort.abort();
      clearTimeout(timer);
    },
  };
}

function row(part) {
  const place = part.group === undefined ? `#/stream/${encodeURIComponent(part.stream)}` : `#/group/${encodeURIComponent(part.group)}`;
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { class: "name", href: place, "data-row": true }, visible(part.name))),
    h("td", { class: "number" }, part.partition === null ? "offsets of the group" : count(part.partition)),
  );
}

function abortTransaction(shell, id, done) {
  askAct(shell, {
    title: `Abort the transaction of ${visible(id)}?`,
    word: "Abort the transaction",
    danger: true,
    intro: "No reader of committed records will see what it wrote. Its producer is fenced, and must start again.",
    typed: id,
    command: () => cli("txn abort", [id]),
    run: async () => {
      const answer = await send(url(`${pathOf(id)}/abort`), { method: "POST" });
      return `Transaction ${count((await answer.json()).number)} of ${visible(id)} was aborted.`;
    },
    done,
  });
}
