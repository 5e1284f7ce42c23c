// One subject of the schema registry: its versions, the text of one, and what it changed.

import { actRow } from "./acts.js";
import { askJson, curl, url } from "./api.js";
import { cli } from "./commands.js";
import { differing } from "./diff.js";
import { h, put } from "./dom.js";
import { count, visible, visibleLines } from "./format.js";
import { curlButton, grid, page, titleOf } from "./page.js";
import { Rows } from "./rows.js";
import { deleteSubject, registerSchema, ROOT, setLevel, subjectHash } from "./schema_acts.js";

const SHOWN_MAX = 500; // versions, the newest ones
const TEXT_MAX = 1 << 20;

export function open(place, shell) {
  return new SubjectView(place.rest, Number(place.query.get("version")) || 0, shell);
}

class SubjectView {
  constructor(subject, version, shell) {
    this.subject = subject;
    this.version = version; // 0: the newest
    this.shell = shell;
    this.title = visible(subject);
    this.abort = new AbortController();
    this.body = h("tbody", {});
    this.rows = new Rows(this.body);
    this.numbers = h("dl", { class: "numbers" });
    this.note = h("p", { class: "state", role: "status" });
    this.heading = h("h2", {}, "Text");
    this.text = h("pre", { class: "code schema-text", tabindex: "0" });
    const command = h("button", { type: "button", class: "button", on: { click: () => this.copyCommand() } }, "Copy command");
    const heads = [["Version", "number"], ["Id", "number"], ["Type", "type"], ["Refers to", ""]];
    this.element = page(
      titleOf(subject, "Schemas", "#/schemas"),
      [command, curlButton(() => this.copyCurl())],
      this.numbers,
      this.acts(),
      this.note,
      h("div", { class: "panel scroll" }, grid("nodes", heads, this.body)),
      this.heading,
      this.text,
    );
    this.keys = {
      j: () => this.rows.move(1),
      k: () => this.rows.move(-1),
      c: () => this.copyCurl(),
      x: () => this.copyCommand(),
      Escape: () => shell.go("#/schemas"),
    };
    this.read();
  }

  close() {
    this.abort.abort();
  }

  acts() {
    const { shell, subject } = this;
    const again = () => this.read();
    const acts = [
      ["Register a version …", () => registerSchema(shell, this.newest, again), "primary"],
      ["Level …", () => setLevel(shell, subject, this.level, again)],
      ["Delete …", () => deleteSubject(shell, subject), "danger"],
    ];
    return actRow(acts, new Promise((resolve) => (this.onKnown = resolve)));
  }

  get path() {
    return `${ROOT}/subjects/${encodeURIComponent(this.subject)}/versions`;
  }

  async read() {
    try {
      const options = { signal: this.abort.signal };
      const found = await askJson(`${ROOT}/schemas`, { subjectPrefix: this.subject }, options);
      const config = await askJson(`${ROOT}/config/${encodeURIComponent(this.subject)}`, { defaultToGlobal: true }, options);
      this.draw(found.filter((each) => each.subject === this.subject).reverse(), config.compatibilityLevel);
    } catch (error) {
      if (!this.abort.signal.aborted) this.tell(`The subject cannot be read: ${error.message}`);
    }
  }

  draw(versions, level) {
    if (!versions.length) {
      this.tell(`There is no subject '${visible(this.subject)}'.`);
      return;
    }
    this.newest = versions[0];
    this.level = level ?? "BACKWARD";
    this.onKnown();
    put(
      this.numbers,
      [["Versions", count(versions.length)], ["Compatibility", visible(level ?? "–")]].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
    );
    if (versions.length > SHOWN_MAX) put(this.note, `The newest ${count(SHOWN_MAX)} of ${count(versions.length)} versions.`);
    this.rows.show(versions.slice(0, SHOWN_MAX), (each) => String(each.version), (each) => this.row(each), () => {});
    const at = Math.max(0, versions.findIndex((each) => each.version === this.version));
    this.show(versions[at], versions[at + 1]);
  }

  /** Show the text of a version, with what it changed against the one before. */
  show(version, before) {
    const shown = version.version;
    put(this.heading, before ? `Version ${shown}, against version ${before.version}` : `Version ${shown}`);
    const text = pretty(version);
    if (text.length > TEXT_MAX) put(this.text, visibleLines(text.slice(0, TEXT_MAX)), " …");
    else if (!before || before.schemaType !== version.schemaType) put(this.text, visibleLines(text));
    else put(this.text, differing(pretty(before), text).map(lineOf));
    for (const link of this.body.querySelectorAll("a[data-row]")) {
      if (Number(link.dataset.row) === shown) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  row(each) {
    const references = (each.references ?? []).map(({ name, subject, version }) => [
      h("a", { class: "name", href: `${subjectHash(subject)}?version=${version}` }, visible(`${name} = ${subject}:${version}`)),
      " ",
    ]);
    return h(
      "tr",
      {},
      h("th", { scope: "row", class: "number" }, h("a", { class: "name", href: `${subjectHash(this.subject)}?version=${each.version}`, "data-row": each.version }, count(each.version))),
      h("td", { class: "number" }, String(each.id)),
      h("td", { class: "type" }, visible(each.schemaType ?? "AVRO")),
      h("td", {}, references),
    );
  }

  tell(text) {
    put(this.note, text);
    this.note.classList.add("wrong");
  }

  copyCurl() {
    this.shell.copy(curl(url(`${this.path}/${this.version || "latest"}`)), "The command");
  }

  copyCommand() {
    this.shell.copy(cli("schema get", [this.subject], this.version ? { "--version": this.version } : {}), "The command");
  }
}

/** Return the text of a schema over several lines. Protobuf has its own. */
function pretty({ schema, schemaType = "AVRO" }) {
  if (schemaType === "PROTOBUF") return schema;
  try {
    return JSON.stringify(JSON.parse(schema), null, 2);
  } catch {
    return schema;
  }
}

function lineOf({ mark, text }) {
  const kind = { "+": "added", "-": "removed" }[mark];
  return h("span", { class: kind ? `line ${kind}` : "line" }, `${mark} ${visibleLines(text)}\n`);
}
