// JSON in its original text: numbers keep their digits, keys their order and their repetitions. Pure.
//
// `JSON.parse` rounds large numbers and drops repeated keys; the console shows exactly what was appended.

const DEPTH_MAX = 256;
const SPACE = /[ \t\n\r]*/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const WORD = /true|false|null/y;
const IN_STRING = /["\\]/g;
const OUTSIDE = /["[\]{},]/g;

/**
 * The tree of a text: {kind, source} of scalars ("string", "number", "word"), {kind: "array", items} and {kind: "object", entries}, each entry
 * [key's source, node]. Throws SyntaxError.
 */
export function parse(text) {
  const reader = new Reader(text);
  const node = reader.value(0);
  reader.space();
  if (reader.at !== text.length) reader.fail();
  return node;
}

/** Take an array, or an object, apart as its text arrives: `feed` returns the source texts of the members that are complete, without parsing them. */
export class Members {
  #pieces = []; // of the member that is not complete
  #depth = 0;
  #inString = false;
  #escaped = false; // the last piece ended in a backslash
  ended = false;

  feed(text) {
    const found = [];
    let begin = 0;
    let at = this.#escaped ? 1 : 0;
    this.#escaped = false;
    const take = (end) => {
      this.#pieces.push(text.slice(begin, end));
      found.push(this.#pieces.join("").trim());
      this.#pieces = [];
    };
    while (!this.ended) {
      const marks = this.#inString ? IN_STRING : OUTSIDE;
      marks.lastIndex = at;
      const mark = marks.exec(text);
      if (!mark) break;
      at = marks.lastIndex;
      const [sign] = mark;
      if (sign === "\\") {
        this.#escaped = at === text.length;
        at += 1;
      } else if (sign === '"') {
        this.#inString = !this.#inString;
      } else if (sign === "[" || sign === "{") {
        this.#depth += 1;
        if (this.#depth === 1) begin = at;
      } else if (sign === ",") {
        if (this.#depth === 1) {
          take(at - 1);
          begin = at;
        }
      } else {
        this.#depth -= 1;
        if (this.#depth > 0) continue;
        take(at - 1);
        if (!found.at(-1)) found.pop(); // it has no members
        this.ended = true;
      }
    }
    if (this.#depth > 0 && begin < text.length) this.#pieces.push(text.slice(begin));
    return found;
  }
}

/** Return the source texts of the members of an array or an object. Throws SyntaxError. */
export function elements(text) {
  const members = new Members();
  const found = members.feed(text);
  if (!members.ended) throw new SyntaxError("not a complete JSON array");
  return found;
}

/** Return the value of a string's source text. */
export function unquoted(source) {
  return JSON.parse(source);
}

/** Convert a node to JavaScript values, with numbers as their source: {number: "1.50"}. */
export function plain(node) {
  if (node.kind === "array") return node.items.map(plain);
  if (node.kind === "object") return Object.fromEntries(node.entries.map(([key, value]) => [`${unquoted(key)}`, plain(value)]));
  if (node.kind === "string") return unquoted(node.source);
  if (node.kind === "number") return { number: node.source };
  return { true: true, false: false, null: null }[node.source];
}

class Reader {
  constructor(text) {
    this.text = text;
    this.at = 0;
  }

  fail() {
    throw new SyntaxError(`invalid JSON at character ${this.at}`);
  }

  take(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (!found) this.fail();
    this.at = pattern.lastIndex;
    return found[0];
  }

  space() {
    this.take(SPACE);
  }

  value(depth) {
    if (depth > DEPTH_MAX) this.fail();
    this.space();
    const sign = this.text[this.at];
    if (sign === "{") return this.object(depth);
    if (sign === "[") return this.array(depth);
    if (sign === '"') return { kind: "string", source: this.take(STRING) };
    if (sign === "t" || sign === "f" || sign === "n") return { kind: "word", source: this.take(WORD) };
    return { kind: "number", source: this.take(NUMBER) };
  }

  array(depth) {
    const items = [];
    this.members("]", () => items.push(this.value(depth + 1)));
    return { kind: "array", items };
  }

  object(depth) {
    const entries = [];
    this.members("}", () => {
      this.space();
      const key = this.take(STRING);
      this.space();
      if (this.text[this.at] !== ":") this.fail();
      this.at += 1;
      entries.push([key, this.value(depth + 1)]);
    });
    return { kind: "object", entries };
  }

  members(end, member) {
    this.at += 1;
    this.space();
    if (this.text[this.at] === end) {
      this.at += 1;
      return;
    }
    for (;;) {
      member();
      this.space();
      const sign = this.text[this.at];
      this.at += 1;
      if (sign === end) return;
      if (sign !== ",") {
        this.at -= 1;
        this.fail();
      }
    }
  }
}
