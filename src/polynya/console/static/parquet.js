// The result of an SQL query as a Parquet file: one row group, plain values, no compression. Pure.
//
// The format: https://parquet.apache.org/docs/file-format/, with metadata in Thrift's compact protocol.

import { uniqueNames } from "./export.js";
import { unquoted } from "./json.js";
import { compactJson } from "./result.js";

const MAGIC = new TextEncoder().encode("PAR1");
const [BOOLEAN, INT32, INT64, DOUBLE, BYTES] = [0, 1, 2, 5, 6]; // physical types
const [UTF8, DECIMAL, DATE] = [0, 5, 6]; // converted types
const [PLAIN, RLE] = [0, 3]; // encodings
const OPTIONAL = 1;
const [THRIFT_TRUE, THRIFT_FALSE, THRIFT_I32, THRIFT_I64, THRIFT_BINARY, THRIFT_LIST, THRIFT_STRUCT] = [1, 2, 5, 6, 8, 9, 12];
const DIGITS_MAX = 18; // of a decimal in 64 bits
const DAY_MS = 86_400_000;
const TIME = /^(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?(Z|[+-]\d\d(?::?\d\d)?)?$/;

/** Return the bytes of the file. Integers, decimals up to 18 digits, doubles, booleans, dates and times have their types; the others are text, as on the page. */
export function parquetOf({ columns, rows }) {
  const out = new Bytes();
  out.raw(MAGIC);
  const names = uniqueNames(columns.map((column) => column.name));
  const chunks = columns.map(({ type }, index) => chunkOf(out, names[index], kindOf(type, rows.map((row) => row.items[index]))));
  const begin = out.length;
  const total = chunks.reduce((sum, chunk) => sum + chunk.size, 0);
  const group = [[1, list(THRIFT_STRUCT, chunks.map((chunk) => chunk.meta))], [2, i64(total)], [3, i64(rows.length)]];
  const root = [[4, text("schema")], [5, i32(columns.length)]];
  struct(out, [
    [1, i32(1)],
    [2, list(THRIFT_STRUCT, [root, ...chunks.map((chunk) => chunk.schema)])],
    [3, i64(rows.length)],
    [4, list(THRIFT_STRUCT, [group])],
    [6, text("polynya console")],
  ]);
  out.little(out.length - begin, 4);
  out.raw(MAGIC);
  return out.all();
}

// --- values -------------------------------------------------------------------------------------------------------------------------------

/** Return how a column is stored, {physical, fields, values}: `fields` are those of its schema, and a null among the values is one. */
function kindOf(type, nodes) {
  for (const kind of [kindOfNumber, kindOfTime]) {
    const found = kind(type, nodes);
    if (found && found.values.every((value) => value !== undefined)) return found;
  }
  return { physical: BYTES, fields: [[6, i32(UTF8)]], values: nodes.map((node) => (isNull(node) ? null : new TextEncoder().encode(textOf(node)))) };
}

function kindOfNumber(type, nodes) {
  const of = (value) => nodes.map((node) => (isNull(node) ? null : value(textOf(node))));
  if (/^(TINYINT|SMALLINT|INTEGER|BIGINT|UTINYINT|USMALLINT|UINTEGER)$/.test(type)) return { physical: INT64, fields: [], values: of(BigInt) };
  if (/^(DOUBLE|FLOAT)$/.test(type)) return { physical: DOUBLE, fields: [], values: of(Number) };
  if (type === "BOOLEAN") return { physical: BOOLEAN, fields: [], values: of((source) => source === "true") };
  const [, precision, scale] = /^DECIMAL\((\d+),\s*(\d+)\)$/.exec(type) ?? [];
  if (!precision || Number(precision) > DIGITS_MAX) return null;
  return { physical: INT64, fields: [[6, i32(DECIMAL)], [7, i32(Number(scale))], [8, i32(Number(precision))]], values: of((source) => unscaled(source, Number(scale))) };
}

function kindOfTime(type, nodes) {
  const of = (value) => nodes.map((node) => (isNull(node) ? null : value(textOf(node))));
  if (type === "DATE") return { physical: INT32, fields: [[6, i32(DATE)]], values: of((source) => whole(Date.parse(source) / DAY_MS)) };
  if (!/^TIMESTAMP( WITH TIME ZONE)?$/.test(type)) return null;
  const isUtc = type !== "TIMESTAMP";
  const timestamp = [[1, bool(isUtc)], [2, nested([[2, nested([])]])]]; // in microseconds
  return { physical: INT64, fields: [[10, nested([[8, nested(timestamp)]])]], values: of(microseconds) };
}

function isNull(node) {
  return node.kind === "word" && node.source === "null";
}

function textOf(node) {
  if (node.kind === "string") return unquoted(node.source);
  return node.kind === "number" || node.kind === "word" ? node.source : compactJson(node);
}

function whole(number) {
  return Number.isInteger(number) ? number : undefined;
}

/** Return a decimal without its point; undefined if it has more digits behind it. */
function unscaled(source, scale) {
  const [, sign, before, after = ""] = /^([+-]?)(\d*)(?:\.(\d*))?$/.exec(source) ?? [];
  return before === undefined || after.length > scale ? undefined : BigInt(`${sign === "-" ? "-" : ""}${before}${after.padEnd(scale, "0")}`);
}

/** Return a time in microseconds since 1970; undefined if it is finer, or spelled otherwise. */
function microseconds(source) {
  const found = TIME.exec(source);
  if (!found) return undefined;
  const [, day, time, fraction = "", zone = "Z"] = found;
  const seconds = Date.parse(`${day}T${time}${/^[+-]\d\d$/.test(zone) ? `${zone}:00` : zone}`) / 1000;
  return Number.isNaN(seconds) ? undefined : BigInt(seconds) * 1_000_000n + BigInt(fraction.padEnd(6, "0"));
}

/** Write a column as one page; return the parts of the metadata that describe it, and its size. */
function chunkOf(out, name, { physical, fields, values }) {
  const body = new Bytes();
  const levels = bits(values.map((value) => value !== null));
  const run = new Bytes();
  run.varint((levels.length << 1) | 1); // one run of bit-packed groups of eight
  run.raw(levels);
  body.little(run.length, 4);
  body.raw(run.all());
  plain(body, physical, values.filter((value) => value !== null));
  const begin = out.length;
  const data = [[1, i32(values.length)], [2, i32(PLAIN)], [3, i32(RLE)], [4, i32(RLE)]];
  struct(out, [[1, i32(0)], [2, i32(body.length)], [3, i32(body.length)], [5, nested(data)]]);
  out.raw(body.all());
  const size = out.length - begin;
  const meta = [
    [1, i32(physical)],
    [2, list(THRIFT_I32, [PLAIN, RLE])],
    [3, list(THRIFT_BINARY, [name])],
    [4, i32(0)],
    [5, i64(values.length)],
    [6, i64(size)],
    [7, i64(size)],
    [9, i64(begin)],
  ];
  return { size, schema: [[1, i32(physical)], [3, i32(OPTIONAL)], [4, text(name)], ...fields], meta: [[2, i64(begin)], [3, nested(meta)]] };
}

function plain(out, physical, values) {
  if (physical === BOOLEAN) out.raw(bits(values));
  for (const value of physical === BOOLEAN ? [] : values) {
    if (physical === BYTES) {
      out.little(value.length, 4);
      out.raw(value);
    } else if (physical === DOUBLE) out.raw(new Uint8Array(new Float64Array([value]).buffer));
    else if (physical === INT32) out.little(value, 4);
    else out.raw(new Uint8Array(new BigInt64Array([value]).buffer));
  }
}

/** Pack truths into bytes, the first one in the lowest bit. */
function bits(truths) {
  const packed = new Uint8Array(Math.ceil(truths.length / 8));
  truths.forEach((truth, index) => truth && (packed[index >> 3] |= 1 << (index & 7)));
  return packed;
}

// --- Thrift -------------------------------------------------------------------------------------------------------------------------------

const i32 = (value) => ({ type: THRIFT_I32, value });
const i64 = (value) => ({ type: THRIFT_I64, value });
const text = (value) => ({ type: THRIFT_BINARY, value });
const bool = (value) => ({ type: value ? THRIFT_TRUE : THRIFT_FALSE });
const list = (of, value) => ({ type: THRIFT_LIST, of, value });
const nested = (value) => ({ type: THRIFT_STRUCT, value });

/** Write fields, [id, value] in the order of their ids. */
function struct(out, fields) {
  let last = 0;
  for (const [id, field] of fields) {
    out.byte(((id - last) << 4) | field.type);
    last = id;
    write(out, field.type, field.value, field.of);
  }
  out.byte(0);
}

function write(out, type, value, of) {
  if (type === THRIFT_I32 || type === THRIFT_I64) out.varint(value * 2); // zigzag; no value here is negative
  else if (type === THRIFT_STRUCT) struct(out, value);
  else if (type === THRIFT_BINARY) {
    const data = new TextEncoder().encode(value);
    out.varint(data.length);
    out.raw(data);
  } else if (type === THRIFT_LIST) {
    out.byte(value.length < 15 ? (value.length << 4) | of : 0xf0 | of);
    if (value.length >= 15) out.varint(value.length);
    for (const each of value) write(out, of, each);
  }
}

/** Bytes that grow. */
class Bytes {
  #parts = [];
  length = 0;

  raw(data) {
    this.#parts.push(data);
    this.length += data.length;
  }

  byte(value) {
    this.raw(Uint8Array.of(value));
  }

  little(value, size) {
    this.raw(Uint8Array.from({ length: size }, (_, at) => (value >> (8 * at)) & 0xff));
  }

  varint(value) {
    const found = [];
    for (let left = value; ; left = Math.floor(left / 128)) {
      found.push(left < 128 ? left : (left % 128) | 128);
      if (left < 128) break;
    }
    this.raw(Uint8Array.from(found));
  }

  all() {
    const joined = new Uint8Array(this.length);
    let at = 0;
    for (const part of this.#parts) {
      joined.set(part, at);
      at += part.length;
    }
    return joined;
  }
}
