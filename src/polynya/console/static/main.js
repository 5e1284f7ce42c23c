// The shell: routing by address, global keys, the theme, the token, and the node's health in the corner.

import { accessToken, denied, keepToken } from "./api.js";
import { copy, h, isField, put } from "./dom.js";
import * as access from "./access.js";
import * as costs from "./costs.js";
import { isSamePage } from "./format.js";
import * as group from "./group.js";
import * as health from "./health.js";
import * as kafka from "./kafka.js";
import * as overview from "./overview.js";
import { checkReady, watchReady } from "./ready.js";
import * as records from "./records.js";
import * as reducers from "./reducers.js";
import * as schema from "./schema.js";
import * as schemas from "./schemas.js";
import * as snapshots from "./snapshots.js";
import * as sql from "./sql.js";
import * as stream from "./stream.js";
import * as streams from "./streams.js";
import * as subscription from "./subscription.js";
import * as subscriptions from "./subscriptions.js";
import * as table from "./table.js";
import * as tables from "./tables.js";
import * as topic from "./topic.js";
import * as transaction from "./transaction.js";

const PAGES = { overview, streams, stream, snapshots, records, tables, table, kafka, topic, group, transaction, schemas, schema, reducers, subscriptions, subscription, sql, costs, access, health };
const TABS = { stream: "streams", snapshots: "streams", table: "tables", topic: "kafka", group: "kafka", transaction: "kafka", schema: "schemas", subscription: "subscriptions" };
const GO = { o: "#/overview", s: "#/streams", r: "#/records", t: "#/tables", k: "#/kafka", m: "#/schemas", d: "#/reducers", u: "#/subscriptions", q: "#/sql", c: "#/costs", a: "#/access", h: "#/health" };
const CHORD_MS = 1200;

const by = (id) => document.getElementById(id);
const content = by("content");
let view = null;
let chordUntil = 0;
let askedFor = null; // the token that the dialog last opened for; a closed dialog does not reopen for it

const shell = {
  go(hash) {
    location.hash = hash;
  },
  /** Open another state of the same page without a history entry. */
  replace(hash) {
    history.replaceState(null, "", hash);
    show();
  },
  /** Change the address of the current state, unless the user is on the way to another page. */
  rename(hash) {
    if (isSamePage(location.hash, hash)) history.replaceState(null, "", hash);
  },
  say(text) {
    const said = by("said");
    put(said, text);
    said.classList.add("shown");
    clearTimeout(said.timer);
    said.timer = setTimeout(() => said.classList.remove("shown"), 2500);
  },
  async copy(text, what) {
    shell.say((await copy(text)) ? `${what} was copied.` : `${what} was not copied: the browser denies access to the clipboard.`);
  },
  askToken,
};

/** Parse an address such as #/stream/a/b?at=7 into {page, rest, query}; null if it is malformed. */
function placeOf(hash) {
  const [path, query = ""] = (hash.replace(/^#\/?/, "") || "streams").split(/\?(.*)/s);
  try {
    const [page, ...rest] = path.split("/").map(decodeURIComponent);
    return PAGES[page] ? { page, rest: rest.join("/"), query: new URLSearchParams(query) } : null;
  } catch {
    return null;
  }
}

function show() {
  if (location.hash === "#content") return;
  const place = placeOf(location.hash);
  const old = view;
  old?.close();
  if (!place) {
    view = null;
    put(content, h("p", { class: "quiet" }, "Page not found. ", h("a", { href: "#/streams" }, "See the streams.")));
    return;
  }
  view = PAGES[place.page].open(place, shell);
  view.page = place.page;
  put(content, view.element);
  if (old?.page === place.page) view.adopt?.(old);
  document.title = `${view.title} · Polynya`;
  for (const link of by("nav").children) {
    if (link.dataset.page === (TABS[place.page] ?? place.page)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// --- keys -------------------------------------------------------------------------------------------------------------------------------

function key(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (isField(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const isButton = event.target instanceof HTMLButtonElement && (event.key === " " || event.key === "Enter");
  if (isButton && !(event.key === " " && event.target.dataset.row !== undefined)) return;
  if (act(event.key)) event.preventDefault();
}

function act(pressed) {
  if (performance.now() < chordUntil) {
    chordUntil = 0;
    if (GO[pressed]) {
      shell.go(GO[pressed]);
      return true;
    }
  }
  const own = view?.keys?.[pressed];
  if (own) own();
  else if (pressed === "g") chordUntil = performance.now() + CHORD_MS;
  else if (pressed === "?") by("help-dialog").showModal();
  else if (pressed === "t") switchTheme();
  else return false;
  return true;
}

// --- theme, token, status -----------------------------------------------------------------------------------------------------------------

function switchTheme() {
  const style = document.documentElement;
  const dark = style.dataset.theme ? style.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  style.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("polynya.theme", style.dataset.theme);
  } catch {
    // the choice lasts until the page is reloaded
  }
}

function askToken() {
  const dialog = by("token-dialog");
  if (dialog.open) return;
  by("token-input").value = accessToken();
  dialog.showModal();
}

function useToken(text) {
  keepToken(text.trim());
  by("token-dialog").addEventListener(
    "close",
    () => {
      askedFor = null;
      markToken();
      show();
      checkReady();
    },
    { once: true },
  );
  by("token-dialog").close();
}

function markToken() {
  by("token").classList.toggle("has", accessToken() !== "");
  by("token").title = accessToken() ? "Access token: set" : "Access token: not set";
}

by("theme").addEventListener("click", switchTheme);
by("help").addEventListener("click", () => by("help-dialog").showModal());
by("token").addEventListener("click", askToken);
by("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(by("token-input").value);
});
by("token-forget").addEventListener("click", () => useToken(""));
by("skip").addEventListener("click", (event) => {
  event.preventDefault();
  content.focus();
});
for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
denied.addEventListener("token", () => {
  if (accessToken() === askedFor) return;
  askedFor = accessToken();
  askToken();
});
document.addEventListener("keydown", key);
window.addEventListener("hashchange", show);
markToken();
show();
watchReady(by("status"));
