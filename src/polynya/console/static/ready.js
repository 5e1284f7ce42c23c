// The node's readiness in the corner: asked for every two seconds, and at once after a request that the node did not respond to.

import { ask, trouble, url } from "./api.js";
import { put } from "./dom.js";
import { visible } from "./format.js";

const POLL_MS = 2000;
const WAIT_MS = 3000; // a node that is silent for so long counts as down
const REASONS_MAX = 20;

let corner = null;
let timer = 0;
let asked = null; // aborts the request under way

/** Show the readiness of the node in this element from now on. */
export function watchReady(element) {
  corner = element;
  trouble.addEventListener("silent", () => corner.dataset.state !== "down" && checkReady());
  document.addEventListener("visibilitychange", () => !document.hidden && checkReady());
  checkReady();
}

/** Ask now, and go on from there. */
export async function checkReady() {
  clearTimeout(timer);
  asked?.abort();
  const own = (asked = new AbortController());
  if (!document.hidden) {
    const [state, why] = await stateOf(own.signal);
    if (own.signal.aborted) return;
    show(state, why);
  }
  timer = setTimeout(checkReady, POLL_MS);
}

/** Return the node's state, "ready", "not ready", "down" or "unknown", and the reasons. */
async function stateOf(signal) {
  try {
    const answer = await ask(url("readyz"), { allow: [503], signal, wait: WAIT_MS, quiet: true });
    const lines = (await answer.text()).trim().split("\n");
    const reasons = lines.filter((line) => line.startsWith("["));
    return [answer.ok ? "ready" : "not ready", reasons.slice(0, REASONS_MAX)];
  } catch (error) {
    return [error.status ? "unknown" : "down", [error.message]];
  }
}

function show(state, why) {
  const word = corner.querySelector(".word");
  corner.dataset.state = state;
  corner.title = [`The node is ${state}`, ...why.map(visible)].join("\n");
  if (word.textContent !== state) put(word, state);
}
