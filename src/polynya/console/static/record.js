// One record: its row in a list; its facts, and its value as a tree, as text and in hexadecimal.

import { h, put } from "./dom.js";
import { bytes, count, instant, utc, visible, visibleLines } from "./format.js";
import { parse, unquoted } from "./json.js";

const PREVIEW_CHARACTERS = 240;
const KEY_CHARACTERS = 60;
const DATA_CHARACTERS = 2000; // of a key, or of a header
const HEADERS_MAX = 200;
const TREE_BYTES_MAX = 1 << 20;
const TEXT_BYTES_MAX = 256 << 10;
const HEX_STEP = 2048;
const HEX_NARROW_PIXELS = 470; // below this width, a line has eight bytes
const CHILDREN_STEP = 200;
const OPEN_DEPTH = 3;
const TOKENS = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*)|\b(true|false|null)\b/g;

/** Return the row of a record, a button that calls `open` with itself. */
export function rowOf(record, open) {
  const headers = record.headers.length;
  return h(
    "li",
    {},
    h(
      "button",
      { type: "button", class: "record", "data-row": true, on: { click: (event) => open(event.currentTarget) } },
      h("span", { class: "at" }, `${record.offset}`),
      h("time", { class: "when", title: utc(timeOf(record)) }, instant(timeOf(record) ?? NaN)),
      h(
        "span",
        { class: "what" },
        record.key === null ? null : h("code", { class: "key", title: "The key" }, dataText(record.key, KEY_CHARACTERS) || "“”"),
        preview(record),
        headers ? h("span", { class: "mark" }, `${count(headers)} ${headers === 1 ? "header" : "headers"}`) : null,
      ),
      h("span", { class: "size" }, record.absent ? "–" : bytes(record.bytes.length)),
    ),
  );
}

/** Return the time of a record: its own, else that of its append; null if neither is known. */
export function timeOf(record) {
  return record.timestamp ?? record.appendTime;
}

/** Return the value as text to copy, in hexadecimal if it is not UTF-8. */
export function valueText(record) {
  return isReadable(record.bytes) ? new TextDecoder().decode(record.bytes) : hexOf(record.bytes);
}

function preview(record) {
  if (record.absent) return h("span", { class: "preview absent" }, "no value");
  const cut = record.bytes.subarray(0, PREVIEW_CHARACTERS * 3);
  if (!isReadable(record.bytes)) return h("code", { class: "preview hex" }, hexOf(record.bytes.subarray(0, 48)));
  let text = decoded(cut);
  const more = text.length > PREVIEW_CHARACTERS || cut.length < record.bytes.length;
  text = visible(text.slice(0, PREVIEW_CHARACTERS).replace(/\r?\n$/, "")) + (more ? " …" : "");
  return h("code", { class: "preview" }, looksLikeJson(record) ? colored(text) : text);
}

/** Return a key or the value of a header as text, or in hexadecimal if it is not UTF-8. */
export function dataText(data, charactersMax) {
  const cut = data.subarray(0, charactersMax);
  const text = isReadable(data) ? visible(decoded(cut)) : `0x${hexOf(cut).replaceAll(" ", "")}`;
  return data.length > cut.length || text.length > charactersMax * 2 ? `${text.slice(0, charactersMax)} …` : text;
}

/** Decode the beginning of a text, of which the last character may be cut. */
function decoded(data) {
  return new TextDecoder().decode(data, { stream: true });
}

function looksLikeJson(record) {
  const text = decoded(record.bytes.subarray(0, 64)).trimStart();
  return text.startsWith("{") || text.startsWith("[") || record.asJson;
}

/** Return text with JSON syntax highlighted. */
function colored(text) {
  const parts = [];
  let begin = 0;
  for (const found of text.matchAll(TOKENS)) {
    if (found.index > begin) parts.push(text.slice(begin, found.index));
    const [all, string, colon, number] = found;
    if (string) parts.push(h("span", { class: colon ? "j-key" : "j-string" }, string), colon ?? "");
    else parts.push(h("span", { class: number ? "j-number" : "j-word" }, all));
    begin = found.index + all.length;
  }
  parts.push(text.slice(begin));
  return parts;
}

function isReadable(data) {
  const sample = data.subarray(0, 512);
  let strange = 0;
  const text = sample.length < data.length ? decoded(sample) : new TextDecoder().decode(sample);
  for (const character of text) if (character === "\ufffd" || (character < " " && !"\t\r\n".includes(character))) strange += 1;
  return strange <= text.length / 16;
}

