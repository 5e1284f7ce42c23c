/** HTTP by `fetch`: one request run to its end, sent again where that is safe, or failed with a typed error. */

import { AnswerDamaged, errorOf, OutcomeUnknown, type PolynyaError, refused, retryAfterOf, Unavailable } from "./errors.js"

/** The policy for temporary failures. Pauses double, with jitter; a longer Retry-After of the server wins. */
export interface Retry {
  /** Retries stop so long after the first failure in a row. */
  seconds: number
  pauseSeconds: number
  pauseSecondsMax: number
  retryAfterSecondsMax: number
}

/** A token with the time of its end, in milliseconds since 1970. */
export interface ShortToken {
  token: string
  expires_ms: number
}

/** Fetches a token, such as a short one from the server of a web page. */
export type TokenSource = () => Promise<ShortToken | string>

export interface ClientOptions {
  /** An access token, or a function that fetches one: before its end, and when a server refuses it. */
  token?: string | TokenSource
  /** Further headers of every request. */
  headers?: Readonly<Record<string, string>>
  retry?: Partial<Retry>
  /** Another `fetch`, for instance with a proxy or certificates. */
  fetch?: typeof fetch
  /** `include` for tokens in cookies. */
  credentials?: RequestCredentials
}

export interface HttpRequest {
  method: string
  /** Path and query, percent-encoded. */
  target: string
  headers?: Readonly<Record<string, string>>
  body?: Uint8Array | string
  /** A token instead of the client's: that of a lease. */
  bearer?: string
}

export interface Reply {
  status: number
  headers: Headers
  text: string
  bytes: Uint8Array
}

/** A response whose body is read in pieces; `read` returns undefined at its end, and throws `Broken`. */
export interface OpenReply {
  status: number
  headers: Headers
  read(): Promise<Uint8Array | undefined>
  cancel(): void
}

/** A failed attempt. `sent`: the server may have received the request. */
export class Broken extends Error {
  constructor(
    readonly why: string,
    readonly sent: boolean,
  ) {
    super(why)
  }
}

export interface Call<T> {
  what: string
  /** `perhaps`: an earlier attempt may have been applied. */
  take: (reply: Reply, perhaps: boolean) => T
  /** An idempotent request is sent again even if an attempt may have been applied. */
  repeatable: boolean
  signal?: AbortSignal | undefined
}

export const RETRY: Retry = { seconds: 60, pauseSeconds: 0.1, pauseSecondsMax: 5, retryAfterSecondsMax: 300 }
export const JSON_TYPE = "application/json"

const SILENCE_MS = 60_000 // a healthy server sends at least a comment within this period
const REFRESH_MS = 30_000 // a token is renewed so long before its end
const LATER = new Set([408, 425, 429, 500, 502, 503, 504])
// temporary, but not within a retry period
const NOT_LATER = new Set(["PRODUCER_LIMIT", "STREAM_QUOTA", "TOO_MANY_SUBSCRIPTIONS"])
// raised before any byte reached the server; browsers do not tell
const NOT_SENT = /^(bad port|ECONNREFUSED|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|UND_ERR_CONNECT_TIMEOUT|ERR_TLS_.*|.*CERT.*)$/

type Verdict = "nothing" | "perhaps" | "never"

/** The consequence of a failure for its request; undefined after a success. */
export function judge(reply: Reply): Verdict | undefined {
  if ((reply.status >= 200 && reply.status < 300) || reply.status === 304) return undefined
  const outcome = reply.headers.get("stream-outcome")
  if (LATER.has(reply.status)) {
    if (NOT_LATER.has(errorOf(reply).code)) return "never"
    return outcome === "refused" || reply.status === 425 || reply.status === 429 ? "nothing" : "perhaps"
  }
  return outcome === "unknown" ? "perhaps" : "never"
}

/** Consecutive failures: the pause after each, and when to give up. */
export class Backoff {
  #since: number | undefined
  #times = 0

  constructor(private readonly retry: Retry) {}

  /** Reset after a success. */
  passed(): void {
    this.#since = undefined
    this.#times = 0
  }

