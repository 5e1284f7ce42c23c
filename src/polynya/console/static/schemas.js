// The subjects of the schema registry, each with its newest version.

import { askJson, curl, url } from "./api.js";
import { h, put } from "./dom.js";
import { count, visible } from "./format.js";
import { curlButton, grid, page } from "./page.js";
import { Rows } from "./rows.js";

const POLL_MS = 10_000;
const SHOWN_MAX = 500;
export const ROOT = "registry";

/** Return the address of a subject's page. */
export function subjectHash(subject) {
  return `#/schema/${encodeURIComponent(subject)}`;
}

export function open(place, shell) {
  const abort = new AbortController();
  const body = h("tbody", {});
  const note = h("p", { class: "quiet", role: "status" });
  const level = h("p", { class: "quiet" });
  const rows = new Rows(body);
  let timer = 0;
  const heads = [["Subject", ""], ["Type", "type"], ["Version", "number"], ["Id", "number"]];
  const element = page("Schemas", curlButton(command), level, h("div", { class: "panel" }, grid("tables", heads, body), note));

  function command() {
    shell.copy(curl(url(`${ROOT}/subjects`)), "The command");
  }

  async function poll() {
    const begun = performance.now();
    try {
      if (!document.hidden) {
        const options = { signal: abort.signal };
        const found = await askJson(`${ROOT}/schemas`, { latestOnly: true, limit: SHOWN_MAX + 1 }, options);
        draw(found, await askJson(`${ROOT}/config`, {}, options));
      }
    } catch (error) {
      if (abort.signal.aborted) return;
      note.hidden = false;
      put(note, error.status === 403 ? `This token has no access: ${error.message}` : `The schemas cannot be listed: ${error.message}. Retrying …`);
    }
    timer = setTimeout(poll, Math.max(POLL_MS, 8 * (performance.now() - begun)));
  }

  function draw(found, config) {
    put(level, `Compatibility of subjects without a level of their own: ${visible(config.compatibilityLevel)}`);
    rows.show(found.slice(0, SHOWN_MAX), (each) => each.subject, row, refresh);
    note.hidden = found.length > 0 && found.length <= SHOWN_MAX;
    put(
      note,
      found.length
        ? `The first ${count(SHOWN_MAX)} subjects.`
        : ["There are no schemas yet. A serializer registers one with its first record, or this command does:", h("pre", { class: "code" }, "polynya schema register orders-value order.avsc")],
    );
  }

  poll();
  return {
    title: "Schemas",
    element,
    keys: { j: () => rows.move(1), k: () => rows.move(-1), c: command },
    close: () => {
      abort.abort();
      clearTimeout(timer);
    },
  };
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
