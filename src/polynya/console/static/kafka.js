// The Kafka topics, consumer groups, with the lag of the first groups, and transactional ids.

import { actRow } from "./acts.js";
import { askJson, curl, url } from "./api.js";
import { h, put } from "./dom.js";
import { count, visible } from "./format.js";
import { curlButton, grid, page } from "./page.js";
import { Rows } from "./rows.js";
import { createTopic, topicHash } from "./topic_acts.js";
import { openFor } from "./transaction.js";

const POLL_MS = 5000;
const LAGS_MAX = 25; // groups whose lag is shown: each costs a request
const SHOWN_MAX = 500;

export function open(place, shell) {
  const abort = new AbortController();
  const topics = h("tbody", {});
  const groups = h("tbody", {});
  const noTopics = h("p", { class: "quiet", role: "status" });
  const noGroups = h("p", { class: "quiet", role: "status" });
  const topicRows = new Rows(topics);
  const groupRows = new Rows(groups);
  const transactions = h("tbody", {});
  const noTransactions = h("p", { class: "quiet", role: "status" });
  const transactionRows = new Rows(transactions);
  const lags = new Map();
  let known = []; // the topics
  let timer = 0;
  const element = page(
    "Kafka",
    [curlButton(command), actRow([["Create a topic …", () => createTopic(shell), "primary"]])],
    h("h2", {}, "Topics"),
    panel([["Topic", ""], ["Type", "type"], ["Partitions", "number"], ["Lag", "number"], ["Configs", "moment"]], topics, noTopics),
    h("h2", {}, "Consumer groups"),
    panel([["Group", ""], ["Protocol", "type"], ["State", ""], ["Members", "number"], ["Lag", "number"]], groups, noGroups),
    h("h2", {}, "Transactions"),
    panel([["Transactional id", ""], ["State", ""], ["Open for", "number"]], transactions, noTransactions),
  );

  function command() {
    shell.copy(curl(url("v1/topics")), "The command");
  }

  async function poll() {
    const begun = performance.now();
    if (!document.hidden) {
      await part(noTopics, "topics", async (options) => drawTopics((await askJson("v1/topics", {}, options)).topics));
      await part(noTransactions, "transactions", async (options) => drawTransactions((await askJson("v1/transactions", {}, options)).transactions));
      await part(noGroups, "groups", async (options) => drawGroups((await askJson("v1/groups", {}, options)).groups, options));
    }
    if (!abort.signal.aborted) timer = setTimeout(poll, Math.max(POLL_MS, 8 * (performance.now() - begun)));
  }

  /** Draw one of the lists; a token may see one and not the other. */
  async function part(note, what, draw) {
    try {
      await draw({ signal: abort.signal });
    } catch (error) {
      if (abort.signal.aborted) return;
      note.hidden = false;
      put(note, error.status === 403 ? `This token has no access to the ${what}: ${error.message}` : `The ${what} cannot be listed: ${error.message}. Retrying …`);
    }
  }

  function drawTopics(found) {
    known = found.slice(0, SHOWN_MAX);
    showTopics();
    noTopics.hidden = found.length > 0 && found.length <= SHOWN_MAX;
    put(
      noTopics,
      found.length > SHOWN_MAX
        ? `The first ${count(SHOWN_MAX)} of ${count(found.length)} topics.`
        : ["There are no topics yet. A Kafka client creates one by its first use, or this command does:", code("polynya topic create orders")],
    );
  }

  function showTopics() {
    const behind = lagsOfTopics([...lags.values()]);
    topicRows.show(known, (topic) => topic.id, topicRow, (element, topic) => refreshTopic(element, topic, behind.get(topic.name)));
  }

  function drawTransactions(found) {
    transactionRows.show(found.slice(0, SHOWN_MAX), (each) => each.id, transactionRow, refreshTransaction);
    noTransactions.hidden = found.length > 0 && found.length <= SHOWN_MAX;
    put(noTransactions, found.length > SHOWN_MAX ? `The first ${count(SHOWN_MAX)} ids.` : "There are no transactional ids yet: a Kafka client creates one when it starts a transaction.");
  }

  async function drawGroups(found, options) {
    const shown = found.slice(0, SHOWN_MAX);
    groupRows.show(shown, (group) => group.group, groupRow, (element, group) => refreshGroup(element, group, lags.get(group.group)));
    for (const name of lags.keys()) if (!found.some((group) => group.group === name)) lags.delete(name);
    noGroups.hidden = found.length > 0;
    put(noGroups, "There are no consumer groups yet: a Kafka client creates one when it subscribes.");
    for (const group of shown.slice(0, LAGS_MAX)) {
      try {
        lags.set(group.group, await askJson(`v1/groups/${encodeURIComponent(group.group)}`, {}, options));
      } catch (error) {
        if (abort.signal.aborted) throw error;
        lags.delete(group.group); // it is gone, or its coordinator moves
      }
    }
    groupRows.show(shown, (group) => group.group, groupRow, (element, group) => refreshGroup(element, group, lags.get(group.group)));
    showTopics();
  }

  poll();
  return {
    title: "Kafka",
    element,
    keys: { j: () => move(1), k: () => move(-1), c: command },
    close: () => {
      abort.abort();
      clearTimeout(timer);
    },
  };

  /** Move the focus through all lists, as through one. */
  function move(step) {
    const targets = [topicRows, groupRows, transactionRows].flatMap((rows) => rows.targets);
    if (!targets.length) return;
    const at = targets.indexOf(document.activeElement);
    const next = at < 0 ? (step > 0 ? 0 : targets.length - 1) : Math.min(Math.max(at + step, 0), targets.length - 1);
    targets[next].focus({ preventScroll: true });
    targets[next].scrollIntoView({ block: "nearest" });
  }
}