  /** Seconds to wait after a failure, or undefined to give up. */
  pause(retryAfter = 0): number | undefined {
    const now = performance.now() / 1000
    this.#since ??= now
    const longest = Math.min(this.retry.pauseSeconds * 2 ** Math.min(this.#times, 30), this.retry.pauseSecondsMax)
    this.#times += 1
    const luck = Math.random()
    const asked = Math.min(retryAfter, this.retry.retryAfterSecondsMax) * (1 + luck / 10)
    const pause = Math.max(longest * (0.2 + 0.8 * luck), asked)
    return now - this.#since + pause <= this.retry.seconds ? pause : undefined
  }
}

/** The error to throw when retries end. `perhaps`: an attempt may have been applied. */
export function failure(last: Reply | Broken, what: string, perhaps: boolean): PolynyaError {
  const kind = perhaps ? OutcomeUnknown : Unavailable
  if (last instanceof Broken) return new kind(`${what}: ${last.sent ? "no response" : "the server is unreachable"}: ${last.why}`)
  const { code, message, requestId, body } = errorOf(last)
  return new kind(`${what}: ${message}`, { code, status: last.status, requestId, body, retryAfter: retryAfterOf(last.headers) })
}

/** The wait that a response asks for, in seconds. */
export function retryAfterIn(last: Reply | Broken): number {
  return last instanceof Broken ? 0 : retryAfterOf(last.headers)
}

export class Transport {
  readonly retry: Retry
  readonly #servers: readonly string[]
  readonly #options: ClientOptions
  #server = 0
  #token: ShortToken | undefined
  #fetching: Promise<ShortToken> | undefined

  constructor(servers: string | readonly string[], options: ClientOptions) {
    this.#servers = (typeof servers === "string" ? servers.split(",") : servers).map(serverOf)
    if (this.#servers.length === 0) throw new TypeError("the server's URL is missing; expected a form like http://127.0.0.1:4437")
    this.#options = options
    this.retry = { ...RETRY, ...options.retry }
  }

  /** Send a request until it succeeds, and return `take(reply)`; an `AnswerDamaged` of `take` is a failed attempt. */
  async send<T>(request: HttpRequest, call: Call<T>): Promise<T> {
    const backoff = new Backoff(this.retry)
    const reads = request.method === "GET" || request.method === "HEAD"
    let perhaps = false
    for (;;) {
      const last = await this.#attempt(request, call.signal)
      let damage: AnswerDamaged | undefined
      let verdict: Verdict | undefined
      if (last instanceof Broken) verdict = last.sent ? "perhaps" : "nothing"
      else {
        verdict = judge(last)
        if (verdict === undefined) {
          try {
            return call.take(last, perhaps)
          } catch (error) {
            if (!(error instanceof AnswerDamaged)) throw error
            damage = error
            verdict = "perhaps"
          }
        } else if (verdict === "never") {
          const error = refused(last, call.what)
          if (perhaps && !reads) error.outcome = "unknown"
          throw error
        }
      }
      perhaps ||= verdict === "perhaps"
      const pause = call.repeatable || !perhaps ? backoff.pause(retryAfterIn(last)) : undefined
      if (pause === undefined) throw damage ?? failure(last, call.what, perhaps && !reads)
      await sleep(pause, call.signal)
    }
  }

  /** Send a request once, and read the head of its response; a status other than 200 includes the body. */
  async open(request: HttpRequest, signal?: AbortSignal): Promise<OpenReply | Reply | Broken> {
    for (let again = 0; ; again += 1) {
      const opened = await this.#open(request, signal)
      if (opened instanceof Broken || opened.status === 200) return opened
      const reply = await whole(opened)
      if (reply instanceof Broken || reply.status !== 401 || again > 0 || !this.#forgetToken(request)) return reply
    }
  }

  async #attempt(request: HttpRequest, signal: AbortSignal | undefined): Promise<Reply | Broken> {
    for (let again = 0; ; again += 1) {
      const opened = await this.#open(request, signal)
      const reply = opened instanceof Broken ? opened : await whole(opened)
      if (reply instanceof Broken || reply.status === 503) this.#server = (this.#server + 1) % this.#servers.length
      if (reply instanceof Broken || reply.status !== 401 || again > 0 || !this.#forgetToken(request)) return reply
    }
  }

  async #open(request: HttpRequest, signal: AbortSignal | undefined): Promise<OpenReply | Broken> {
    signal?.throwIfAborted()
    const token = request.bearer ?? (await this.#bearer())
    const headers: Record<string, string> = { accept: "*/*", ...this.#options.headers, ...request.headers }
    if (token !== undefined) headers["authorization"] = `Bearer ${token}`
    const abort = new AbortController()
    const watch = new Watch(abort, signal)
    const send = this.#options.fetch ?? fetch
    try {
      const init: RequestInit = { method: request.method, headers, signal: abort.signal, cache: "no-store" }
      if (request.body !== undefined) init.body = request.body as BodyInit
      if (this.#options.credentials !== undefined) init.credentials = this.#options.credentials
      const response = await send(this.#servers[this.#server] + request.target, init)
      return new Opened(response, watch)
    } catch (error) {
      watch.end()
      signal?.throwIfAborted()
      return brokenOf(error, this.#servers[this.#server] ?? "")
    }
  }

  async #bearer(): Promise<string | undefined> {
    const source = this.#options.token
    if (typeof source !== "function") return source || undefined
    if (this.#token !== undefined && this.#token.expires_ms - REFRESH_MS > Date.now()) return this.#token.token
    this.#fetching ??= source()
      .then((given) => (typeof given === "string" ? { token: given, expires_ms: Infinity } : given))
      .finally(() => (this.#fetching = undefined))
    this.#token = await this.#fetching
    return this.#token.token
  }

  /** Forget a fetched token that was refused; false if there is no other to fetch. */
  #forgetToken(request: HttpRequest): boolean {
    if (typeof this.#options.token !== "function" || request.bearer !== undefined) return false
    this.#token = undefined
    return true
  }
}

/** Ends a request that is silent for too long, or that its caller gives up. */
class Watch {
  readonly #onAbort = (): void => this.abort.abort()
  #timer: ReturnType<typeof setTimeout> | undefined
  silent = false

  constructor(
    private readonly abort: AbortController,
    private readonly signal: AbortSignal | undefined,
  ) {
    signal?.addEventListener("abort", this.#onAbort, { once: true })
    this.heard()
  }

  heard(): void {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => {
      this.silent = true
      this.abort.abort()
    }, SILENCE_MS)
  }

  /** Stop the clock while nobody reads. */
  rest(): void {
    clearTimeout(this.#timer)
  }

  end(): void {
    clearTimeout(this.#timer)
    this.signal?.removeEventListener("abort", this.#onAbort)
  }

  cancel(): void {
    this.end()
    this.abort.abort()
  }

  throwIfAborted(): void {
    this.signal?.throwIfAborted()
  }
}

class Opened implements OpenReply {
  readonly status: number
  readonly headers: Headers
  readonly #reader: ReadableStreamDefaultReader<Uint8Array> | undefined

  constructor(
    response: Response,
    private readonly watch: Watch,
  ) {
    this.status = response.status
    this.headers = response.headers
    this.#reader = response.body?.getReader()
    if (this.#reader === undefined) watch.end()
  }

  async read(): Promise<Uint8Array | undefined> {
    if (this.#reader === undefined) return undefined
    this.watch.heard()
    try {
      const { done, value } = await this.#reader.read()
      if (done) this.watch.end()
      else this.watch.rest()
      return done ? undefined : value
    } catch (error) {
      this.watch.end()
      this.watch.throwIfAborted()
      throw new Broken(this.watch.silent ? `no byte in ${SILENCE_MS / 1000} s` : reasonOf(error), true)
    }
  }

  cancel(): void {
    this.watch.cancel()
    this.#reader?.cancel().catch(() => {}) // it ends in the same way as the request
  }
}

async function whole(opened: OpenReply): Promise<Reply | Broken> {
  const pieces: Uint8Array[] = []
  try {
    for (let piece = await opened.read(); piece !== undefined; piece = await opened.read()) pieces.push(piece)
  } catch (error) {
    if (error instanceof Broken) return error
    throw error
  }
  const bytes = joined(pieces)
  return { status: opened.status, headers: opened.headers, bytes, text: new TextDecoder().decode(bytes) }
}

export function joined(pieces: readonly Uint8Array[]): Uint8Array {
  if (pieces.length === 1) return pieces[0] as Uint8Array
  const all = new Uint8Array(pieces.reduce((size, piece) => size + piece.length, 0))
  let at = 0
  for (const piece of pieces) {
    all.set(piece, at)
    at += piece.length
  }
  return all
}

function brokenOf(error: unknown, server: string): Broken {
  const codes = codesOf(error)
  return new Broken(`${reasonOf(error)} (${server})`, codes.length === 0 || !codes.every((code) => NOT_SENT.test(code)))
}

/** The system's codes of a failed `fetch`, of each address that was tried. */
function codesOf(error: unknown): string[] {
  const { cause, code, errors, message } = (error ?? {}) as { cause?: unknown; code?: unknown; errors?: unknown[]; message?: string }
  if (message === "bad port") return [message] // one that browsers, and so `fetch`, never use
  if (Array.isArray(errors) && errors.length > 0) return errors.flatMap(codesOf)
  if (cause !== undefined) return codesOf(cause)
  return typeof code === "string" ? [code] : []
}

function reasonOf(error: unknown): string {
  const { message, cause } = (error ?? {}) as { message?: string; cause?: unknown }
  const inner = cause === undefined ? codesOf(error).join(", ") : reasonOf(cause)
  return [message, message?.includes(inner) ? "" : inner].filter(Boolean).join(": ") || String(error)
}

function serverOf(text: string): string {
  const form = "expected a form like http://127.0.0.1:4437"
  let url: URL
  try {
    url = new URL(text.trim())
  } catch {
    throw new TypeError(`${JSON.stringify(text)} is not a server's URL; ${form}`)
  }
  if (!/^https?:$/.test(url.protocol)) throw new TypeError(`${JSON.stringify(text)} is not a server's URL; ${form}`)
  if (url.search || url.hash) throw new TypeError(`${JSON.stringify(text)} has a query or a fragment; ${form}`)
  return url.href.replace(/\/+$/, "")
}

/** Wait; rejects with the reason of the signal. */
export function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted()
    const onAbort = (): void => {
      clearTimeout(timer)
      reject(signal?.reason)
    }
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort)
      resolve()
    }, seconds * 1000)
    signal?.addEventListener("abort", onAbort, { once: true })
  })
}

/** A header that a success must have. */
export function header(reply: Reply, name: string, what: string): string {
  const value = reply.headers.get(name)
  if (value === null) {
    throw new AnswerDamaged(`${what}: the response lacks ${name}; check that the URL is a Durable Streams server`, { status: reply.status })
  }
  return value
}

export function isTrue(headers: Headers, name: string): boolean {
  return headers.get(name)?.toLowerCase() === "true"
}

/** The JSON object of a success. */
export function jsonOf<T>(reply: Reply, what: string): T {
  try {
    return JSON.parse(reply.text) as T
  } catch {
    throw new AnswerDamaged(`${what}: the response is not JSON; check that the URL is a Polynya server`, { status: reply.status })
  }
}

/** The path of a stream. URLs resolve segments of dots, encoded ones too, and would reach another stream. */
export function streamTarget(name: string, query?: Readonly<Record<string, string>>): string {
  const segments = name.split("/")
  if (segments.some((segment) => segment === "." || segment === "..")) {
    throw new TypeError(`the stream's name ${JSON.stringify(name)} has a dot segment, which URLs resolve; use another name`)
  }
  const path = segments.map((segment) => encodeURIComponent(segment)).join("/")
  const text = query === undefined ? "" : new URLSearchParams(query).toString()
  return `/v1/stream/${path}${text ? `?${text}` : ""}`
}
