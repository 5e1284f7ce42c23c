/** Errors of the client, classified by the outcome of the request: applied, refused, or unknown. */

/** A `refused` request may be sent again. One with an `unknown` outcome may then be applied twice. */
export type Outcome = "applied" | "refused" | "unknown"

export interface ErrorDetails {
  /** The server's error code, see docs/errors.md; "" without one. */
  code?: string
  /** The HTTP status; 0 without a response. */
  status?: number
  /** Identifies the request in the server's log. */
  requestId?: string
  outcome?: Outcome
  /** Seconds to wait, if the server asked for that. */
  retryAfter?: number
  /** The tail, or the final offset of a closed stream. */
  offset?: string
  /** The first retained offset of a trimmed stream. */
  retainedOffset?: string
  /** The epoch that fenced a producer. */
  epoch?: number
  /** The sequence number that the server expects of a producer. */
  expected?: number
  /** The server's error object, with further fields such as `retry_after_ms`. */
  body?: Readonly<Record<string, unknown>>
  cause?: unknown
}

/** The base of all errors of the client. */
export class PolynyaError extends Error {
  readonly code: string
  readonly status: number
  readonly requestId: string
  readonly retryAfter: number
  readonly body: Readonly<Record<string, unknown>>
  outcome: Outcome

  constructor(message: string, details: ErrorDetails = {}) {
    const code = details.code && !message.includes(`[${details.code}]`) ? ` [${details.code}]` : ""
    const request = details.requestId ? ` (request ${details.requestId})` : ""
    super(message + code + request, "cause" in details ? { cause: details.cause } : undefined)
    this.name = new.target.name
    this.code = details.code ?? ""
    this.status = details.status ?? 0
    this.requestId = details.requestId ?? ""
    this.retryAfter = details.retryAfter ?? 0
    this.outcome = details.outcome ?? "refused"
    this.body = details.body ?? {}
  }
}

/** The server refused the request and applied nothing. It would refuse it again. */
export class Refused extends PolynyaError {}

/** No server was reachable or ready, and nothing was applied. Thrown when the retries end. */
export class Unavailable extends PolynyaError {}

/** The request may have been applied: its response was lost, or said so. A producer's retries are idempotent. */
export class OutcomeUnknown extends PolynyaError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { ...details, outcome: "unknown" })
  }
}

/** The server applied the request, but its response lacks required data. */
export class AnswerDamaged extends PolynyaError {
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, { ...details, outcome: "applied" })
  }
}

/** The token is missing, unknown, expired, or lacks the permission. */
export class AccessDenied extends Refused {}
/** The stream does not exist. */
export class StreamNotFound extends Refused {}
/** The stream was deleted. */
export class StreamGone extends Refused {}
/** The stream was deleted and created again since this reader began. */
export class StreamReplaced extends Refused {}
/** The stream exists with another configuration. */
export class StreamExists extends Refused {}

/** The stream is closed and accepts no appends; `offset` is its final offset. */
export class StreamClosed extends Refused {
  readonly offset: string
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details)
    this.offset = details.offset ?? ""
  }
}

/** The offset is before the first retained record; `retainedOffset` is where reading can start. */
export class Trimmed extends Refused {
  readonly retainedOffset: string
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details)
    this.retainedOffset = details.retainedOffset ?? ""
  }
}

/** The tail is not where the append demands it: another writer was first. `offset` is the tail. */
export class ConditionFailed extends Refused {
  readonly offset: string
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details)
    this.offset = details.offset ?? ""
  }
}

/** The `Stream-Seq` was not greater than the last one. */
export class SequenceRegression extends Refused {}

/** A newer run of the same producer id has taken over; `epoch` is its epoch. */
export class ProducerFenced extends Refused {
  readonly epoch: number
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details)
    this.epoch = details.epoch ?? 0
  }
}

/** The server expects another sequence number: it no longer knows this producer, or another process writes under its id. */
export class ProducerGap extends Refused {
  readonly expected: number
  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details)
    this.expected = details.expected ?? 0
  }
}

/** The sequence number was used for other records; nothing was appended. */
export class ProducerConflict extends Refused {}
/** The lease of a subscription is over: another worker may hold it. */
export class LeaseLost extends Refused {}

type RefusedClass = new (message: string, details?: ErrorDetails) => Refused

