// The acts of the console: whether the node allows them, the dialog that asks for them, and the requests that it sends. Every dialog shows the
// command that does the same.

import { accessToken, ask, askJson } from "./api.js";
import { copy, h, put } from "./dom.js";
import { visible } from "./format.js";

const MARK = { "Polynya-Console": "1" }; // the node audits these requests, and refuses them where acts are off
const ACT_MS = 60_000; // to wait for the response to an act

let known = null; // {token, promise}

/** Return whether the node allows acts at all. A failed request counts as no, and is repeated for the next page. */
export function actsAllowed() {
  const token = accessToken();
  if (known?.token !== token) known = { token, promise: askJson("v1/node").then((node) => node.console?.acts === true) };
  return known.promise.catch(() => {
    known = null;
    return false;
  });
}

/** Send a request that changes something. Throws as `ask`. */
export function send(target, { method = "POST", headers = {}, body, json } = {}) {
  const typed = json === undefined ? headers : { "Content-Type": "application/json", ...headers };
  return ask(target, { method, headers: { ...typed, ...MARK }, body: json === undefined ? body : JSON.stringify(json), wait: ACT_MS });
}

/**
 * Return a row of buttons. Until the node allows acts, and until the promise `ready`, it is invisible but has its place. Each act: [word, listener, kind], the kind "",
 * "primary" or "danger".
 */
export function actRow(acts, ready = null) {
  const row = h("div", { class: "row acts waiting", role: "group", "aria-label": "Actions" }, acts.map(actButton));
  Promise.all([actsAllowed(), ready]).then(([allowed]) => {
    row.hidden = !allowed;
    row.classList.remove("waiting");
  });
  return row;
}

function actButton([word, act, kind = ""]) {
  return h("button", { type: "button", class: `button ${kind}`, on: { click: act } }, word);
}

/**
 * Ask for an act, and perform it. `spec`:
 * - title, word: the heading, and the word of the button. `danger`, or a function of the values: it destroys something
 * - intro: what happens, as text. `typed`: a name that must be typed before
 * - fields: [{name, label, kind, value, options, placeholder, help, rows, list, shown}]; kinds are "text", "area", "select" and "check"; `shown` tells
 *   by the values whether the field applies
 * - changed(values, set): called after an input; set(name, text) fills a field
 * - check(values): "" or what is wrong with them; note(values): what they mean
 * - command(values): the command that does the same
 * - run(values): performs it. Returns the words to say, or an element to show instead of the form
 * - done(): called after it, when the dialog is closed
 */
export function askAct(shell, spec) {
  new ActDialog(shell, spec).open();
}

class ActDialog {
  constructor(shell, spec) {
    this.shell = shell;
    this.spec = spec;
    this.fields = (spec.fields ?? []).map(fieldOf);
    this.touched = false;
    this.finished = false;
    this.build();
  }

  build() {
    const { spec } = this;
    this.typed = h("input", { type: "text", id: "act-typed", autocomplete: "off", spellcheck: "false" });
    this.note = h("p", { class: "label act-note", role: "status" });
    this.wrong = h("p", { class: "state wrong", role: "alert" });
    this.command = h("code", {});
    this.submit = h("button", { type: "submit", class: "button" }, spec.word);
    const copyButton = h("button", { type: "button", class: "button small", on: { click: () => this.copy() } }, "Copy");
    const cancel = h("button", { type: "button", class: "button", on: { click: () => this.dialog.close() } }, "Cancel");
    this.form = h(
      "form",
      { class: "act", on: { submit: (event) => this.act(event) } },
      spec.intro ? h("p", { class: "act-intro" }, visible(spec.intro)) : null,
      this.fields.map((field) => field.element),
      spec.typed ? h("label", { class: "field" }, h("span", {}, "Type ", h("code", {}, visible(spec.typed)), " to confirm"), this.typed) : null,
      this.note,
      spec.command ? h("div", { class: "same" }, h("div", { class: "row between" }, h("span", { class: "label" }, "The same on the command line"), copyButton), h("pre", { class: "code", tabindex: "0" }, this.command)) : null,
      this.wrong,
      h("div", { class: "row" }, this.submit, cancel),
    );
    this.form.addEventListener("input", () => this.changed());
    this.body = h("div", {}, this.form);
    this.dialog = h("dialog", { class: "act-dialog", "aria-labelledby": "act-title" }, h("h2", { id: "act-title" }, spec.title), this.body);
    this.dialog.addEventListener("close", () => this.closed());
  }

