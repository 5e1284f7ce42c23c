// Whole records of the server (application/vnd.polynya.records+json), and the frame of ABI 1.

const NONE = 0xffffffff
const HEAD = 32
const encoder = new TextEncoder()

/** Parses an array of whole records. Values of a JSON stream keep the bytes that were appended. */
export function parseRecords(text, isJson) {
  return elements(text).map((whole) => {
    const fields = members(whole)
    const value = (name) => JSON.parse(fields.get(name) ?? "null")
    const appendMs = value("append_time") ?? 0
    const raw = fields.get("value") ?? "null"
    return {
      number: value("offset"),
      appendMs,
      timeMs: value("timestamp") ?? appendMs,
      key: bytesOf(value("key")),
      value: raw === "null" ? null : isJson ? encoder.encode(raw) : bytesOf(JSON.parse(raw)),
    }
  })
}

/** Returns the frame of records. */
export function frameOf(records) {
  const length = (bytes) => (bytes === null ? 0 : bytes.length)
  const size = records.reduce((sum, { key, value }) => sum + HEAD + length(key) + length(value), 0)
  const frame = new Uint8Array(size)
  const view = new DataView(frame.buffer)
  let at = 0
  for (const { number, appendMs, timeMs, key, value } of records) {
    view.setBigUint64(at, BigInt(number), true)
    view.setBigInt64(at + 8, BigInt(appendMs), true)
    view.setBigInt64(at + 16, BigInt(timeMs), true)
    view.setUint32(at + 24, key === null ? NONE : key.length, true)
    view.setUint32(at + 28, value === null ? NONE : value.length, true)
    at += HEAD
    for (const bytes of [key, value]) {
      if (bytes === null) continue
      frame.set(bytes, at)
      at += bytes.length
    }
  }
  return frame
}

/** The bytes of a string, or of {"$base64": "…"}; null for null. */
function bytesOf(field) {
  if (field === null) return null
  if (typeof field === "string") return encoder.encode(field)
  return Uint8Array.from(atob(field.$base64), (each) => each.charCodeAt(0))
}

/** The texts of an array's elements. */
function elements(text) {
  const found = []
  let at = space(text, space(text, 0) + 1)
  while (at < text.length && text[at] !== "]") {
    const end = skip(text, at)
    found.push(text.slice(at, end))
    at = space(text, end)
    if (text[at] === ",") at = space(text, at + 1)
  }
  return found
}

/** The texts of an object's members, by their names. */
function members(text) {
  const found = new Map()
  let at = space(text, 1)
  while (at < text.length && text[at] !== "}") {
    let end = skip(text, at)
    const name = JSON.parse(text.slice(at, end))
    at = space(text, space(text, end) + 1) // behind the colon
    end = skip(text, at)
    found.set(name, text.slice(at, end))
    at = space(text, end)
    if (text[at] === ",") at = space(text, at + 1)
  }
  return found
}

function space(text, at) {
  while (text[at] === " " || text[at] === "\n" || text[at] === "\r" || text[at] === "\t") at++
  return at
}

/** The end of the value that begins here. */
function skip(text, begin) {
  const scan = /"(?:[^"\\]|\\[^])*"|[[{]|[\]}]|[^\s",:[\]{}]+/g
  let depth = 0
  scan.lastIndex = begin
  for (let token = scan.exec(text); token; token = scan.exec(text)) {
    if (token[0] === "{" || token[0] === "[") depth++
    else if (token[0] === "}" || token[0] === "]") depth--
    if (depth <= 0) return scan.lastIndex
  }
  throw new SyntaxError("the records of the server end early")
}
