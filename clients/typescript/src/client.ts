/** The client and its streams. */

import { AnswerDamaged, Refused, StreamGone, StreamNotFound } from "./errors.js"
import { type ClientOptions, header, type HttpRequest, isTrue, JSON_TYPE, jsonOf, type Reply, type ShortToken, streamTarget, Transport } from "./http.js"
import { ManyReader, type TailManyOptions } from "./live.js"
import { type Appended, appendedOf, Producer, type ProducerOptions } from "./producer.js"
import { Reader, type ReadOptions, type TailOptions } from "./reader.js"
import { bodyOf, encodeBytes, encodeJson, isJsonType, toBase64, type Value } from "./records.js"
import { Subscription } from "./subscription.js"

const APPENDS_MAX = 1000 // of one request

export interface CreateOptions {
  /** By default application/json. */
  contentType?: string
  /** The stream is deleted after so long without use … */
  ttlSeconds?: number
  /** … or at this time (RFC 3339). */
  expiresAt?: string
  /** Records are kept for so long … */
  retainSeconds?: number
  /** … and while newer ones have fewer bytes. */
  retainBytes?: number
  profile?: "replicated" | "leased" | "diskless"
  closed?: boolean
}

export interface AppendOptions {
  /** Append only if this offset is the tail. Else throws `ConditionFailed`. */
  ifMatch?: string
  /** `Stream-Seq`: must be greater, as text, than that of the last append. */
  sequence?: string
  /** An id, an epoch and a sequence number: a repeat is not stored again, so that retries are safe. */
  producer?: readonly [id: string, epoch: number, seq: number]
  /** Close the stream in the same request. */
  close?: boolean
}

/** One append of `appendMany`: JSON `records`, or `data` as one record of another stream, or neither with `close`. */
export interface StreamAppend {
  stream: string
  records?: readonly Value[]
  data?: string | Uint8Array
  contentType?: string
  producer?: readonly [id: string, epoch: number, seq: number]
  ifMatch?: string
  close?: boolean
}

/** The outcome of one append: `status` is that of the same append alone, and `code` is set for a refused one. */
export interface AppendOutcome {
  status: number
  next_offset?: string
  incarnation?: string
  closed?: boolean
  code?: string
  message?: string
  /** Seconds, if a retry can help. */
  retry_after?: number
  /** It may have been applied. */
  unknown?: boolean
}

export interface Created {
  /** False if the stream existed, or if the first response was lost. */
  created: boolean
  offset: string
  closed: boolean
  incarnation: string
}

/** The properties of a stream. `offset` is its tail. */
export interface Facts {
  name: string
  contentType: string
  offset: string
  closed: boolean
  incarnation: string
  /** The first retained record, if older ones were trimmed. */
  retainedOffset: string | undefined
}

export interface Bootstrap {
  /** The newest snapshot; undefined without one. */
  snapshot: any
  snapshotOffset: string | undefined
  /** The records behind it. */
  records: any[]
  /** Where to read on. */
  offset: string
  upToDate: boolean
}

/** A client of one server, or of the nodes of a cluster: a list of URLs, or one text with commas. */
export class Client {
  readonly #transport: Transport

  constructor(servers: string | readonly string[], options: ClientOptions = {}) {
    this.#transport = new Transport(servers, options)
  }

