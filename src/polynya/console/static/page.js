// What the pages have in common: a head with the title and what acts on the page, and tables.

import { h } from "./dom.js";
import { visible } from "./format.js";

/** Return a page: the title (a text, or elements of which one has the id `title`), what stands beside it, and the parts below. */
export function page(title, beside, ...parts) {
  const heading = typeof title === "string" ? h("h1", { id: "title" }, title) : title;
  return h("section", { class: "page", "aria-labelledby": "title" }, h("div", { class: "head" }, heading, Array.isArray(beside) ? h("div", { class: "row" }, beside) : beside), ...parts);
}

/** Return the title of a page about one thing, below a link to the list of all. */
export function titleOf(name, list, href) {
  return h("div", {}, h("p", { class: "trail" }, h("a", { href }, list)), h("h1", { id: "title", class: "name" }, visible(name)));
}

export function curlButton(copy) {
  return h("button", { type: "button", class: "button", on: { click: copy } }, "Copy as curl");
}

/** Return a table of this kind. `heads`: the text and the class of each column; `body`: its tbody. */
export function grid(kind, heads, body) {
  const head = heads.map(([text, column]) => h("th", { scope: "col", class: column }, text));
  return h("table", { class: `list ${kind}` }, h("thead", {}, h("tr", {}, head)), body);
}
