// The list of streams: search by prefix, pages, and rates computed from the tails in the list.

import { actRow } from "./acts.js";
import { askJson, curl, url } from "./api.js";
import { h, put } from "./dom.js";
import { bytes, compact, count, instant, parseToken, streamHash, visible } from "./format.js";
import { grid, page } from "./page.js";
import { searchHash } from "./records.js";
import { Book } from "./rates.js";
import { Rows } from "./rows.js";
import { sparkline } from "./spark.js";
import { createStream } from "./stream_acts.js";

const HEADS = [
  ["Stream", ""],
  ["Type", "type"],
  ["Records", "number"],
  ["Bytes", "number"],
  ["Rate", "number"],
  ["Last two minutes", "picture"],
  ["Created", "moment"],
];
const PAGE = 50;
const POLL_MS = 2000;
const COST = 8; // a poll may take at most one eighth of the time: listing is costly with very many streams

export function open(place, shell) {
  const prefix = place.query.get("prefix") ?? "";
  const after = place.query.get("after") ?? "";
  const trail = (place.query.get("trail") ?? "").split("\n").filter(Boolean); // the previous pages
  const book = new Book();
  const abort = new AbortController();
  let entries = [];
  let next = null;
  let timer = 0;

  const search = h("input", {
    type: "search",
    id: "search",
    value: prefix,
    placeholder: "orders/…",
    autocomplete: "off",
    spellcheck: "false",
  });
  const body = h("tbody", {});
  const note = h("p", { class: "quiet", role: "status" });
  const rows = new Rows(body);
  const previous = h("button", { type: "button", class: "button", on: { click: () => back() } }, "Previous");
  const following = h("button", { type: "button", class: "button", on: { click: () => forth() } }, "Next");
  const pager = h("div", { class: "row pager", hidden: true }, previous, following);
  const element = page(
    "Streams",
    [
      h("label", { class: "search" }, h("span", { class: "label" }, "Name prefix"), search, h("kbd", {}, "/")),
      h("a", { class: "button", href: searchHash({ of: prefix }), title: "The newest records of these streams" }, "Records"),
      actRow([["Create a stream …", () => createStream(shell, prefix), "primary"]]),
    ],
    h("div", { class: "panel" }, grid("streams", HEADS, body), note),
    pager,
  );

  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => shell.replace(hash(search.value, "", [])), 200);
  });

  function hash(wanted, from, before) {
    const query = new URLSearchParams();
    if (wanted) query.set("prefix", wanted);
    if (from) query.set("after", from);
    if (before.length) query.set("trail", before.slice(-200).join("\n"));
    const text = query.toString();
    return `#/streams${text ? `?${text}` : ""}`;
  }

  function forth() {
    if (next) shell.go(hash(prefix, next, after ? [...trail, after] : trail));
  }

  function back() {
    if (after) shell.go(hash(prefix, trail.at(-1) ?? "", trail.slice(0, -1)));
  }

  async function poll() {
    const begun = performance.now();
    try {
      const answer = await askJson("v1/streams", { prefix, after, limit: PAGE }, { signal: abort.signal });
      entries = answer.streams;
      next = answer.next;
      sample(begun);
      draw();
    } catch (error) {
      if (abort.signal.aborted) return;
      put(note, `The streams cannot be listed: ${error.message}. Retrying …`);
      note.hidden = false;
    }
    const took = performance.now() - begun;
    timer = setTimeout(wake, Math.max(POLL_MS - took, COST * took));
  }

  function wake() {
    if (document.hidden) timer = setTimeout(wake, POLL_MS);
    else poll();
  }

  function sample(at) {
    for (const entry of entries) {
      const tail = parseToken(entry.next_offset);
      book.get(`records ${entry.incarnation}`).add(at, tail.record);
      book.get(`bytes ${entry.incarnation}`).add(at, tail.byte);
    }
    book.keep(entries.flatMap((entry) => [`records ${entry.incarnation}`, `bytes ${entry.incarnation}`]));
  }

  function draw() {
    rows.show(entries, (entry) => entry.incarnation, row, refresh);
    previous.disabled = !after;
    following.disabled = !next;
    pager.hidden = !after && !next;
    put(note, entries.length ? "" : empty(prefix));
    note.hidden = entries.length > 0;
  }

  function refresh(element, entry) {
    const tail = parseToken(entry.next_offset);
    const first = parseToken(entry.retained_offset) ?? { record: 0, byte: 0 };
    const records = book.get(`records ${entry.incarnation}`);
    const rate = records.rate();
    const [, , number, size, perSecond, picture] = element.children;
    put(number, count(tail.record - first.record));
    put(size, bytes(tail.byte - first.byte));
    put(perSecond, rate === null ? "…" : rate === 0 ? "–" : `${compact(rate)}/s`);
    perSecond.classList.toggle("busy", rate > 0);
    perSecond.title = `${bytes(book.get(`bytes ${entry.incarnation}`).rate() ?? 0)}/s`;
    put(picture, sparkline(records.rates, { label: `Records per second, last two minutes` }));
  }

  poll();
  return {
    title: "Streams",
    element,
    keys: {
      "/": () => search.select() ?? search.focus(),
      j: () => rows.move(1),
      k: () => rows.move(-1),
      n: forth,
      p: back,
      c: () => shell.copy(curl(url("v1/streams", { prefix, after, limit: PAGE })), "The command"),
      Escape: () => (prefix || after) && shell.go("#/streams"),
    },
    // The same page with another prefix keeps the search field, which has the focus.
    adopt: (old) => {
      if (document.activeElement === old.search) {
        const at = old.search.selectionStart;
        search.value = old.search.value;
        requestAnimationFrame(() => {
          search.focus();
          search.setSelectionRange(at, at);
        });
      }
    },
    search,
    close: () => {
      abort.abort();
      clearTimeout(timer);
      clearTimeout(typing);
    },
  };
}

function row(entry) {
  const marks = [
    entry.closed ? h("span", { class: "mark" }, "closed") : null,
    entry.ttl_seconds !== undefined ? h("span", { class: "mark" }, `ttl ${entry.ttl_seconds} s`) : null,
    entry.expires_at !== undefined ? h("span", { class: "mark" }, "expires") : null,
  ];
  return h(
    "tr",
    {},
    h(
      "th",
      { scope: "row" },
      h(
        "a",
        { class: "name", href: streamHash(entry.name), "data-row": true },
        visible(entry.name),
      ),
      marks,
    ),
    h("td", { class: "type" }, visible(entry.content_type)),
    h("td", { class: "number", "data-label": " rec." }),
    h("td", { class: "number" }),
    h("td", { class: "number rate" }),
    h("td", { class: "picture" }),
    h("td", { class: "moment" }, instant(entry.created_at)),
  );
}

function empty(prefix) {
  if (prefix) return `No stream name starts with “${visible(prefix)}”.`;
  return [
    "There are no streams yet. These commands create one and append to it:",
    h(
      "pre",
      { class: "code" },
      `curl -X PUT -H 'Content-Type: application/json' ${url("v1/stream/orders")}\ncurl -H 'Content-Type: application/json' -d '{"item": 7}' ${url("v1/stream/orders")}`,
    ),
  ];
}
