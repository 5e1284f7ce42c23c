// A page that lists things of one kind: its table is asked for again and again, and its rows have the keys j and k.

import { h, put } from "./dom.js";
import { curlButton, grid, page } from "./page.js";
import { Rows } from "./rows.js";

const POLL_MS = 5000;

/**
 * Open the page. `spec`:
 * - title; beside: elements in its head; above: elements before the table
 * - kind, heads: of the table, as `grid` takes them
 * - ask(options): what is listed, {entries, isCut}
 * - key(entry), row(entry), refresh(element, entry): as `Rows` takes them
 * - what: the plural of the kind. empty: what the page says without an entry. cut: what it says below a list that has more
 * - curl(): the command that lists the same
 */
export function openList(shell, spec) {
  const abort = new AbortController();
  const body = h("tbody", {});
  const note = h("p", { class: "quiet", role: "status" });
  const rows = new Rows(body);
  let timer = 0;
  const command = () => shell.copy(spec.curl(), "The command");
  const element = page(spec.title, [curlButton(command), spec.beside ?? []], spec.above ?? null, h("div", { class: "panel scroll" }, grid(spec.kind, spec.heads, body), note));

  async function poll() {
    clearTimeout(timer);
    const begun = performance.now();
    try {
      if (!document.hidden) draw(await spec.ask({ signal: abort.signal }));
    } catch (error) {
      if (abort.signal.aborted) return;
      note.hidden = false;
      put(note, error.status === 403 ? `This token has no access: ${error.message}` : `The ${spec.what} cannot be listed: ${error.message}. Retrying …`);
    }
    if (!abort.signal.aborted) timer = setTimeout(poll, Math.max(POLL_MS, 8 * (performance.now() - begun)));
  }

  function draw({ entries, isCut }) {
    rows.show(entries, spec.key, spec.row, spec.refresh);
    note.hidden = entries.length > 0 && !isCut;
    put(note, entries.length ? spec.cut : spec.empty);
  }

  poll();
  return {
    title: spec.title,
    element,
    again: poll,
    keys: { j: () => rows.move(1), k: () => rows.move(-1), c: command },
    close: () => {
      abort.abort();
      clearTimeout(timer);
    },
  };
}
