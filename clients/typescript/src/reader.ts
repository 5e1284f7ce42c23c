/** Reads: pages up to the tail, then new records as they come, without loss or repetition across connections.
 *
 * The position moves only past a complete page: a response, or a `data` event whose `control` event came. After a
 * break the reader goes on from there. An event that does not move the position is a repeat, and is dropped. */

import { AnswerDamaged, refused } from "./errors.js"
import { Backoff, Broken, failure, header, type HttpRequest, isTrue, joined, judge, type Reply, retryAfterIn, sleep, streamTarget, type Transport } from "./http.js"
import { fromBase64, isArray, Page, RECORDS_TYPE, type StreamRecord } from "./records.js"
import { EventParser } from "./sse.js"

export const START = "-1"
export const NOW = "now"

export interface ReadOptions {
  /** An offset, `START` (the default) or `NOW`. */
  offset?: string
  /** Begin at a time instead: RFC 3339, milliseconds, or an age such as "10m". */
  fromTime?: string
  /** Begin at the record of this number instead. */
  record?: number
  /** Begin so many records before the tail instead. */
  tailRecords?: number
  /** The largest page, in bytes. */
  maxBytes?: number
  /** "local": the contacted node's copy, which may be stale. */
  consistency?: "leader" | "local"
  /** Records with their keys, headers and times. */
  wholeRecords?: boolean
  /** Gives the reader up; its wait then rejects with the signal's reason. */
  signal?: AbortSignal
}

export interface TailOptions extends ReadOptions {
  /** The transport: "auto" is events, and long polls for text, whose line ends events cannot carry. */
  live?: "auto" | "sse" | "long-poll"
}

type Mode = "read" | "auto" | "sse" | "long-poll"

// after three connections in a row without an event and shorter than this, a proxy seems to hold events back
const SHORT_MS = 1000
const SHORT_MAX = 3
const OVER = new Set(["GONE", "STREAM_RECREATED", "NOT_FOUND", "INCARNATION_MISMATCH", "TRIMMED"])

/** Iterates over the records of a stream. `offset` is where another reader goes on without a gap. */
export class Reader implements AsyncIterable<StreamRecord> {
  offset: string
  /** All records up to the tail were returned. */
  upToDate = false
  /** The stream is closed, and all its records were returned. */
  closed = false
  readonly #position: Position
  readonly #pages: AsyncGenerator<Page, void, void>
  readonly #abort = new AbortController()

  constructor(transport: Transport, name: string, mode: Mode, options: TailOptions, jsonValues: () => Promise<boolean>) {
    this.#position = new Position(name, options)
    this.offset = this.#position.offset
    const signal = options.signal === undefined ? this.#abort.signal : AbortSignal.any([this.#abort.signal, options.signal])
    this.#pages = follow(transport, this.#position, mode, signal, jsonValues)
  }

