/** Many streams on one connection: every record of each stream once and in order.
 *
 * A reader goes on with the id of its last event. When no node has that cursor any more, it goes on with the offset
 * of each stream. */

import { AnswerDamaged, refused } from "./errors.js"
import { Backoff, Broken, failure, type HttpRequest, JSON_TYPE, judge, retryAfterIn, sleep, type Transport } from "./http.js"
import { brokenBy, NOW, START } from "./reader.js"
import { fromBase64, isJsonType, memberText, Page, parseOffset, RECORDS_TYPE, type StreamRecord } from "./records.js"
import { EventParser, type StreamEvent } from "./sse.js"

const STREAMS_MAX = 1000 // that a request can name

export interface TailManyOptions {
  /** Where streams begin that `offsets` does not name: `START` (the default) or `NOW`. */
  offset?: string
  /** Where single streams begin: `offsets` of an earlier reader. */
  offsets?: Readonly<Record<string, string>> | ReadonlyMap<string, string>
  consistency?: "leader" | "local"
  /** Records with their keys, headers and times. */
  wholeRecords?: boolean
  signal?: AbortSignal
}

/** An event of one of many streams. Its `page` may be empty. */
export interface ManyEvent {
  stream: string
  page: Page
  /** The stream joined. */
  began: boolean
  deleted: boolean
  /** Records before the page were deleted. */
  trimmed: boolean
  /** Why the stream cannot be read, after its code; "" if it can. */
  error: string
}

interface Told {
  stream?: string
  streamNextOffset?: string
  data?: unknown[]
  text?: string
  base64?: string
  contentType?: string
  upToDate?: boolean
  streamClosed?: boolean
  streamDeleted?: boolean
  streamTrimmed?: boolean
  error?: { code: string; message: string }
}

/** Report whether a name is a pattern or a prefix: it has a segment `*` or `**`, or ends with a slash. */
export function isCovering(name: string): boolean {
  const segments = name.split("/")
  return segments.at(-1) === "" || segments.includes("*") || segments.includes("**")
}

/** Iterates over the records of many streams. A reader of a list ends when all its streams have ended. */
export class ManyReader implements AsyncIterable<StreamRecord> {
  readonly #place: ManyPlace
  readonly #transport: Transport
  readonly #abort = new AbortController()
  readonly #signal: AbortSignal
  readonly #events: AsyncGenerator<ManyEvent, void, void>

  constructor(transport: Transport, streams: readonly string[], options: TailManyOptions) {
    this.#transport = transport
    this.#place = new ManyPlace(streams, options)
    this.#signal = options.signal === undefined ? this.#abort.signal : AbortSignal.any([this.#abort.signal, options.signal])
    this.#events = this.#follow()
  }

  /** Where each stream is: pass it as `offsets` to go on in another process. */
  get offsets(): ReadonlyMap<string, string> {
    return this.#place.offsets
  }

  /** Every stream has been read up to its tail once. */
  get upToDate(): boolean {
    return this.#place.upToDate
  }

