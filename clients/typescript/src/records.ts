/** Records and pages: what an append sends, and what a read returns. */

import { AnswerDamaged } from "./errors.js"
import { joined, JSON_TYPE } from "./http.js"

export const RECORDS_TYPE = "application/vnd.polynya.records+json"

const encoder = new TextEncoder()

/** A value of a JSON stream; text or bytes for another stream. */
export type Value = unknown

/** Headers of a record: an object, or pairs where a name comes twice. */
export type RecordHeaders = Readonly<Record<string, string | Uint8Array | null>> | ReadonlyArray<readonly [string, string | Uint8Array | null]>

export interface NewRecordFields {
  /** Without one the record is a tombstone: a key alone. */
  value?: Value
  key?: string | Uint8Array
  headers?: RecordHeaders
  /** Milliseconds since 1970, or a Date; without it the server's time. */
  timestamp?: number | Date
}

/** A record to append with a key, headers and a time of its own, besides its value. */
export class NewRecord {
  readonly value: Value
  readonly key: string | Uint8Array | undefined
  readonly headers: RecordHeaders
  readonly timestamp: number | Date | undefined

  constructor(fields: NewRecordFields) {
    this.value = fields.value ?? null
    this.key = fields.key
    this.headers = fields.headers ?? []
    this.timestamp = fields.timestamp
  }
}

/** JSON text, sent as it is: for numbers that JavaScript cannot hold. */
export class RawJson {
  constructor(readonly text: string) {
    JSON.parse(text) // throws SyntaxError
  }
}

/** A record of a JSON stream, or a piece of another. */
export class StreamRecord {
  constructor(
    /** The stream's name. */
    readonly stream: string,
    /** The exact bytes. */
    readonly bytes: Uint8Array,
    /** The position after the record, from which another reader goes on; "" where only the end of the page is known. */
    readonly offset: string,
    /** Of readers with `wholeRecords`: the key. */
    readonly key: Uint8Array | null = null,
    readonly headers: ReadonlyArray<readonly [string, Uint8Array | null]> = [],
    /** In milliseconds since 1970. */
    readonly timestamp: number | null = null,
  ) {}

  /** The record as text. */
  get text(): string {
    return new TextDecoder().decode(this.bytes)
  }

  /** The decoded JSON. Integers above 2^53 are rounded; `text` has all digits. */
  get value(): any {
    return JSON.parse(this.text)
  }

  /** The key as text. */
  get keyText(): string | null {
    return this.key === null ? null : new TextDecoder().decode(this.key)
  }
}

export interface PageFields {
  stream: string
  begin: string
  offset: string
  contentType: string
  body: Uint8Array
  upToDate: boolean
  closed: boolean
  /** Of whole records: the stream is JSON. */
  jsonValues?: boolean
}

/** One response to a read, or one event of a tail: the exact bytes between `begin` and `offset`. */
export class Page {
  readonly stream: string
  readonly begin: string
  readonly offset: string
  readonly contentType: string
  readonly body: Uint8Array
  /** The page reached the tail. */
  readonly upToDate: boolean
  /** The page reached the end of a closed stream. */
  readonly closed: boolean
  readonly #jsonValues: boolean
  readonly #raws: readonly Uint8Array[]

  /** Throws `AnswerDamaged` if the body is not an array, where it has to be one. */
  constructor(fields: PageFields) {
    this.stream = fields.stream
    this.begin = fields.begin
    this.offset = fields.offset
    this.contentType = fields.contentType
    this.body = fields.body
    this.upToDate = fields.upToDate
    this.closed = fields.closed
    this.#jsonValues = fields.jsonValues ?? true
    this.#raws = this.isJson ? splitArray(fields.body, `read '${fields.stream}'`) : []
  }

  get isJson(): boolean {
    return isArray(this.contentType)
  }

  /** The number of records of a JSON stream, or of bytes of another. */
  get size(): number {
    return this.isJson ? this.#raws.length : this.body.length
  }