const BY_CODE: Readonly<Record<string, RefusedClass>> = {
  UNAUTHORIZED: AccessDenied,
  TOKEN_REFUSED: AccessDenied,
  TOKEN_IN_URL: AccessDenied,
  TOKEN_INVALID: AccessDenied,
  FORBIDDEN: AccessDenied,
  NOT_FOUND: StreamNotFound,
  GONE: StreamGone,
  STREAM_RECREATED: StreamReplaced,
  INCARNATION_MISMATCH: StreamReplaced,
  EXISTS_DIFFERENT: StreamExists,
  DELETED_IN_USE: StreamExists,
  SUBSCRIPTION_ALREADY_EXISTS: StreamExists,
  STREAM_CLOSED: StreamClosed,
  TRIMMED: Trimmed,
  SEQ_REGRESSION: SequenceRegression,
  PRECONDITION: ConditionFailed,
  OFFSET_CONFLICT: ConditionFailed,
  PRODUCER_STALE: ProducerFenced,
  PRODUCER_GAP: ProducerGap,
  PRODUCER_CONFLICT: ProducerConflict,
  FENCED: LeaseLost,
  TOKEN_EXPIRED: LeaseLost,
}

// for responses without a body, such as those to HEAD
const WORDS: Readonly<Record<string, string>> = {
  NOT_FOUND: "the stream does not exist; create() creates it",
  GONE: "the stream was deleted",
  UNAUTHORIZED: "the server requires a token, or does not accept the given one",
  FORBIDDEN: "the token does not allow this operation",
}

export interface ErrorSource {
  readonly status: number
  readonly headers: Headers
  readonly text: string
}

/** The error that a response of any form describes. */
export function errorOf(response: ErrorSource): { code: string; message: string; requestId: string; body: Record<string, unknown> } {
  const headers = response.headers
  let told: Record<string, unknown> = {}
  try {
    const body: unknown = JSON.parse(response.text)
    const error = (body as { error?: unknown } | null)?.error
    if (typeof error === "object" && error !== null) told = error as Record<string, unknown>
  } catch {
    // not JSON: another server, or a proxy
  }
  const text = response.text.trim().slice(0, 200)
  const code = typeof told["code"] === "string" && told["code"] !== "" ? told["code"] : codeOf(response)
  const said = `the server responded ${response.status}${text ? `: ${text}` : ""}`
  const message = typeof told["message"] === "string" ? told["message"] : text ? said : (WORDS[code] ?? said)
  const requestId = typeof told["request_id"] === "string" ? told["request_id"] : (headers.get("x-request-id") ?? "")
  return { code, message, requestId, body: told }
}

/** The typed error of a refusal that no retry helps. `what` names the operation, as in "append to 'orders'". */
export function refused(response: ErrorSource, what: string): Refused {
  const { code, message, requestId, body } = errorOf(response)
  const headers = response.headers
  const kind = BY_CODE[code] ?? Refused
  return new kind(`${what}: ${message}`, {
    code,
    status: response.status,
    requestId,
    body,
    offset: headers.get("stream-next-offset") ?? "",
    retainedOffset: headers.get("stream-retained-offset") ?? "",
    epoch: Number(headers.get("producer-epoch") ?? 0),
    expected: Number(headers.get("producer-expected-seq") ?? 0),
    retryAfter: retryAfterOf(headers),
  })
}

/** Retry-After in seconds; 0 when it is missing or a date. */
export function retryAfterOf(headers: Headers): number {
  const text = headers.get("retry-after") ?? ""
  return /^\d{1,6}$/.test(text) ? Number(text) : 0
}

/** The error code of a response without one: to HEAD, or from another implementation of the protocol. */
function codeOf({ status, headers }: ErrorSource): string {
  if (status === 409 && headers.has("stream-closed")) return "STREAM_CLOSED"
  if (status === 409 && headers.has("producer-expected-seq")) return "PRODUCER_GAP"
  if (status === 403 && headers.has("producer-epoch")) return "PRODUCER_STALE"
  if (status === 412 && headers.has("etag")) return "PRECONDITION"
  if (status === 410 && headers.has("stream-retained-offset")) return "TRIMMED"
  const codes: Readonly<Record<number, string>> = { 401: "UNAUTHORIZED", 403: "FORBIDDEN", 404: "NOT_FOUND", 410: "GONE" }
  return codes[status] ?? ""
}