function hexOf(data) {
  return Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

/** A page of a list of records beside their pane: it has `list`, `rows`, `pane` and `element`. */
export class PanedView {
  paneKeys() {
    return {
      j: () => this.walk(1),
      k: () => this.walk(-1),
      1: () => this.pane.mode("tree"),
      2: () => this.pane.mode("text"),
      3: () => this.pane.mode("hex"),
    };
  }

  walk(step) {
    const target = this.rows.move(step);
    if (target && !this.pane.element.hidden) target.click();
  }

  openRecord(record, button) {
    for (const other of this.list.querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
    button.setAttribute("aria-current", "true");
    this.pane.show(record);
    this.element.classList.add("with-pane");
  }

  closePane() {
    this.pane.hide();
    this.element.classList.remove("with-pane");
    const row = this.list.querySelector("[aria-current]");
    row?.removeAttribute("aria-current");
    row?.focus();
  }
}

/** The record pane. `show(record)` fills it; `mode(name)` switches between "tree", "text" and "hex". */
export class Pane {
  #mode = null;
  #record = null;

  /** `actions` are [name, title, function of the record] of buttons; the pane's close button calls `close`. */
  constructor(actions, close) {
    this.title = h("h2", { id: "record-title" }, "");
    this.about = h("dl", { class: "about" });
    this.body = h("div", { class: "record-body", tabindex: "0", role: "region", "aria-label": "The record" });
    this.tabs = ["tree", "text", "hex"].map((mode, index) =>
      h(
        "button",
        {
          type: "button",
          class: "tab",
          "aria-pressed": "false",
          "data-mode": mode,
          title: String(index + 1),
          on: { click: () => this.mode(mode) },
        },
        mode,
      ),
    );
    this.element = h(
      "section",
      { class: "pane", "aria-labelledby": "record-title", hidden: true },
      h(
        "div",
        { class: "row between" },
        this.title,
        h("button", { type: "button", class: "tool", "aria-label": "Close the record", on: { click: close } }, "✕"),
      ),
      this.about,
      h(
        "div",
        { class: "row between" },
        h("div", { class: "tabs", role: "group", "aria-label": "View" }, this.tabs),
        h(
          "div",
          { class: "row" },
          actions.map(([name, title, act]) =>
            h("button", { type: "button", class: "button small", title, on: { click: () => act(this.#record) } }, name),
          ),
        ),
      ),
      this.body,
    );
  }

  get record() {
    return this.#record;
  }

  /** A record with `facts`, [name, value] of each, shows these instead of its own. */
  show(record) {
    this.#record = record;
    put(this.title, record.partition === undefined ? `Offset ${record.offset}` : `Partition ${record.partition}, offset ${record.offset}`);
    put(this.about, record.facts ? record.facts.map(([name, value]) => fact(name, value)) : factsOf(record));
    this.element.hidden = false;
    this.mode(this.#mode ?? modeOf(record), { chosen: false });
  }

  hide() {
    this.element.hidden = true;
    this.#record = null;
  }

  mode(name, { chosen = true } = {}) {
    if (!this.#record) return;
    if (chosen) this.#mode = name;
    for (const tab of this.tabs) tab.setAttribute("aria-pressed", String(tab.dataset.mode === name));
    this.body.scrollTop = 0;
    put(
      this.body,
      name === "tree"
        ? treeOf(this.#record)
        : name === "hex"
          ? hexView(this.#record, this.body.clientWidth < HEX_NARROW_PIXELS ? 8 : 16)
          : textOf(this.#record),
    );
  }
}

/** Return the view that suits a record. */
function modeOf(record) {
  if (!isReadable(record.bytes)) return "hex";
  if (record.asJson) return "tree";
  return looksLikeJson(record) && record.bytes.length <= TREE_BYTES_MAX && parsed(record) ? "tree" : "text";
}

function fact(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

/** Return the facts of a record beside its value, as terms and their descriptions. */
function factsOf(record) {
  const data = (value) => (value === null ? h("span", { class: "absent" }, "none") : h("code", {}, dataText(value, DATA_CHARACTERS) || "“”"));
  const moment = (name, at) => (at === null ? null : fact(name, h("time", { title: utc(at) }, instant(at, { exact: true }) || String(at))));
  const { headers } = record;
  return [
    fact("Key", data(record.key)),
    moment("Record time", record.timestamp),
    moment("Append time", record.appendTime),
    fact("Size", bytes(record.bytes.length)),
    headers.length ? fact("Headers", h("ul", { class: "headers" }, headers.slice(0, HEADERS_MAX).map(([name, value]) => h("li", {}, h("code", {}, visible(name)), ": ", data(value))))) : null,
    headers.length > HEADERS_MAX ? fact("", `… and ${count(headers.length - HEADERS_MAX)} more headers`) : null,
  ];
}

/** Return the tree of a record's value, or null if it is not JSON. */
function parsed(record) {
  try {
    return parse(new TextDecoder("utf-8", { fatal: true }).decode(record.bytes));
  } catch {
    return null;
  }
}

function treeOf(record) {
  if (record.bytes.length > TREE_BYTES_MAX)
    return h("p", { class: "quiet" }, `The tree shows records up to ${bytes(TREE_BYTES_MAX)}; use the text view.`);
  const root = parsed(record);
  if (!root) return h("p", { class: "quiet" }, "This record is not JSON; use the text or hex view.");
  return h("div", { class: "tree" }, node(null, root, 0));
}

function node(key, value, depth) {
  const label =
    key === null
      ? null
      : h(
          "span",
          { class: typeof key === "number" ? "j-index" : "j-key" },
          typeof key === "number" ? `${key}` : visible(unquoted(key)),
          ": ",
        );
  if (value.kind === "string")
    return h("div", { class: "leaf" }, label, h("span", { class: "j-string" }, visibleLines(unquoted(value.source)) || "“”"));
  if (value.kind === "number" || value.kind === "word")
    return h("div", { class: "leaf" }, label, h("span", { class: `j-${value.kind}` }, value.source));
  const children = value.kind === "array" ? value.items.map((item, index) => [index, item]) : value.entries;
  const [begin, end] = value.kind === "array" ? "[]" : "{}";
  if (!children.length) return h("div", { class: "leaf" }, label, h("span", { class: "j-mark" }, begin + end));
  const inside = h("div", { class: "inside" });
  const told = `${begin} ${children.length} ${value.kind === "array" ? (children.length === 1 ? "item" : "items") : children.length === 1 ? "field" : "fields"} ${end}`;
  const details = h("details", { open: depth < OPEN_DEPTH }, h("summary", {}, label, h("span", { class: "j-mark" }, told)), inside);
  const grow = () => more(inside, children, depth);
  if (depth < OPEN_DEPTH) grow();
  else details.addEventListener("toggle", grow, { once: true });
  return details;
}

/** Add children in steps, so that an array of a million does not block the page. */
function more(inside, children, depth, from = 0) {
  const end = Math.min(from + CHILDREN_STEP, children.length);
  inside.append(...children.slice(from, end).map(([key, value]) => node(key, value, depth + 1)));
  if (end === children.length) return;
  const button = h("button", { type: "button", class: "button small" }, `${children.length - end} more`);
  button.addEventListener("click", () => {
    button.remove();
    more(inside, children, depth, end);
  });
  inside.append(button);
}

function textOf(record) {
  if (record.absent) return h("p", { class: "quiet" }, "This record has no value. In Kafka such a record deletes its key.");
  const cut = record.bytes.subarray(0, TEXT_BYTES_MAX);
  const text = visibleLines(decoded(cut));
  const left = record.bytes.length - cut.length;
  return [
    h("pre", { class: "text" }, looksLikeJson(record) && text.length < 20_000 ? colored(text) : text),
    left ? h("p", { class: "quiet" }, `… and ${bytes(left)} more`) : null,
  ];
}

function hexView(record, perLine) {
  const box = h("div", { class: "hex-view" });
  const grow = (from) => {
    const end = Math.min(from + HEX_STEP, record.bytes.length);
    box.append(h("pre", { class: "text" }, hexLines(record.bytes, from, end, perLine)));
    if (end === record.bytes.length) return;
    const button = h("button", { type: "button", class: "button small" }, `${bytes(record.bytes.length - end)} more`);
    button.addEventListener("click", () => {
      button.remove();
      grow(end);
    });
    box.append(button);
  };
  grow(0);
  return box;
}

/** Return lines of an offset, up to `perLine` bytes in hexadecimal, and the same as ASCII. */
function hexLines(data, from, end, perLine) {
  const lines = [];
  for (let at = from; at < end; at += perLine) {
    const row = data.subarray(at, Math.min(at + perLine, end));
    const numbers = Array.from(row, (byte, index) => byte.toString(16).padStart(2, "0") + (index % 8 === 7 ? " " : "")).join(" ");
    const letters = Array.from(row, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${numbers.padEnd(perLine * 3 + perLine / 8)} ${letters}`);
  }
  return lines.join("\n");
}