  /** Each record with the offset after it. A page of a stream that is not JSON is one record. */
  get records(): StreamRecord[] {
    if (!this.isJson) return this.body.length > 0 ? [new StreamRecord(this.stream, this.body, this.offset)] : []
    const end = parseOffset(this.offset)
    if (this.contentType === RECORDS_TYPE) return this.#raws.map((raw) => this.#whole(raw, end))
    if (end === undefined) {
      const last = this.#raws.length - 1
      return this.#raws.map((raw, at) => new StreamRecord(this.stream, raw, at === last ? this.offset : ""))
    }
    let record = end[0] - this.#raws.length
    let byte = end[1] - this.#raws.reduce((size, raw) => size + raw.length + 1, 0)
    return this.#raws.map((raw) => {
      record += 1
      byte += raw.length + 1
      return new StreamRecord(this.stream, raw, formatOffset(record, Math.max(0, byte)))
    })
  }

  /** A whole record. The number of the record alone places a reader between them. */
  #whole(raw: Uint8Array, end: readonly [number, number] | undefined): StreamRecord {
    const text = new TextDecoder().decode(raw)
    const shown = JSON.parse(text) as { offset: number; timestamp: number | null; key: Shown; headers: [string, Shown][]; value: unknown }
    const after = formatOffset(shown.offset + 1, end === undefined ? 0 : end[1])
    const data = this.#jsonValues ? encoder.encode(memberText(text, "value")) : (bytesOf(shown.value as Shown) ?? new Uint8Array())
    const headers = shown.headers.map(([name, value]) => [name, bytesOf(value)] as const)
    return new StreamRecord(this.stream, data, after, bytesOf(shown.key), headers, shown.timestamp)
  }
}

type Shown = string | { $base64: string } | null

/** Report whether streams of this type hold JSON records. */
export function isJsonType(contentType: string): boolean {
  return (contentType.split(";")[0] ?? "").trim().toLowerCase() === JSON_TYPE
}

/** Report whether pages of this type are JSON arrays: of values, or of whole records. */
export function isArray(contentType: string): boolean {
  return contentType === RECORDS_TYPE || isJsonType(contentType)
}

/** Record number and byte of an offset; undefined for the start, the tail, and offsets of other servers. */
export function parseOffset(offset: string): readonly [number, number] | undefined {
  const found = /^(\d{16})_(\d{16})$/.exec(offset)
  return found === null ? undefined : [Number(found[1]), Number(found[2])]
}

export function formatOffset(record: number, byte: number): string {
  return `${String(record).padStart(16, "0")}_${String(byte).padStart(16, "0")}`
}

/** The exact bytes of each element of a JSON array. */
export function splitArray(body: Uint8Array, what: string): Uint8Array[] {
  if (body.length === 0) return []
  const damaged = new AnswerDamaged(`${what}: the response is not a JSON array`)
  const found: Uint8Array[] = []
  let at = skipSpace(body, 0)
  if (body[at] !== 0x5b) throw damaged
  at = skipSpace(body, at + 1)
  if (body[at] === 0x5d) return found
  for (;;) {
    const begin = at
    at = skipValue(body, at)
    let end = at
    while (end > begin && isSpace(body[end - 1])) end -= 1
    if (end === begin) throw damaged
    found.push(body.subarray(begin, end))
    if (body[at] === 0x5d) return found
    if (body[at] !== 0x2c) throw damaged
    at = skipSpace(body, at + 1)
  }
}

/** Where the value that begins here ends: at the comma or bracket behind it. */
function skipValue(body: Uint8Array, begin: number): number {
  let depth = 0
  let at = begin
  for (; at < body.length; at += 1) {
    const byte = body[at]
    if (byte === 0x22) {
      for (at += 1; at < body.length && body[at] !== 0x22; at += 1) if (body[at] === 0x5c) at += 1
    } else if (byte === 0x5b || byte === 0x7b) depth += 1
    else if (byte === 0x5d || byte === 0x7d) {
      if (depth === 0) return at
      depth -= 1
    } else if (byte === 0x2c && depth === 0) return at
  }
  return at
}

function isSpace(byte: number | undefined): boolean {
  return byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09
}

function skipSpace(body: Uint8Array, begin: number): number {
  let at = begin
  while (isSpace(body[at])) at += 1
  return at
}

/** The text of a member of a JSON object, with all digits of its numbers. */
export function memberText(text: string, name: string): string {
  const body = encoder.encode(text)
  const decoder = new TextDecoder()
  let at = skipSpace(body, 0) + 1
  for (;;) {
    at = skipSpace(body, at)
    const begin = at
    for (at += 1; at < body.length && body[at] !== 0x22; at += 1) if (body[at] === 0x5c) at += 1
    const key = decoder.decode(body.subarray(begin, at + 1))
    at = skipSpace(body, skipSpace(body, at + 1) + 1) // behind the colon
    const end = skipValue(body, at)
    if (end >= body.length && body[end - 1] !== 0x7d) return "null"
    if (JSON.parse(key) === name) return decoder.decode(body.subarray(at, end)).trim()
    if (body[end] !== 0x2c) return "null"
    at = end + 1
  }
}

