/** An idempotent producer: it gathers records into batches, and sends each until the server has stored it, once. */

import { AnswerDamaged, OutcomeUnknown, PolynyaError, ProducerConflict, ProducerFenced, ProducerGap, Refused, StreamClosed } from "./errors.js"
import { header, type HttpRequest, isTrue, joined, type Reply, streamTarget, type Transport } from "./http.js"
import { encodeBytes, encodeJson, isJsonType, type Value } from "./records.js"

export interface ProducerOptions {
  /** The name of the producer; without one a unique id. A new run under a name fences the one before. */
  id?: string
  /** The epoch; without it the one after the server's. */
  epoch?: number
  /** A batch is sent when it has so many bytes … */
  batchBytes?: number
  /** … or records … */
  batchRecords?: number
  /** … or so long after its first record. */
  lingerSeconds?: number
  /** `append` waits while records without a receipt have more bytes. */
  bufferBytes?: number
}

/** The result of a durable append. `offset` is the one behind it. */
export interface Appended {
  offset: string
  closed: boolean
  incarnation: string
}

/** The receipt of a record's batch. `durable` resolves once the batch is stored, and may be ignored. */
export interface Receipt {
  readonly durable: Promise<Appended>
}

/** The producer failed and takes no more records; `reason` says why. `applied` records are durable, `refused` ones are
 * certainly not stored; the next `unknown` ones behind the applied may be stored. */
export class ProducerFailed extends PolynyaError {
  constructor(
    readonly reason: PolynyaError,
    readonly applied: number,
    readonly refused: number,
    readonly unknown: number,
  ) {
    super(`${reason.message} (${applied} records applied, ${refused} refused${unknown > 0 ? `, ${unknown} unknown` : ""})`, {
      code: reason.code,
      status: reason.status,
      outcome: unknown > 0 ? "unknown" : "refused",
      cause: reason,
    })
  }
}

interface Batch {
  number: number
  records: Uint8Array[]
  size: number
  closes: boolean
  receipt: Receipt
  resolve: (appended: Appended) => void
  reject: (error: Error) => void
}

const NUMBER_MAX = Number.MAX_SAFE_INTEGER
const APPEND_BYTES_MAX = 32 << 20

/** Made by `Stream.producer`. Batches are sent one after another, so that none overtakes. */
export class Producer {
  /** Records that are durable. */
  applied = 0
  readonly id: string
  readonly #limits: Required<Pick<ProducerOptions, "batchBytes" | "batchRecords" | "lingerSeconds" | "bufferBytes">>
  readonly #batches: Batch[] = [] // the first one may be in flight
  #isSending = false
  #next = 0
  #epoch: number | undefined
  #claimed: boolean
  #buffered = 0
  #linger: ReturnType<typeof setTimeout> | undefined
  #flushing = false
  #closed = false
  #closing: Receipt | undefined
  #failed: ProducerFailed | undefined
  #waiting: (() => void)[] = []
  #asked = 0 // calls of `append`, which take their turns
  #taken = 0