  open() {
    document.body.append(this.dialog);
    this.dialog.showModal();
    this.update();
  }

  get values() {
    return Object.fromEntries(this.fields.map((field) => [field.name, field.value]));
  }

  /** Return what is wrong with the values: "" if nothing is. */
  get fault() {
    const { spec } = this;
    if (spec.typed && this.typed.value.trim() !== spec.typed) return "The name to confirm is missing.";
    return spec.check?.(this.values) ?? "";
  }

  changed() {
    this.touched = true;
    this.spec.changed?.(this.values, (name, text) => this.fields.find((field) => field.name === name).fill(text));
    this.update();
  }

  update() {
    const { values, fault } = this;
    for (const field of this.fields) field.show(values);
    put(this.note, this.spec.note?.(values) ?? "");
    put(this.command, this.spec.command ? visible(this.spec.command(values)) : "");
    const { danger } = this.spec;
    const destroys = typeof danger === "function" ? danger(values) : danger === true;
    this.submit.className = `button ${destroys ? "danger" : "primary"}`;
    this.submit.disabled = fault !== "";
    this.submit.title = fault;
    this.tell(this.touched && !this.spec.typed ? fault : "");
  }

  tell(text) {
    put(this.wrong, visible(text));
    this.wrong.hidden = text === "";
  }

  async copy() {
    await this.shell.copy(this.spec.command(this.values), "The command");
  }

  async act(event) {
    event.preventDefault();
    if (this.submit.disabled) return;
    this.submit.disabled = true;
    put(this.submit, "Working …");
    try {
      const result = await this.spec.run(this.values);
      this.finished = true;
      if (result instanceof Node) this.showResult(result);
      else this.dialog.close();
      if (typeof result === "string") this.shell.say(result);
    } catch (error) {
      this.tell(error.status === 403 ? `Refused: ${error.message}` : error.message);
    } finally {
      put(this.submit, this.spec.word);
      this.submit.disabled = false;
    }
  }

  /** Show what came of it: it is not shown again after the dialog is closed. */
  showResult(element) {
    const close = h("button", { type: "button", class: "button primary", on: { click: () => this.dialog.close() } }, "Close");
    put(this.body, element, h("div", { class: "row" }, close));
    close.focus();
  }

  closed() {
    this.dialog.remove();
    if (this.finished) this.spec.done?.();
  }
}

/** Return {name, element, value, show, fill} of a field of a dialog. */
function fieldOf({ name, label, kind = "text", value = "", options = [], placeholder, help, rows = 6, list, shown }) {
  const id = `act-${name}`;
  const input = inputOf(kind, { id, value, options, placeholder, rows, list });
  const words = h("span", {}, label, help ? h("span", { class: "help" }, help) : null);
  const named = list ? h("datalist", { id: `${id}-list` }, list.map((each) => h("option", { value: each }))) : null;
  const element = kind === "check" ? h("label", { class: "field check" }, input, words) : h("label", { class: "field" }, words, input, named);
  return {
    name,
    element,
    get value() {
      if (kind === "check") return input.checked;
      return kind === "area" ? input.value : input.value.trim();
    },
    fill(text) {
      input.value = text;
    },
    show(values) {
      element.hidden = shown ? !shown(values) : false;
    },
  };
}

function inputOf(kind, { id, value, options, placeholder, rows, list }) {
  const plain = { id, placeholder, autocomplete: "off", spellcheck: "false" };
  if (kind === "check") return h("input", { id, type: "checkbox", checked: value === true });
  if (kind === "select") return h("select", { id }, options.map(([key, word]) => h("option", { value: key, selected: key === value }, word)));
  if (kind === "area") {
    const area = h("textarea", { ...plain, rows });
    area.value = value;
    return area;
  }
  return h("input", { ...plain, type: "text", value, list: list ? `${id}-list` : null });
}

/** Return an element that shows a secret, with a button that copies it. */
export function secretOf(words, secret, after) {
  const button = h("button", { type: "button", class: "button", on: { click: async () => put(button, (await copy(secret)) ? "Copied" : "Not copied") } }, "Copy");
  return h("div", { class: "secret" }, h("p", {}, words), h("pre", { class: "code", tabindex: "0" }, h("code", { id: "secret" }, secret)), h("div", { class: "row" }, button), after ? h("p", { class: "hint" }, after) : null);
}
