// The runs of a table on its node: what each does now or came to, and its last lines.

import { actsAllowed } from "./acts.js";
import { askJson } from "./api.js";
import { h, put } from "./dom.js";
import { duration, instant, visible } from "./format.js";
import { grid } from "./page.js";
import { Rows } from "./rows.js";
import { cancelRun } from "./table_acts.js";

const POLL_MS = 1000; // while one waits or runs
const SHOWN_MAX = 10;
const HEADS = [["Run"], ["Started by"], ["Asked"], ["Took", "number"], ["State"], ["Last line"], [""]];
const isActive = (run) => run.state === "queued" || run.state === "running";

/** Return {element, look, close} of the runs of the table `name`. `ended`: called when one has ended. */
export function runsOf(shell, name, ended) {
  const abort = new AbortController();
  const element = h("section", { hidden: true });
  const log = h("pre", { class: "code", tabindex: "0", role: "region", "aria-label": "The last lines of the newest run" });
  const body = h("tbody", { id: "runs" });
  const rows = new Rows(body); // a button keeps its focus while the page looks at a run
  put(element, h("h2", {}, "Runs on this node"), h("div", { class: "panel scroll" }, grid("nodes", HEADS, body)), log);
  let timer = 0;
  let active = new Set();
  let mayAct = false;
  actsAllowed().then((allowed) => (mayAct = allowed));

  async function look() {
    clearTimeout(timer);
    try {
      const { runs } = await askJson(`v1/tables/${encodeURIComponent(name)}/runs`, {}, { signal: abort.signal });
      show(runs);
    } catch {
      if (abort.signal.aborted) return;
    }
    if (active.size) timer = setTimeout(look, POLL_MS);
  }

  function show(runs) {
    const before = active;
    active = new Set(runs.filter(isActive).map((run) => run.id));
    element.hidden = !runs.length;
    rows.show(runs.slice(0, SHOWN_MAX), (run) => run.id, rowOf, refresh);
    const told = runs.find((run) => run.log.length);
    log.hidden = !told;
    put(log, told ? told.log.map(visible).join("\n") : "");
    if ([...before].some((id) => !active.has(id))) ended();
  }

  function rowOf(run) {
    return h("tr", {}, h("th", { scope: "row" }, run.verb), h("td", {}, visible(run.caller)), h("td", {}, instant(run.asked_ms)), h("td", { class: "number" }), h("td", {}), h("td", {}), h("td", {}));
  }

  function refresh(row, run) {
    const [, , , took, state, message, act] = row.children;
    const end = run.ended_ms || Date.now();
    put(took, run.started_ms ? duration(Math.max(0, end - run.started_ms) / 1000) : "");
    put(state, run.state);
    state.className = `run-${run.state}`;
    put(message, visible(run.message));
    const mayStop = mayAct && isActive(run);
    if (mayStop && !act.firstChild) put(act, h("button", { type: "button", class: "button small", on: { click: () => cancelRun(shell, name, run, look) } }, "Cancel …"));
    else if (!mayStop) put(act);
  }

  const close = () => {
    abort.abort();
    clearTimeout(timer);
  };
  return { element, look, close };
}