  /** Iterate over pages instead of records. Empty ones are left out. */
  async *pages(): AsyncGenerator<Page, void, void> {
    try {
      for await (const page of this.#pages) {
        if (page.size > 0) {
          // the caller has the page once it is yielded
          this.#moved(page)
          yield page
        } else this.#moved(page)
      }
    } catch (error) {
      if (!this.#abort.signal.aborted) throw error
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<StreamRecord, void, void> {
    try {
      for await (const page of this.#pages) {
        const records = page.records
        for (const [at, record] of records.entries()) {
          if (at === records.length - 1) this.#moved(page)
          else {
            this.offset = record.offset || this.offset
            this.upToDate = false
          }
          yield record
        }
        if (records.length === 0) this.#moved(page)
      }
    } catch (error) {
      if (!this.#abort.signal.aborted) throw error
    }
  }

  /** End the reader, also while another task waits for a record. */
  close(): void {
    this.#abort.abort()
  }

  #moved(page: Page): void {
    this.offset = page.offset
    this.upToDate = page.upToDate
    this.closed = page.closed
  }
}

/** Where a reader is, and the request that goes on from there. */
class Position {
  offset: string
  contentType = ""
  closed = false
  upToDate = false
  jsonValues = true
  incarnation = ""
  #begin: Record<string, string>
  #cdnCursor = ""
  #moved = false

  constructor(
    readonly name: string,
    readonly options: ReadOptions,
  ) {
    this.offset = options.offset ?? START
    const { fromTime, record, tailRecords } = options
    const begin = { offset: options.offset, from_time: fromTime, record: record?.toString(), tail_records: tailRecords?.toString() }
    const given = Object.entries(begin).filter((each): each is [string, string] => each[1] !== undefined)
    if (given.length > 1) throw new TypeError(`a reader begins at one place, not at ${given.map(([key]) => key).join(" and ")}`)
    this.#begin = Object.fromEntries(given)
  }

  get what(): string {
    return `read '${this.name}'`
  }

  request(live: "" | "sse" | "long-poll"): HttpRequest {
    const query: Record<string, string> = Object.keys(this.#begin).length > 0 ? { ...this.#begin } : { offset: this.offset }
    if (this.options.consistency === "local") query["consistency"] = "local"
    if (live) query["live"] = live
    if (live && this.#cdnCursor) query["cursor"] = this.#cdnCursor
    if (this.options.maxBytes !== undefined && live !== "sse") query["max_bytes"] = String(this.options.maxBytes)
    const form = this.options.wholeRecords ? RECORDS_TYPE : "*/*"
    const headers: Record<string, string> = { accept: live === "sse" ? `text/event-stream, ${form}` : form }
    if (this.incarnation) headers["stream-incarnation"] = this.incarnation
    return { method: "GET", target: streamTarget(this.name, query), headers }
  }

  page(reply: Reply): Page {
    this.contentType = reply.headers.get("content-type") ?? this.contentType
    const offset = header(reply, "stream-next-offset", this.what)
    const page = this.checked(reply.bytes, offset, isTrue(reply.headers, "stream-up-to-date"), isTrue(reply.headers, "stream-closed"))
    this.incarnation ||= reply.headers.get("stream-incarnation") ?? ""
    this.#cdnCursor = reply.headers.get("stream-cursor") ?? this.#cdnCursor
    return page
  }

  livePage(data: readonly Uint8Array[], control: Control): Page {
    this.#cdnCursor = control.streamCursor ?? this.#cdnCursor
    const body = isArray(this.contentType) && data.length > 1 ? joinArrays(data) : joined(data)
    return this.checked(body, control.streamNextOffset, control.upToDate === true, control.streamClosed === true)
  }

  checked(body: Uint8Array, offset: string, upToDate: boolean, closed: boolean): Page {
    if (offset === this.offset && !upToDate && !closed && this.options.consistency !== "local") {
      throw new AnswerDamaged(`${this.what}: the response makes no progress before the end of the stream`)
    }
    if (this.#moved && this.incarnation && offset < this.offset) {
      throw new AnswerDamaged(`${this.what}: the response goes back from ${this.offset} to ${offset}`)
    }
    const { contentType, jsonValues } = this
    return new Page({ stream: this.name, begin: this.offset, offset, contentType, body, upToDate, closed, jsonValues })
  }

  move(page: Page): void {
    this.offset = page.offset
    this.upToDate = page.upToDate
    this.closed = page.closed
    this.#moved = true
    this.#begin = {}
  }
}

interface Control {
  streamNextOffset: string
  streamCursor?: string
  upToDate?: boolean
  streamClosed?: boolean
}

async function* follow(
  transport: Transport,
  position: Position,
  mode: Mode,
  signal: AbortSignal,
  jsonValues: () => Promise<boolean>,
): AsyncGenerator<Page, void, void> {
  if (position.options.wholeRecords) position.jsonValues = await jsonValues()
  yield* catchUp(transport, position, signal)
  if (mode === "read") return
  const backoff = new Backoff(transport.retry)
  let byEvents = mode === "sse" || (mode === "auto" && !position.contentType.startsWith("text/"))
  let short = 0
  let fruitless = false
  while (!position.closed) {
    if (!byEvents) {
      yield* once(transport, position, "long-poll", signal)
      continue
    }
    if (fruitless) yield* catchUp(transport, position, signal) // an event may exceed what the connection carries
    if (position.closed) return
    const outcome = yield* connection(transport, position, backoff, signal)
    fruitless = outcome.fruitless
    short = outcome.short ? short + 1 : 0
    byEvents = mode === "sse" || short < SHORT_MAX
  }
}

async function* catchUp(transport: Transport, position: Position, signal: AbortSignal): AsyncGenerator<Page, void, void> {
  for (;;) {
    const begin = position.offset
    yield* once(transport, position, "", signal)
    if (position.upToDate || (position.options.consistency === "local" && position.offset === begin)) return
  }
}

async function* once(transport: Transport, position: Position, live: "" | "long-poll", signal: AbortSignal): AsyncGenerator<Page, void, void> {
  const page = await transport.send(position.request(live), { what: position.what, take: (reply) => position.page(reply), repeatable: true, signal })
  position.move(page)
  yield page
}

/** One connection of events. `fruitless`: it broke without a page. `short`: it ended at once without an event. */
async function* connection(
  transport: Transport,
  position: Position,
  backoff: Backoff,
  signal: AbortSignal,
): AsyncGenerator<Page, { fruitless: boolean; short: boolean }, void> {
  const began = performance.now()
  const opened = await transport.open(position.request("sse"), signal)
  let last: Reply | Broken
  let eventful = false
  let fruitful = false
  let broke = false
  if (opened instanceof Broken || !("read" in opened)) {
    last = opened
    if (!(opened instanceof Broken) && judge(opened) === "never") throw refused(opened, position.what)
  } else {
    last = new Broken("the connection ended", true)
    position.incarnation ||= opened.headers.get("stream-incarnation") ?? ""
    const events = new Events(position, opened.headers.get("stream-sse-data-encoding") === "base64")
    try {
      for (let piece = await opened.read(); piece !== undefined && !position.closed; piece = await opened.read()) {
        for (const page of events.pages(piece)) {
          eventful = true
          backoff.passed()
          position.move(page)
          fruitful ||= page.size > 0 || page.closed
          yield page
        }
        if (position.closed) break
      }
    } catch (error) {
      last = brokenBy(error)
      broke = error instanceof Broken
    } finally {
      opened.cancel()
    }
  }
  if (position.closed) return { fruitless: false, short: false }
  const pause = backoff.pause(retryAfterIn(last))
  if (pause === undefined) throw failure(last, position.what, false)
  await sleep(pause, signal)
  const isOpen = !(opened instanceof Broken) && "read" in opened
  return { fruitless: broke && !fruitful, short: isOpen && !eventful && performance.now() - began < SHORT_MS }
}

/** The failed attempt behind an error of a connection; throws what is none. */
export function brokenBy(error: unknown): Broken {
  if (error instanceof Broken) return error
  if (error instanceof AnswerDamaged || error instanceof SyntaxError || error instanceof RangeError) return new Broken(error.message, true)
  throw error
}

/** Makes pages of events, in order and without repeats. Move the position past a page before the next. */
class Events {
  readonly #parser = new EventParser()
  #data: Uint8Array[] = []

  constructor(
    private readonly position: Position,
    private readonly base64: boolean,
  ) {}

  *pages(piece: Uint8Array): Generator<Page, void, void> {
    for (const event of this.#parser.feed(piece)) {
      if (event.name === "data") this.#data.push(this.#bytes(event.data))
      else if (event.name === "error") throw this.#failure(event.data)
      else if (event.name === "control") {
        const data = this.#data
        this.#data = []
        const control = JSON.parse(event.data) as Control
        const at = this.position.offset
        const tells = data.length === 0 && (control.upToDate === true || control.streamClosed === true)
        const isNew = control.streamNextOffset > at || at === NOW || (control.streamNextOffset === at && tells)
        if (isNew) yield this.position.livePage(data, control)
      }
    }
  }

  #bytes(data: string): Uint8Array {
    if (!this.base64) return new TextEncoder().encode(data)
    try {
      return fromBase64(data)
    } catch {
      throw new AnswerDamaged(`${this.position.what}: an event is not valid base64`)
    }
  }

  #failure(body: string): Error {
    const error = refused({ status: 410, headers: new Headers(), text: body }, this.position.what)
    // others, such as that of a slow reader, end the connection alone
    return OVER.has(error.code) ? error : new AnswerDamaged(error.message, { code: error.code })
  }
}

function joinArrays(pieces: readonly Uint8Array[]): Uint8Array {
  const decoder = new TextDecoder()
  const inner = pieces.map((piece) => decoder.decode(piece).trim().slice(1, -1))
  return new TextEncoder().encode(`[${inner.join(",")}]`)
}