/** One record of a JSON stream as text. Throws TypeError for what JSON lacks. */
export function encodeJson(value: Value): string {
  if (value instanceof RawJson) return value.text.trim()
  if (value instanceof Uint8Array || value instanceof ArrayBuffer) {
    throw new TypeError("a record of a JSON stream is a value, not bytes; create the stream with another content type")
  }
  const text = JSON.stringify(value, (name, inner: unknown) => {
    if (typeof inner === "number" && !Number.isFinite(inner)) {
      throw new TypeError(`the record has ${inner}${name ? ` at ${JSON.stringify(name)}` : ""}, which JSON lacks; pass null or a string in its place`)
    }
    return inner
  }) as string | undefined
  if (text === undefined) throw new TypeError(`a record of a JSON stream cannot be ${typeof value}; pass null for no value`)
  return text
}

/** One record of a stream that is not JSON. */
export function encodeBytes(value: Value): Uint8Array {
  if (typeof value === "string") return encoder.encode(value)
  if (value instanceof Uint8Array) return value
  if (value instanceof ArrayBuffer) return new Uint8Array(value)
  throw new TypeError(`a stream that is not JSON takes text or a Uint8Array, not ${value === null ? "null" : typeof value}`)
}

/** The body of one append, and its content type. */
export function bodyOf(records: readonly Value[], contentType: string): { body: Uint8Array; contentType: string } {
  if (!Array.isArray(records)) throw new TypeError("append takes an array of records: append([value])")
  if (records.length === 0) throw new TypeError("an append needs at least one record")
  if (records.some((each) => each instanceof NewRecord)) {
    const asJson = isJsonType(contentType)
    const rows = records.map((each) => rowOf(each instanceof NewRecord ? each : new NewRecord({ value: each }), asJson))
    return { body: encoder.encode(`[${rows.join(",")}]`), contentType: RECORDS_TYPE }
  }
  if (isJsonType(contentType)) return { body: encoder.encode(`[${records.map(encodeJson).join(",")}]`), contentType }
  const body = joined(records.map(encodeBytes))
  if (body.length === 0) throw new TypeError("an append needs at least one byte")
  return { body, contentType }
}

/** A record as `application/vnd.polynya.records+json` has it. */
export function rowOf(record: NewRecord, asJson: boolean): string {
  const value = record.value
  const parts = [`"value":${asJson ? encodeJson(value) : value === null ? "null" : shownOf(encodeBytes(value))}`]
  if (record.key !== undefined) parts.push(`"key":${shownOf(record.key)}`)
  const pairs = Array.isArray(record.headers) ? record.headers : Object.entries(record.headers)
  if (pairs.length > 0) parts.push(`"headers":[${pairs.map(([name, each]) => `[${JSON.stringify(name)},${shownOf(each)}]`).join(",")}]`)
  if (record.timestamp !== undefined) {
    const time = record.timestamp instanceof Date ? record.timestamp.getTime() : record.timestamp
    if (!Number.isSafeInteger(time)) throw new TypeError(`the timestamp ${time} is not a whole number of milliseconds since 1970`)
    parts.push(`"timestamp":${time}`)
  }
  return `{${parts.join(",")}}`
}

function shownOf(data: string | Uint8Array | null): string {
  if (data === null) return "null"
  if (typeof data === "string") return JSON.stringify(data)
  try {
    return JSON.stringify(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data))
  } catch {
    return JSON.stringify({ $base64: toBase64(data) })
  }
}

function bytesOf(shown: Shown): Uint8Array | null {
  if (shown === null) return null
  return typeof shown === "string" ? encoder.encode(shown) : fromBase64(shown.$base64)
}

export function toBase64(data: Uint8Array): string {
  const pieces: string[] = []
  for (let at = 0; at < data.length; at += 0x8000) pieces.push(String.fromCharCode(...data.subarray(at, at + 0x8000)))
  return btoa(pieces.join(""))
}

/** Throws DOMException for other text than base64. */
export function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))
}
