// The members of a small JSON object.

const QUOTE: u8 = 0x22;
const COLON: u8 = 0x3a;
const COMMA: u8 = 0x2c;
const BACKSLASH: u8 = 0x5c;
const OPEN: u8 = 0x7b;
const CLOSE: u8 = 0x7d;
const OPEN_LIST: u8 = 0x5b;
const CLOSE_LIST: u8 = 0x5d;

/** Return a member that is a string; null if there is none. */
export function stringOf(object: Uint8Array, name: string): string | null {
  const text = fieldOf(object, name);
  return text === null ? null : unquoted(text);
}

/** Return a member that is a whole number. Throws if there is none. */
export function integerOf(object: Uint8Array, name: string): i64 {
  const text = fieldOf(object, name);
  if (text === null) throw new Error(`it has no ${name}`);
  return integer(text);
}

/** Return the text of a member, as it is written; null if there is none. */
export function fieldOf(object: Uint8Array, name: string): string | null {
  const walk = new Members(object);
  let found: string | null = null;
  while (walk.next()) if (walk.name == name) found = walk.value;
  return walk.valid ? found : null;
}

/** Return the whole number that a JSON text is. */
export function integer(text: string): i64 {
  const negative = text.startsWith("-");
  if (text.length == (negative ? 1 : 0) || text.length > 19) throw new Error(`${text} is no whole number`);
  let value: i64 = 0;
  for (let at = negative ? 1 : 0; at < text.length; at++) {
    const digit = text.charCodeAt(at) - 48;
    if (digit < 0 || digit > 9) throw new Error(`${text} is no whole number`);
    value = value * 10 + digit;
  }
  return negative ? -value : value;
}

/** Return a string in JSON. */
export function quoted(text: string): string {
  let out = '"';
  for (let at = 0; at < text.length; at++) {
    const code = text.charCodeAt(at);
    if (code == 0x22) out += '\\"';
    else if (code == 0x5c) out += "\\\\";
    else if (code == 10) out += "\\n";
    else if (code == 13) out += "\\r";
    else if (code == 9) out += "\\t";
    else if (code < 32) out += "\\u" + code.toString(16).padStart(4, "0");
    else out += text.charAt(at);
  }
  return out + '"';
}

/** Return the string that a JSON text in quotes is; null if it is none. */
export function unquoted(text: string): string | null {
  if (text.length < 2 || text.charCodeAt(0) != 0x22) return null;
  if (text.indexOf("\\") < 0) return text.substring(1, text.length - 1);
  let out = "";
  for (let at = 1; at < text.length - 1; at++) {
    if (text.charCodeAt(at) != 0x5c) {
      out += text.charAt(at);
      continue;
    }
    const each = text.charAt(++at);
    if (each == "n") out += "\n";
    else if (each == "t") out += "\t";
    else if (each == "r") out += "\r";
    else if (each == "b") out += "\b";
    else if (each == "f") out += "\f";
    else if (each == "u") {
      out += String.fromCharCode(<i32>parseInt(text.substring(at + 1, at + 5), 16));
      at += 4;
    } else out += each;
  }
  return out;
}

/** Walks the members of an object in their order. */
export class Members {
  name: string = "";
  /** The text of the value, as it is written. */
  value: string = "";
  /** Whether it was an object to its end. */
  valid: bool = false;
  private at: usize;
  private end: usize;
  private first: bool = true;

  constructor(private object: Uint8Array) {
    this.at = object.dataStart;
    this.end = object.dataStart + object.length;
  }

  /** Go to the next member; false after the last one. */
  next(): bool {
    const separator = this.first ? OPEN : COMMA;
    const found = this.byte();
    if (!this.first && found == CLOSE) this.valid = true;
    if (found != separator) return false;
    this.at++;
    if (this.first && this.byte() == CLOSE) this.valid = true;
    this.first = false;
    if (this.valid || this.byte() != QUOTE) return false;
    const name = unquoted(this.text());
    if (name === null || this.byte() != COLON) return false;
    this.at++;
    this.byte();
    this.name = name;
    this.value = this.text();
    return this.value.length > 0;
  }

  /** Pass over white space and return the byte there, 0 at the end. */
  private byte(): u8 {
    while (this.at < this.end) {
      const byte = load<u8>(this.at);
      if (byte > 32) return byte;
      this.at++;
    }
    return 0;
  }

  /** Take the value that begins here; empty if it has no end. */
  private text(): string {
    const begin = this.at;
    let depth = 0;
    while (this.at < this.end) {
      const byte = load<u8>(this.at);
      if (byte == QUOTE) {
        while (++this.at < this.end && load<u8>(this.at) != QUOTE) {
          if (load<u8>(this.at) == BACKSLASH) this.at++;
        }
        if (this.at >= this.end) return "";
      } else if (byte == OPEN || byte == OPEN_LIST) depth++;
      else if (byte == CLOSE || byte == CLOSE_LIST) {
        if (depth == 0) return "";
        depth--;
      } else if (depth == 0) {
        if (byte == COMMA || byte == COLON) return "";
        while (this.at + 1 < this.end && !ends(load<u8>(this.at, 1))) this.at++;
      }
      this.at++;
      if (depth == 0) return String.UTF8.decodeUnsafe(begin, this.at - begin);
    }
    return "";
  }
}

function ends(byte: u8): bool {
  return byte <= 32 || byte == COMMA || byte == CLOSE || byte == CLOSE_LIST;
}
