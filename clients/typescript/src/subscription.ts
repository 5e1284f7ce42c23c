/** Subscriptions whose workers claim work: leases, acknowledgements, retries. See docs/subscriptions.md. */

import { LeaseLost, Refused } from "./errors.js"
import { JSON_TYPE, jsonOf, type Reply, sleep, type Transport } from "./http.js"

export interface SubscriptionSettings {
  /** All present and future streams that match: `*` is one segment, `**` any number. */
  pattern?: string
  streams?: readonly string[]
  /** The stream that wakes are appended to; the application creates it, with application/json. */
  wakeStream: string
  leaseSeconds?: number
  description?: string
  /** A record that failed so often goes to `deadLetterStream`. Both or none. */
  maxAttempts?: number
  deadLetterStream?: string
}

/** A stream of a lease: work is what lies between the two offsets. */
export interface LeasedStream {
  path: string
  acked_offset: string
  tail_offset: string
  has_pending: boolean
}

/** The record that a worker gave back. */
export interface Failure {
  stream: string
  offset: string
  attempts: number
  error: string
}

export interface RetryOptions {
  /** The record that failed: the one at the acknowledged offset of `stream`, which ends at `offset`. */
  stream: string
  offset: string
  /** Seconds to pause; without it 1 s, doubled with each attempt up to a minute. */
  after?: number
  error?: string
  /** The record as the dead letter shall have it. */
  record?: unknown
  /** Offsets up to which streams were handled before. */
  acks?: Readonly<Record<string, string>>
}

interface Claimed {
  wake_id: string
  generation: number
  token: string
  lease_ttl_ms: number
  streams: LeasedStream[]
  failure: Failure | null
}

/** One subscription. `Client.subscription` makes it, without a request. */
export class Subscription {
  readonly #target: string
  #claims = 0

  constructor(
    private readonly transport: Transport,
    readonly id: string,
  ) {
    this.#target = `/v1/stream/__ds/subscriptions/${encodeURIComponent(id)}`
  }

  /** Create the subscription. One with the same settings is no error. Throws `StreamExists`. */
  async create(settings: SubscriptionSettings): Promise<void> {
    const body = {
      type: "pull-wake",
      pattern: settings.pattern,
      streams: settings.streams,
      wake_stream: settings.wakeStream,
      lease_ttl_ms: settings.leaseSeconds === undefined ? undefined : Math.round(settings.leaseSeconds * 1000),
      description: settings.description,
      max_attempts: settings.maxAttempts,
      dead_letter_stream: settings.deadLetterStream,
    }
    await this.#call("PUT", "", body, `create the subscription '${this.id}'`)
  }

  /** The state as the server shows it: streams with cursors and lag, holder, failure. */
  async show(): Promise<Record<string, unknown>> {
    return jsonOf(await this.#call("GET", "", undefined, `show the subscription '${this.id}'`), "show")
  }

  /** Delete the subscription with its cursors. */
  async delete(): Promise<void> {
    await this.#call("DELETE", "", undefined, `delete the subscription '${this.id}'`)
  }

  /** Claim the pending work. Undefined: nothing is pending, or another worker has it. `worker` names this worker, uniquely. */
  async claim(worker: string): Promise<Lease | undefined> {
    this.#claims += 1
    const body = { worker, claim_id: `${this.#claims}` } // a repeat gets the same lease
    try {
      const reply = await this.#call("POST", "/claim", body, `claim work of '${this.id}'`)
      return new Lease(this.transport, this.#target, jsonOf<Claimed>(reply, "claim"))
    } catch (error) {
      if (error instanceof Refused && (error.code === "NO_PENDING_WORK" || error.code === "ALREADY_CLAIMED")) return undefined
      throw error
    }
  }

  #call(method: string, path: string, body: unknown, what: string): Promise<Reply> {
    return this.transport.send(
      {
        method,
        target: this.#target + path,
        headers: { "content-type": JSON_TYPE },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      },
      { what, take: (reply) => reply, repeatable: true },
    )
  }
}

/** The right to work on a subscription, until it is released or not extended in time. */
export class Lease {
  readonly streams: readonly LeasedStream[]
  /** The record that was given back last; its `attempts` count at all workers. */
  readonly failure: Failure | null
  /** How long the lease holds without `extend` or `ack`. */
  readonly seconds: number
  readonly generation: number

  constructor(
    private readonly transport: Transport,
    private readonly target: string,
    private readonly claimed: Claimed,
  ) {
    this.streams = claimed.streams
    this.failure = claimed.failure
    this.seconds = claimed.lease_ttl_ms / 1000
    this.generation = claimed.generation
  }

  /** Acknowledge: streams with the offsets up to which they are handled. Extends the lease, or ends it with `done`.
   * Returns true if more work is pending behind the end. Throws `LeaseLost`. */
  async ack(offsets: Readonly<Record<string, string>>, options: { done?: boolean } = {}): Promise<boolean> {
    const reply = await this.#call("/ack", { acks: acksOf(offsets), done: options.done === true }, "acknowledge")
    return reply.text !== "" && jsonOf<{ next_wake?: boolean }>(reply, "acknowledge").next_wake === true
  }

  /** Hold the lease for another period. Throws `LeaseLost`. */
  async extend(): Promise<void> {
    await this.ack({})
  }

  /** Extend the lease while `work` runs. Throws `LeaseLost` behind it if the lease was lost meanwhile. */
  async keep<T>(work: () => Promise<T>): Promise<T> {
    const stop = new AbortController()
    let lost: LeaseLost | undefined
    const beat = async (): Promise<void> => {
      while (!stop.signal.aborted && lost === undefined) {
        await sleep(this.seconds / 3, stop.signal)
        try {
          await this.extend()
        } catch (error) {
          if (error instanceof LeaseLost) lost = error // other failures: the next beat may succeed
        }
      }
    }
    const beating = beat().catch(() => {}) // the end of the wait
    try {
      const result = await work()
      if (lost !== undefined) throw lost
      return result
    } finally {
      stop.abort()
      await beating
    }
  }

  /** Give a record back that could not be handled, and end the lease. Throws `LeaseLost`. */
  async retry(options: RetryOptions): Promise<{ attempts: number; retryAfterSeconds: number; deadLetter: boolean }> {
    const { stream, offset, after, error, record, acks } = options
    const body = { stream, offset, error, record, after_ms: after === undefined ? undefined : Math.round(after * 1000), acks: acksOf(acks ?? {}) }
    const told = jsonOf<{ attempts: number; retry_after_ms?: number; dead_letter: boolean }>(await this.#call("/retry", body, "give a record back"), "retry")
    return { attempts: told.attempts, retryAfterSeconds: (told.retry_after_ms ?? 0) / 1000, deadLetter: told.dead_letter }
  }

  /** Return the lease without moving a cursor. */
  async release(): Promise<void> {
    await this.#call("/release", {}, "release a lease")
  }

  #call(path: string, more: Record<string, unknown>, what: string): Promise<Reply> {
    const { wake_id, generation, token } = this.claimed
    const body = JSON.stringify({ wake_id, generation, ...more })
    const request = { method: "POST", target: this.target + path, headers: { "content-type": JSON_TYPE }, body, bearer: token }
    return this.transport.send(request, { what, take: (reply) => reply, repeatable: true })
  }
}

function acksOf(offsets: Readonly<Record<string, string>>): { stream: string; offset: string }[] {
  return Object.entries(offsets).map(([stream, offset]) => ({ stream, offset }))
}