  /** Iterate over events instead of records: streams that began, ended, or were deleted, too. */
  async *events(): AsyncGenerator<ManyEvent, void, void> {
    try {
      for await (const event of this.#events) {
        this.#place.passed(event, event.page.offset)
        yield event
      }
    } catch (error) {
      if (!this.#abort.signal.aborted) throw error
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<StreamRecord, void, void> {
    try {
      for await (const event of this.#events) {
        const records = event.page.records
        for (const [at, record] of records.entries()) {
          this.#place.passed(event, at === records.length - 1 ? event.page.offset : record.offset)
          yield record
        }
        if (records.length === 0) this.#place.passed(event, event.page.offset)
      }
    } catch (error) {
      if (!this.#abort.signal.aborted) throw error
    }
  }

  /** End the reader, also while another task waits for a record. */
  close(): void {
    this.#abort.abort()
  }

  async *#follow(): AsyncGenerator<ManyEvent, void, void> {
    const backoff = new Backoff(this.#transport.retry)
    while (!this.#place.over) yield* this.#connection(backoff)
  }

  async *#connection(backoff: Backoff): AsyncGenerator<ManyEvent, void, void> {
    const place = this.#place
    const opened = await this.#transport.open(place.request(), this.#signal)
    let last = opened instanceof Broken || !("read" in opened) ? opened : new Broken("the connection ended", true)
    if (!(last instanceof Broken) && judge(last) === "never") {
      if (place.isLost(last.text)) return
      throw refused(last, place.what)
    }
    if (!(opened instanceof Broken) && "read" in opened) {
      const parser = new EventParser()
      try {
        for (let piece = await opened.read(); piece !== undefined; piece = await opened.read()) {
          for (const event of parser.feed(piece)) {
            if (event.name === "error" && place.isLost(event.data)) return
            if (event.name === "error") throw new AnswerDamaged(place.failureOf(event.data).message)
            backoff.passed()
            const told = place.take(event)
            if (told !== undefined) yield told
          }
          if (place.over) return
        }
      } catch (error) {
        last = brokenBy(error)
      } finally {
        opened.cancel()
      }
    }
    const pause = backoff.pause(retryAfterIn(last))
    if (pause === undefined) throw failure(last, place.what, false)
    await sleep(pause, this.#signal)
  }
}

/** Where a reader of many streams is. */
class ManyPlace {
  /** What the caller was given. */
  readonly offsets: Map<string, string>
  upToDate = false
  readonly #covering: string | undefined
  readonly #names: readonly string[]
  readonly #types = new Map<string, string>()
  readonly #ended = new Set<string>()
  readonly #options: TailManyOptions
  #read: Map<string, string> // up to where events came
  #cursor = ""
  #hasBegun = false

  constructor(streams: readonly string[], options: TailManyOptions) {
    const covering = streams.filter(isCovering)
    if (streams.length === 0 || (covering.length > 0 && streams.length > 1)) {
      throw new TypeError("pass the names of streams, or one pattern such as 'runs/*', or one prefix that ends with a slash")
    }
    if (options.offset !== undefined && options.offset !== START && options.offset !== NOW) {
      throw new TypeError(`many streams begin at '-1' or 'now', not at ${JSON.stringify(options.offset)}; pass offsets`)
    }
    this.#covering = covering[0]
    this.#names = this.#covering === undefined ? [...new Set(streams)] : []
    this.#options = options
    const given = options.offsets ?? {}
    this.offsets = new Map(given instanceof Map ? given : Object.entries(given))
    this.#read = new Map(this.offsets)
  }

  get what(): string {
    return `tail '${this.#covering ?? this.#names.slice(0, 3).join(", ")}'`
  }

  /** All streams of a list have ended. */
  get over(): boolean {
    return this.#covering === undefined && this.#names.every((name) => this.#ended.has(name))
  }

  request(): HttpRequest {
    const query = new URLSearchParams({ offset: this.#hasBegun ? START : (this.#options.offset ?? START) })
    const covering = this.#covering
    if (covering !== undefined) query.set(covering.endsWith("/") ? "prefix" : "match", covering)
    if (this.#options.consistency === "local") query.set("consistency", "local")
    for (const each of this.#listed()) query.append("stream", each)
    const form = this.#options.wholeRecords ? RECORDS_TYPE : "*/*"
    const headers: Record<string, string> = { accept: `text/event-stream, ${form}` }
    if (this.#cursor) headers["last-event-id"] = this.#cursor
    return { method: "GET", target: `/v1/live?${query}`, headers }
  }

  #listed(): string[] {
    const places = this.#cursor ? new Map<string, string>() : this.#read
    const names = this.#covering === undefined ? this.#names : [...places.keys()]
    return names.map((name) => {
      const offset = places.get(name)
      return offset === undefined ? name : `${name}@${short(offset)}`
    })
  }

  /** If an error tells that the cursor is gone: forget it, and go on with the offsets. */
  isLost(body: string): boolean {
    const error = this.failureOf(body)
    if (error.code !== "CURSOR_GONE") return false
    if (this.#read.size > STREAMS_MAX) throw error
    this.#cursor = ""
    return true
  }

  failureOf(body: string): ReturnType<typeof refused> {
    return refused({ status: 410, headers: new Headers(), text: body }, this.what)
  }

  /** Move past an event; undefined if it is none of a stream, or a repeat. */
  take(event: StreamEvent): ManyEvent | undefined {
    if (event.name !== "data" && event.name !== "control") return undefined
    const told = JSON.parse(event.data) as Told
    this.#cursor = event.id || this.#cursor
    this.#hasBegun = true
    const name = told.stream
    if (name === undefined) {
      this.upToDate = true
      return undefined
    }
    if (told.contentType) this.#types.set(name, told.contentType)
    const begin = this.#read.get(name) ?? ""
    const offset = told.streamNextOffset ?? begin
    const { body, contentType } = this.#payload(told, name, event.data)
    if (body.length > 0 && begin && parseOffset(offset) !== undefined && offset <= begin) return undefined
    if (told.streamDeleted) this.#read.delete(name)
    else if (offset) this.#read.set(name, offset)
    const isMissing = told.error?.code === "NOT_FOUND" // it may yet be created
    if (told.streamClosed || told.streamDeleted || (told.error !== undefined && !isMissing)) this.#ended.add(name)
    else if (told.contentType) this.#ended.delete(name)
    const page = new Page({
      stream: name,
      begin,
      offset,
      contentType,
      body,
      upToDate: told.upToDate === true,
      closed: told.streamClosed === true,
      jsonValues: isJsonType(this.#types.get(name) ?? JSON_TYPE),
    })
    const error = told.error === undefined ? "" : `${told.error.code}: ${told.error.message}`
    const flags = { began: told.contentType !== undefined, deleted: told.streamDeleted === true, trimmed: told.streamTrimmed === true }
    return { stream: name, page, error, ...flags }
  }

  /** Note how far the caller has come. */
  passed(event: ManyEvent, offset: string): void {
    if (event.deleted) this.offsets.delete(event.stream)
    else if (offset) this.offsets.set(event.stream, offset)
  }

  #payload(told: Told, name: string, text: string): { body: Uint8Array; contentType: string } {
    const known = this.#types.get(name) ?? ""
    const form = this.#options.wholeRecords ? RECORDS_TYPE : JSON_TYPE
    if (told.data !== undefined) return { body: new TextEncoder().encode(memberText(text, "data")), contentType: form }
    if (told.text !== undefined) return { body: new TextEncoder().encode(told.text), contentType: known || "text/plain" }
    if (told.base64 !== undefined) {
      try {
        return { body: fromBase64(told.base64), contentType: known || "application/octet-stream" }
      } catch {
        throw new AnswerDamaged(`${this.what}: an event is not valid base64`)
      }
    }
    return { body: new Uint8Array(), contentType: this.#options.wholeRecords ? RECORDS_TYPE : known }
  }
}

/** An offset without the zeros before its numbers, so that a long list fits into a request. */
function short(offset: string): string {
  const at = parseOffset(offset)
  return at === undefined ? offset : `${at[0]}_${at[1]}`
}