function code(text) {
  return h("pre", { class: "code" }, text);
}

function panel(heads, body, note) {
  return h("div", { class: "panel" }, grid("tables", heads, body), note);
}

function topicRow(topic) {
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { class: "name", href: topicHash(topic.name), "data-row": true }, visible(topic.name))),
    h("td", { class: "type" }),
    h("td", { class: "number", "data-label": " part." }),
    h("td", { class: "number", "data-label": " behind" }),
    h("td", { class: "moment" }),
  );
}

/** Return, by topic, {group, lag} of the group that is furthest behind. */
function lagsOfTopics(groups) {
  const worst = new Map();
  for (const { group, offsets } of groups) {
    const sums = new Map();
    for (const { topic, lag } of offsets) if (lag !== null) sums.set(topic, (sums.get(topic) ?? 0) + lag);
    for (const [topic, lag] of sums) if (lag >= (worst.get(topic)?.lag ?? 0)) worst.set(topic, { group, lag });
  }
  return worst;
}

function refreshTopic(element, topic, behind) {
  const [, type, partitions, lag, configs] = element.children;
  put(lag, behind ? h("span", { title: `The group ${visible(behind.group)} is the furthest behind` }, count(behind.lag)) : "–");
  put(type, visible(topic.content_type ?? "bytes"));
  put(partitions, count(topic.partitions));
  const named = Object.entries(topic.configs).filter(([name]) => name !== "content.type");
  put(configs, visible(named.map(([name, value]) => `${name}=${value}`).join(" ")));
}

function groupRow(group) {
  return h(
    "tr",
    {},
    h(
      "th",
      { scope: "row" },
      h("a", { class: "name", href: `#/group/${encodeURIComponent(group.group)}`, "data-row": true }, visible(group.group)),
    ),
    h("td", { class: "type" }),
    h("td", {}),
    h("td", { class: "number", "data-label": " members" }),
    h("td", { class: "number", "data-label": " behind" }),
  );
}

function refreshGroup(element, group, known) {
  const [, type, state, members, lag] = element.children;
  put(type, visible([group.kind, group.protocol_type].filter(Boolean).join(": ")));
  put(state, visible(known?.state ?? group.state));
  put(members, known ? count(known.members.length) : "–");
  put(lag, known ? count(known.lag) : "–");
}

function transactionRow(transaction) {
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { class: "name", href: `#/transaction/${encodeURIComponent(transaction.id)}`, "data-row": true }, visible(transaction.id))),
    h("td", {}),
    h("td", { class: "number", "data-label": " open" }),
  );
}

function refreshTransaction(element, transaction) {
  const [, state, age] = element.children;
  put(state, visible(transaction.state));
  put(age, openFor(transaction));
}
