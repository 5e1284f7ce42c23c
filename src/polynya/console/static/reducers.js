// The reducers: which streams they fold, how, and where they are faulted.

import { actRow } from "./acts.js";
import { askJson, curl, url } from "./api.js";
import { h, put } from "./dom.js";
import { bytes, count, duration, instant, visible } from "./format.js";
import { openList } from "./list.js";
import { addReducer, PATH, removeReducer, verifyReducer } from "./reducer_acts.js";
import { snapshotsHash } from "./snapshot_acts.js";

const HEADS = [["Reducer"], ["Pattern"], ["State is"], ["Revision", "number"], ["Due after"], ["Retains", ""], ["State"], ["Act"]];
const FAULTS_SHOWN = 20;

export function open(place, shell) {
  let view = null;
  const again = () => view.again();
  const add = ["Add a reducer …", () => addReducer(shell, null, again), "primary"];
  view = openList(shell, {
    title: "Reducers",
    beside: actRow([add]),
    above: h("p", { class: "hint" }, "A reducer folds the records of each stream of a pattern into a state, and publishes it as the stream's snapshot"),
    kind: "nodes reducers",
    heads: HEADS,
    ask: async (options) => ({ entries: (await askJson(PATH, {}, options)).reducers, isCut: false }),
    key: (each) => `${each.name} ${each.revision}`,
    row: (each) => row(each, shell, again),
    refresh,
    what: "reducers",
    empty: ["There are no reducers yet. This command adds one that keeps the last record of each key, and the second computes:", h("pre", { class: "code" }, "polynya reduce add carts --pattern 'carts/*' --builtin latest\npolynya reduce run")],
    curl: () => curl(url(PATH)),
  });
  return view;
}

function row(each, shell, again) {
  const acts = [
    ["Change …", () => addReducer(shell, each, again), "small"],
    ["Verify …", () => verifyReducer(shell, each, again), "small"],
    ["Remove …", () => removeReducer(shell, each.name, again), "danger small"],
  ];
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { class: "name", href: `#/records?kind=pattern&of=${encodeURIComponent(each.pattern)}`, title: "The records of its streams", "data-row": true }, visible(each.name))),
    h("td", {}, h("code", {}, visible(each.pattern))),
    h("td", {}),
    h("td", { class: "number" }, count(each.revision)),
    h("td", {}),
    h("td", {}),
    h("td", {}),
    h("td", {}, actRow(acts)),
  );
}

function refresh(element, each) {
  const [, , kind, , due, retains, state] = element.children;
  put(kind, each.builtin ? [visible(each.builtin), each.key ? [" by ", h("code", {}, visible(each.key))] : null] : ["module ", h("code", { title: visible(each.module ?? "") }, visible((each.module ?? "").slice(0, 12)))]);
  put(due, `${count(each.every_records)} records, ${bytes(each.every_bytes)} or ${duration(each.every_seconds)}`);
  put(retains, each.retain ? "the state alone" : "all records");
  put(state, stateOf(each));
}

function stateOf({ stopped, faults }) {
  if (stopped) return [h("span", { class: "mark warn" }, "stopped"), h("div", { class: "help" }, visible(stopped))];
  if (!faults.length) return h("span", { class: "mark good" }, "bound");
  const lines = faults.slice(0, FAULTS_SHOWN).map((fault) => h("div", { class: "help" }, h("a", { class: "name", href: snapshotsHash(fault.stream) }, visible(fault.stream)), `: ${visible(fault.reason)}; again at ${instant(fault.retry_at)}`));
  return [h("span", { class: "mark warn" }, `faulted on ${count(faults.length)}`), lines];
}
