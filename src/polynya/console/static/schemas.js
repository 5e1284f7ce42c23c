// The subjects of the schema registry, each with its newest version.

import { actRow } from "./acts.js";
import { askJson, curl, url } from "./api.js";
import { h, put } from "./dom.js";
import { count, visible } from "./format.js";
import { openList } from "./list.js";
import { registerSchema, ROOT, setLevel, subjectHash } from "./schema_acts.js";

const SHOWN_MAX = 500;

export function open(place, shell) {
  const level = h("p", { class: "state" });
  let known = "BACKWARD";
  let view = null;
  const again = () => view.again();
  const acts = [
    ["Level …", () => setLevel(shell, null, known, again)],
    ["Register a schema …", () => registerSchema(shell, null, again), "primary"],
  ];
  view = openList(shell, {
    title: "Schemas",
    beside: actRow(acts),
    above: level,
    kind: "tables",
    heads: [["Subject", ""], ["Type", "type"], ["Version", "number"], ["Id", "number"]],
    ask: async (options) => {
      const found = await askJson(`${ROOT}/schemas`, { latestOnly: true, limit: SHOWN_MAX + 1 }, options);
      const config = await askJson(`${ROOT}/config`, {}, options);
      known = config.compatibilityLevel;
      put(level, `Compatibility of subjects without a level of their own: ${visible(config.compatibilityLevel)}`);
      return { entries: found.slice(0, SHOWN_MAX), isCut: found.length > SHOWN_MAX };
    },
    key: (each) => each.subject,
    row,
    refresh,
    what: "schemas",
    empty: ["There are no schemas yet. A serializer registers one with its first record, or this command does:", h("pre", { class: "code" }, "polynya schema register orders-value order.avsc")],
    cut: `The first ${count(SHOWN_MAX)} subjects.`,
    curl: () => curl(url(`${ROOT}/subjects`)),
  });
  return view;
}

function row(each) {
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { class: "name", href: subjectHash(each.subject), "data-row": true }, visible(each.subject))),
    h("td", { class: "type" }),
    h("td", { class: "number", "data-label": " version" }),
    h("td", { class: "number", "data-label": " id" }),
  );
}

function refresh(element, each) {
  const [, type, version, id] = element.children;
  put(type, visible(each.schemaType ?? "AVRO"));
  put(version, count(each.version));
  put(id, String(each.id));
}
