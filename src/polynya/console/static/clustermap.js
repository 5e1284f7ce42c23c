// The map of a cluster: the nodes by zone, and on which nodes each group lies, leads and moves.

import { h } from "./dom.js";
import { count, visible } from "./format.js";

const GROUPS_MAX = 256; // columns

/** Return the map: a row for each node, a cell for each group. `told` is the answer of /v1/cluster. */
export function clusterMap(told) {
  const groups = told.groups.slice(0, GROUPS_MAX);
  const nodes = [...told.nodes].sort((one, other) => String(one.zone ?? "").localeCompare(String(other.zone ?? "")) || one.id - other.id);
  const moving = groups.filter((group) => String(group.voters) !== String(group.goal));
  return h(
    "div",
    {},
    h("div", { class: "panel scroll cluster-map", tabindex: "0", role: "region", "aria-label": "The map of the cluster" }, nodes.map((node) => nodeRow(node, groups, told.node))),
    h(
      "p",
      { class: "legend-row" },
      h("span", {}, h("i", { class: "cell leads" }), " leader"),
      h("span", {}, h("i", { class: "cell holds" }), " replica"),
      h("span", {}, h("i", { class: "cell comes" }), " moving in"),
      h("span", {}, h("i", { class: "cell goes" }), " moving out"),
      h("span", {}, moving.length ? `${count(moving.length)} ${moving.length === 1 ? "group moves" : "groups move"}` : "no moves"),
      told.groups.length > GROUPS_MAX ? h("span", {}, `the first ${GROUPS_MAX} of ${count(told.groups.length)} groups`) : null,
    ),
  );
}

function nodeRow(node, groups, own) {
  const name = `Node ${node.id}${node.id === own ? " (this node)" : ""}`;
  return h(
    "div",
    { class: "map-row" },
    h(
      "div",
      { class: "map-node" },
      h("strong", {}, name),
      h("span", { class: `mark ${node.up ? "good" : "warn"}` }, node.up ? "up" : "down"),
      node.zone ? h("span", { class: "mark" }, visible(node.zone)) : null,
      h("span", { class: "help" }, `leads ${count(node.leader_of)}, holds ${count(node.replicas)}`),
    ),
    h("div", { class: "map-cells", role: "img", "aria-label": `${name} leads ${count(node.leader_of)} groups and holds ${count(node.replicas)} replicas` }, groups.map((group) => cell(group, node.id))),
  );
}

function cell(group, id) {
  const holds = (group.voters ?? []).includes(id);
  const wanted = (group.goal ?? []).includes(id);
  const kind = group.leader === id ? "leads" : holds ? (wanted ? "holds" : "goes") : wanted ? "comes" : "none";
  const words = { leads: "leader", holds: "replica", goes: "moving out", comes: "moving in", none: "no replica" };
  return h("i", { class: `cell ${kind}`, title: `Group ${group.group}: ${words[kind]}` });
}