  /** A stream, without a request. `contentType` saves one before the first append. */
  stream(name: string, options: { contentType?: string } = {}): Stream {
    return new Stream(this.#transport, name, options.contentType)
  }

  /** The names of the streams that begin with a prefix, in their order. */
  async *streams(prefix = ""): AsyncGenerator<{ name: string; content_type: string; next_offset: string }, void, void> {
    for (let after = ""; ; ) {
      const query = new URLSearchParams({ prefix, after, limit: "1000" })
      const what = `list '${prefix}'`
      const page = await this.#json<{ streams: { name: string; content_type: string; next_offset: string }[]; next?: string | null }>("GET", `/v1/streams?${query}`, what)
      yield* page.streams
      if (!page.next) return
      after = page.next
    }
  }

  /** Append to up to 1,000 streams. Each append has an outcome; one that is refused does not affect the others. */
  async appendMany(appends: readonly StreamAppend[]): Promise<AppendOutcome[]> {
    if (appends.length === 0 || appends.length > APPENDS_MAX) {
      throw new RangeError(`appendMany takes 1 to ${APPENDS_MAX} appends, not ${appends.length}: call it for each part`)
    }
    const what = `append to ${appends.length} streams`
    const take = (reply: Reply): AppendOutcome[] => {
      const found = jsonOf<AppendOutcome[]>(reply, what)
      if (!Array.isArray(found) || found.length !== appends.length) {
        throw new AnswerDamaged(`${what}: the response has not ${appends.length} outcomes`, { status: reply.status })
      }
      return found
    }
    const request = { method: "POST", target: "/v1/append", headers: { "content-type": "application/x-ndjson" }, body: appends.map(lineOf).join("\n") }
    return this.#transport.send(request, { what, take, repeatable: appends.every((each) => each.producer !== undefined) })
  }

  /** Follow many streams on one connection: names, or one pattern (`runs/*`), or one prefix that ends with a slash. */
  tailMany(streams: string | readonly string[], options: TailManyOptions = {}): ManyReader {
    return new ManyReader(this.#transport, typeof streams === "string" ? [streams] : streams, options)
  }

  /** Mint a short token for a web page, as far as this client's own token reaches. */
  async mintToken(wanted: { stream?: string; prefix?: string; verbs?: readonly ("read" | "append" | "create")[]; expiresInSeconds?: number }): Promise<ShortToken> {
    const { stream, prefix, verbs, expiresInSeconds } = wanted
    if ((stream === undefined) === (prefix === undefined)) throw new TypeError("pass either stream or prefix: a short token is for one of them")
    return this.#json("POST", "/v1/tokens/short", "mint a token", { stream, prefix, verbs, expires_in_seconds: expiresInSeconds })
  }

  /** A subscription whose workers claim work, without a request. */
  subscription(id: string): Subscription {
    return new Subscription(this.#transport, id)
  }

  #json<T>(method: string, target: string, what: string, body?: unknown): Promise<T> {
    return sendJson<T>(this.#transport, method, target, what, body)
  }
}

/** One stream. */
export class Stream {
  readonly #transport: Transport
  #contentType: string | undefined

  constructor(
    transport: Transport,
    readonly name: string,
    contentType: string | undefined,
  ) {
    this.#transport = transport
    this.#contentType = contentType
    streamTarget(name) // throws TypeError for a name that URLs resolve
  }

  /** Create the stream. One with the same settings is no error. Throws `StreamExists`. */
  async create(options: CreateOptions = {}): Promise<Created> {
    const contentType = options.contentType ?? this.#contentType ?? JSON_TYPE
    const settings = {
      "stream-ttl": options.ttlSeconds,
      "stream-expires-at": options.expiresAt,
      "stream-retention-age": options.retainSeconds,
      "stream-retention-bytes": options.retainBytes,
      "stream-profile": options.profile,
      "stream-closed": options.closed ? "true" : undefined,
    }
    const headers = { "content-type": contentType, ...textsOf(settings) }
    const created = await this.#put(headers, `create '${this.name}'`)
    this.#contentType = contentType
    return created
  }

  /** Create a fork of this stream, at an offset or at its tail, and return it. */
  async fork(name: string, options: { offset?: string } = {}): Promise<Stream> {
    const other = new Stream(this.#transport, name, this.#contentType)
    const headers = { "stream-forked-from": streamTarget(this.name), ...textsOf({ "stream-fork-offset": options.offset }) }
    await other.#put(headers, `fork '${this.name}' to '${name}'`)
    return other
  }

  #put(headers: Record<string, string>, what: string): Promise<Created> {
    const take = (reply: Reply): Created => ({ created: reply.status === 201, ...placeOf(reply, what) })
    return this.#transport.send({ method: "PUT", target: streamTarget(this.name), headers }, { what, take, repeatable: true })
  }

  /** Append one or more records atomically, and wait until they are durable.
   *
   * A JSON stream takes values, another one text or bytes; a `NewRecord` has a key, headers and a time besides its
   * value. Without `producer` it is sent again only while certainly nothing was applied: throws `Refused` or
   * `Unavailable` then, and `OutcomeUnknown` when a response was lost. */
  async append(records: readonly Value[], options: AppendOptions = {}): Promise<Appended> {
    const { body, contentType } = bodyOf(records, await this.contentType())
    const { ifMatch, sequence, producer, close } = options
    const more = {
      "if-match": ifMatch === undefined || ifMatch.startsWith('"') ? ifMatch : `"${ifMatch}"`,
      "stream-seq": sequence,
      "stream-closed": close ? "true" : undefined,
      "producer-id": producer?.[0],
      "producer-epoch": producer?.[1],
      "producer-seq": producer?.[2],
    }
    const request: HttpRequest = { method: "POST", target: streamTarget(this.name), headers: { "content-type": contentType, ...textsOf(more) }, body }
    return this.#transport.send(request, { what: `append to '${this.name}'`, take: appendedOf, repeatable: producer !== undefined })
  }

  /** An idempotent producer: it gathers records into batches and sends each until it is stored, once. */
  async producer(options: ProducerOptions = {}): Promise<Producer> {
    return new Producer(this.#transport, this.name, await this.contentType(), options)
  }

  /** Read up to the present tail. */
  read(options: ReadOptions = {}): Reader {
    return new Reader(this.#transport, this.name, "read", options, () => this.#isJson())
  }

  /** Read, and follow until the stream is closed. Resumes after lost connections and restarts of the server. */
  tail(options: TailOptions = {}): Reader {
    return new Reader(this.#transport, this.name, options.live ?? "auto", options, () => this.#isJson())
  }

  /** The properties of the stream, and its tail. Throws `StreamNotFound`, `StreamGone`. */
  async head(): Promise<Facts> {
    const what = `head of '${this.name}'`
    const take = (reply: Reply): Facts => ({
      name: this.name,
      contentType: reply.headers.get("content-type") ?? "",
      retainedOffset: reply.headers.get("stream-retained-offset") ?? undefined,
      ...placeOf(reply, what),
    })
    const target = streamTarget(this.name)
    try {
      const facts = await this.#transport.send({ method: "HEAD", target }, { what, take, repeatable: true })
      this.#contentType = facts.contentType
      return facts
    } catch (error) {
      if (!(error instanceof Refused) || error.code !== "") throw error
      // a response to HEAD has no body: the same refusal of GET says the reason
      await this.#transport.send({ method: "GET", target: streamTarget(this.name, { offset: "now" }) }, { what, take: () => undefined, repeatable: true })
      throw error
    }
  }

  /** The content type, from the server once. */
  async contentType(): Promise<string> {
    return this.#contentType ?? (await this.head()).contentType
  }

  async exists(): Promise<boolean> {
    try {
      await this.head()
      return true
    } catch (error) {
      if (error instanceof StreamNotFound || error instanceof StreamGone) return false
      throw error
    }
  }

  /** Close the stream: it accepts no more appends, and readers reach its end. */
  async close(): Promise<Appended> {
    const request = { method: "POST", target: streamTarget(this.name), headers: { "stream-closed": "true" } }
    return this.#transport.send(request, { what: `close '${this.name}'`, take: appendedOf, repeatable: true })
  }

  /** Delete the stream. Returns false if it was missing and `missingOk` is set. */
  async delete(options: { missingOk?: boolean } = {}): Promise<boolean> {
    const request = { method: "DELETE", target: streamTarget(this.name) }
    try {
      await this.#transport.send(request, { what: `delete '${this.name}'`, take: () => undefined, repeatable: true })
      return true
    } catch (error) {
      if (!(error instanceof StreamNotFound || error instanceof StreamGone)) throw error
      if (error.outcome === "unknown") return true // an attempt whose response was lost has deleted it
      if (options.missingOk) return false
      throw error
    }
  }

  /** Delete the records before an offset, and return the first retained one. */
  async trim(before: string): Promise<string> {
    const told = await this.#json<{ retained_offset: string }>("POST", "retention", `trim '${this.name}'`, { before })
    return told.retained_offset
  }

  /** The attributes of the stream. */
  attributes(): Promise<Record<string, unknown>> {
    return this.#json("GET", "attrs", `attributes of '${this.name}'`)
  }

  /** Merge into the attributes, where null removes one, or replace them. Returns the new ones. */
  async setAttributes(values: Readonly<Record<string, unknown>>, options: { replace?: boolean } = {}): Promise<Record<string, unknown>> {
    const what = `attributes of '${this.name}'`
    if (!options.replace) return this.#json("PATCH", "attrs", what, values)
    await this.#json("PUT", "attrs", what, values)
    return this.attributes()
  }

  /** Publish a snapshot: the state behind all records before an offset. */
  async publishSnapshot(offset: string, state: Value): Promise<void> {
    const request = { method: "PUT", target: `${streamTarget(this.name)}/snapshot/${offset}`, headers: { "content-type": JSON_TYPE }, body: encodeJson(state) }
    await this.#transport.send(request, { what: `publish a snapshot of '${this.name}'`, take: () => undefined, repeatable: true })
  }

  /** The newest snapshot of a JSON stream and the records behind it. `tail({ offset })` goes on. */
  async bootstrap(): Promise<Bootstrap> {
    const told = await this.#json<Record<string, any>>("GET", "bootstrap", `bootstrap '${this.name}'`)
    const url = told["snapshot_url"] as string | undefined // of a large one
    const snapshot = url === undefined ? told["snapshot"] : await this.#snapshot(told["snapshot_offset"])
    return { snapshot: snapshot ?? undefined, snapshotOffset: told["snapshot_offset"] ?? undefined, records: told["records"], offset: told["next_offset"], upToDate: told["up_to_date"] }
  }

  #snapshot(offset: string): Promise<unknown> {
    return this.#json("GET", `snapshot/${offset}`, `snapshot of '${this.name}'`)
  }

  #json<T>(method: string, path: string, what: string, body?: unknown): Promise<T> {
    return sendJson<T>(this.#transport, method, `${streamTarget(this.name)}/${path}`, what, body)
  }

  async #isJson(): Promise<boolean> {
    return isJsonType(await this.contentType())
  }
}

function placeOf(reply: Reply, what: string): { offset: string; closed: boolean; incarnation: string } {
  return {
    offset: header(reply, "stream-next-offset", what),
    closed: isTrue(reply.headers, "stream-closed"),
    incarnation: reply.headers.get("stream-incarnation") ?? "",
  }
}

async function sendJson<T>(transport: Transport, method: string, target: string, what: string, body?: unknown): Promise<T> {
  const headers: Record<string, string> = { accept: JSON_TYPE }
  if (body !== undefined) headers["content-type"] = JSON_TYPE
  const request = { method, target, headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) }
  const take = (reply: Reply): T => (reply.text === "" ? (undefined as T) : jsonOf<T>(reply, what))
  return transport.send(request, { what, take, repeatable: true })
}

function textsOf(values: Readonly<Record<string, string | number | undefined>>): Record<string, string> {
  const given = Object.entries(values).filter((each): each is [string, string | number] => each[1] !== undefined)
  return Object.fromEntries(given.map(([name, value]) => [name, String(value)]))
}

function lineOf(append: StreamAppend): string {
  const { stream, records, data, contentType, producer, ifMatch, close } = append
  if (records !== undefined && data !== undefined) throw new TypeError(`the append to '${stream}' has both records and data`)
  const parts = [`"stream":${JSON.stringify(stream)}`]
  if (records !== undefined && records.length > 0) parts.push(`"records":[${records.map((each) => encodeJson(each).replace(/\n/g, " ")).join(",")}]`)
  if (data !== undefined) parts.push(`"base64":"${toBase64(encodeBytes(data))}"`)
  const more = { content_type: contentType, producer, if_match: ifMatch, close: close || undefined }
  for (const [name, value] of Object.entries(more)) if (value !== undefined) parts.push(`"${name}":${JSON.stringify(value)}`)
  return `{${parts.join(",")}}`
}