  constructor(
    private readonly transport: Transport,
    private readonly stream: string,
    private readonly contentType: string,
    options: ProducerOptions,
  ) {
    this.#limits = { batchBytes: 1 << 20, batchRecords: 10_000, lingerSeconds: 0.005, bufferBytes: 16 << 20, ...options }
    for (const name of ["batchBytes", "batchRecords", "bufferBytes"] as const) {
      if (!(this.#limits[name] >= 1)) throw new RangeError(`${name} must be at least 1, not ${this.#limits[name]}`)
    }
    if (!(this.#limits.lingerSeconds >= 0 && this.#limits.lingerSeconds <= 86_400)) {
      throw new RangeError(`lingerSeconds must be between 0 and 86400, not ${this.#limits.lingerSeconds}`)
    }
    const { epoch } = options
    if (epoch !== undefined && !(Number.isSafeInteger(epoch) && epoch >= 0)) {
      throw new RangeError(`epoch must be between 0 and ${NUMBER_MAX}, not ${epoch}`)
    }
    this.id = options.id ?? drawnId()
    this.#epoch = epoch ?? (options.id === undefined ? 0 : undefined)
    this.#claimed = options.id === undefined
  }

  /** The epoch; undefined before that of a named producer is known. */
  get epoch(): number | undefined {
    return this.#epoch
  }

  /** Add a record to a batch. Waits while the buffer is full. Throws TypeError, `ProducerFailed`. */
  async append(value: Value): Promise<Receipt> {
    const record = isJsonType(this.contentType) ? new TextEncoder().encode(encodeJson(value)) : encodeBytes(value)
    if (record.length === 0) throw new TypeError("an empty record cannot be appended")
    const size = record.length + 2
    if (size > APPEND_BYTES_MAX) throw new RangeError(`the record has ${record.length} bytes; the limit is ${APPEND_BYTES_MAX}`)
    const turn = this.#asked
    this.#asked += 1
    try {
      while (this.#failed === undefined && (turn > this.#taken || this.#isOver(size))) {
        this.#send()
        await new Promise<void>((resolve) => this.#waiting.push(resolve))
      }
      this.#checkOpen()
      return this.#add(record, size)
    } finally {
      this.#taken += 1
      if (this.#taken < this.#asked) this.#wake()
    }
  }

  /** Report whether a record has to wait for room. One alone always fits. */
  #isOver(size: number): boolean {
    return this.#buffered > 0 && this.#buffered + size > this.#limits.bufferBytes
  }

  #add(record: Uint8Array, size: number): Receipt {
    const batch = this.#filling(size)
    batch.records.push(record)
    batch.size += size
    this.#buffered += size
    if (this.#isFull(batch)) this.#send()
    else this.#linger ??= setTimeout(() => this.#send(), this.#limits.lingerSeconds * 1000)
    return batch.receipt
  }

  /** Wait until all records are durable. Throws `ProducerFailed`. */
  async flush(): Promise<void> {
    while (this.#batches.length > 0 && this.#failed === undefined) {
      this.#flushing = true
      this.#send()
      await new Promise<void>((resolve) => this.#waiting.push(resolve))
    }
    this.#flushing = false
    if (this.#failed !== undefined) throw this.#failed
  }

  /** Close the stream behind all records, and wait for that. Idempotent. Throws `ProducerFailed`. */
  async closeStream(): Promise<Appended> {
    if (this.#closing === undefined) {
      this.#checkOpen()
      this.#closing = this.#begin(true).receipt
    }
    await this.flush()
    return this.#closing.durable
  }

  /** Take no more records, and wait until all are durable. Throws `ProducerFailed`. */
  async close(): Promise<void> {
    this.#closed = true
    await this.flush()
  }

  #checkOpen(): void {
    if (this.#failed !== undefined) throw new ProducerFailed(this.#failed.reason, this.#failed.applied, this.#failed.refused, this.#failed.unknown)
    if (this.#closed) throw new TypeError("the producer is closed")
    if (this.#closing !== undefined) {
      throw new StreamClosed(`${this.#what}: this producer closed the stream; it accepts no more appends`, { code: "STREAM_CLOSED" })
    }
  }

  get #what(): string {
    return `producer '${this.id}' of '${this.stream}'`
  }

  #isFull(batch: Batch): boolean {
    return batch.closes || batch.size >= this.#limits.batchBytes || batch.records.length >= this.#limits.batchRecords
  }

  /** The batch that takes a record of this size. */
  #filling(size: number): Batch {
    const last = this.#batches.at(-1)
    const isInFlight = this.#isSending && this.#batches.length === 1
    if (last === undefined || isInFlight || this.#isFull(last) || last.size + size > this.#limits.batchBytes) return this.#begin(false)
    return last
  }

  #begin(closes: boolean): Batch {
    let resolve!: (appended: Appended) => void
    let reject!: (error: Error) => void
    const durable = new Promise<Appended>((...both) => ([resolve, reject] = both))
    durable.catch(() => {}) // a receipt may be ignored: flush and close throw
    const batch: Batch = { number: this.#next, records: [], size: 0, closes, receipt: { durable }, resolve, reject }
    this.#next += 1
    this.#batches.push(batch)
    return batch
  }

  #send(): void {
    clearTimeout(this.#linger)
    this.#linger = undefined
    if (!this.#isSending && this.#failed === undefined) void this.#run()
  }

  /** Send the batches that are due, one after another. */
  async #run(): Promise<void> {
    this.#isSending = true
    try {
      if (!this.#claimed) await this.#claim()
      for (let batch = this.#batches[0]; batch !== undefined; batch = this.#batches[0]) {
        const appended = await this.#store(batch)
        this.#batches.shift()
        this.#buffered -= batch.size
        this.applied += batch.records.length
        batch.resolve(appended)
        this.#wake()
        const next = this.#batches[0]
        const lingers = next !== undefined && this.#batches.length === 1 && !this.#flushing && !this.#isFull(next) && this.#linger !== undefined
        if (lingers) break
      }
    } catch (error) {
      this.#fail(error)
    } finally {
      this.#isSending = false
      this.#wake()
    }
  }

  #wake(): void {
    const waiting = this.#waiting
    this.#waiting = []
    for (const resolve of waiting) resolve()
  }

  #fail(error: unknown): void {
    const reason = error instanceof PolynyaError ? error : new PolynyaError(`${this.#what}: ${String(error)}`, { cause: error })
    const counts = this.#batches.map((batch) => batch.records.length)
    const unknown = reason.outcome === "refused" ? 0 : (counts[0] ?? 0)
    const refused = counts.reduce((sum, count) => sum + count, 0) - unknown
    this.#failed = new ProducerFailed(reason, this.applied, refused, unknown)
    for (const batch of this.#batches.splice(0)) batch.reject(this.#failed)
    this.#buffered = 0
  }

  async #store(batch: Batch): Promise<Appended> {
    const epoch = this.#epoch ?? 0
    const isJson = isJsonType(this.contentType)
    const comma = new Uint8Array([0x2c])
    const pieces = isJson ? batch.records.flatMap((record, at) => (at === 0 ? [record] : [comma, record])) : batch.records
    const body = isJson && pieces.length > 0 ? joined([new Uint8Array([0x5b]), ...pieces, new Uint8Array([0x5d])]) : joined(pieces)
    const take = (reply: Reply, perhaps: boolean): Appended => this.#stored(batch, reply, perhaps)
    try {
      return await this.transport.send(this.#request(epoch, batch.number, body, batch.closes), { what: this.#what, take, repeatable: true })
    } catch (error) {
      // whoever closed the stream, it is closed behind all records of this producer
      if (error instanceof StreamClosed && batch.closes) return { offset: error.offset, closed: true, incarnation: "" }
      throw this.#explained(error, batch)
    }
  }

  #stored(batch: Batch, reply: Reply, perhaps: boolean): Appended {
    const stored = reply.headers.get("producer-seq")
    const isOurs = stored === null || (Number(stored) >= batch.number && reply.headers.get("producer-epoch") === String(this.#epoch))
    if (!isOurs) throw new AnswerDamaged(`${this.#what}: the response belongs to another append`)
    if (batch.number === 0 && reply.status === 204 && !perhaps && batch.records.length > 0) {
      throw new OutcomeUnknown(`${this.#what}: another producer with this id began under epoch ${this.#epoch} at the same time; use one id per producer`)
    }
    return appendedOf(reply)
  }

  #explained(error: unknown, batch: Batch): unknown {
    if (error instanceof ProducerFenced) error.message = `${this.#what}: fenced by a newer run of this producer with epoch ${error.epoch} [${error.code}]`
    if (error instanceof ProducerGap) error.message = `${this.#what}: the server lost the state of this producer; the stream was probably deleted and created again [${error.code}]`
    if (error instanceof ProducerConflict) {
      error.message = `${this.#what}: epoch ${this.#epoch} has other records under sequence ${batch.number}; another process writes under this id [${error.code}]`
    }
    return error
  }

  #request(epoch: number, number: number, body: Uint8Array, closes: boolean): HttpRequest {
    const headers: Record<string, string> = {
      "content-type": this.contentType,
      "producer-id": this.id,
      "producer-epoch": String(epoch),
      "producer-seq": String(number),
    }
    if (closes) headers["stream-closed"] = "true"
    return { method: "POST", target: streamTarget(this.stream), headers, body }
  }

  /** Claim an epoch by a probe that the server refuses, since its sequence leaves a gap: the refusal has the server's epoch. */
  async #claim(): Promise<void> {
    const given = this.#epoch
    const body = new TextEncoder().encode(isJsonType(this.contentType) ? "[null]" : "?")
    try {
      await this.transport.send(this.#request(given ?? 0, NUMBER_MAX, body, false), { what: this.#what, take: () => undefined, repeatable: true })
    } catch (error) {
      this.#epoch = this.#claimedBy(error, given)
      this.#claimed = true
      return
    }
    throw new Refused(`${this.#what}: the server does not store producer sequences`)
  }

  #claimedBy(error: unknown, given: number | undefined): number {
    if (error instanceof PolynyaError && error.code === "PRODUCER_EPOCH_START") return given ?? 0
    if (error instanceof ProducerGap && error.expected === 0) return given ?? 0
    if (error instanceof ProducerGap && given === undefined) return 1
    if (error instanceof ProducerFenced && given === undefined) return error.epoch + 1
    if (error instanceof ProducerGap) {
      error.message = `${this.#what}: epoch ${given} was already used up to sequence ${error.expected - 1}; pass a higher epoch, or none [${error.code}]`
    }
    throw error
  }
}

/** The result of an append. Throws `AnswerDamaged`. */
export function appendedOf(reply: Reply): Appended {
  return {
    offset: header(reply, "stream-next-offset", "append"),
    closed: isTrue(reply.headers, "stream-closed"),
    incarnation: reply.headers.get("stream-incarnation") ?? "",
  }
}

/** A unique id. `crypto.randomUUID` is missing in pages without TLS. */
function drawnId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("")
}
