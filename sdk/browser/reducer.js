// Runs a reducer of Polynya in the browser (or in Node): the module of the server begins at the newest
// snapshot of a stream, and applies its records as they come. Nothing here is limited in time or
// memory: use it in a Worker if the module is not your own.

import { frameOf, parseRecords } from "./records.js"
import { asksForTime, wasiImports } from "./wasi.js"

const decoder = new TextDecoder()
const ABI = 1
const RETRY_MS = [500, 1000, 2000, 5000, 15000]

/** A module of ABI 1, and the state of one stream. */
export class Reducer {
  #module
  #time = { ms: 1 }
  #exports

  /** Compiles a module. */
  static async load(bytes) {
    const reducer = new Reducer()
    reducer.#module = await WebAssembly.compile(bytes)
    return reducer
  }

  /** Begins before the first record, or at a state. */
  async restore(state = null) {
    this.#time.ms = 1
    const imports = wasiImports(this.#module, () => this.#exports.memory, this.#time)
    const instance = await WebAssembly.instantiate(this.#module, imports)
    this.#exports = instance.exports
    this.#exports._initialize?.()
    const abi = this.#exports.polynya_abi()
    if (abi !== ABI) throw new Error(`the module has ABI ${abi}, not ${ABI}`)
    if (state) this.#call("restore", state)
  }

  /** Applies records in their order. */
  apply(records) {
    if (!records.length) return
    const parts = asksForTime(this.#module) ? records.map((record) => [record]) : [records]
    for (const part of parts) {
      this.#time.ms = part[0].timeMs
      const applied = this.#call("apply", frameOf(part))
      if (applied !== part.length) throw new Error(`apply returned ${applied} for ${part.length} records`)
    }
  }

  /** The state after the records so far, as bytes. */
  state() {
    return this.#read(this.#run(() => this.#exports.state()))
  }

  /** What the module has for a key, as bytes; null if there is nothing. */
  get(key) {
    if (!this.#exports.get) throw new Error("the module does not export get")
    const found = this.#read(this.#call("get", new TextEncoder().encode(key)))
    return found.length ? found : null
  }

  #call(name, input) {
    return this.#run(() => {
      const pointer = this.#exports.alloc(input.length) >>> 0
      new Uint8Array(this.#exports.memory.buffer, pointer, input.length).set(input)
      return this.#exports[name](pointer, input.length)
    })
  }

  /** Runs a call; the error of a trap has the module's own reason. */
  #run(call) {
    try {
      return call()
    } catch (error) {
      if (!(error instanceof WebAssembly.RuntimeError) || !this.#exports.polynya_error) throw error
      throw new Error(decoder.decode(this.#read(this.#exports.polynya_error())) || error.message, { cause: error })
    }
  }

  #read(packed) {
    const range = BigInt.asUintN(64, packed)
    return new Uint8Array(this.#exports.memory.buffer, Number(range >> 32n), Number(range & 0xffffffffn)).slice()
  }
}

/**
 * Follows a stream with a reducer of the server. `onState(reducer, offset)` is called after the first
 * records and then after each event; it calls `reducer.state()` if it wants to. Options: `server` (a
 * URL), `stream`, `reducer` (names), `token`, `signal` (ends it), `fetch`. Ends with an error that the
 * server or the module gives; a lost connection is opened again.
 */
export async function follow(options) {
  try {
    await followed(options)
  } catch (error) {
    if (!options.signal?.aborted) throw error
  }
}

async function followed({ server, stream, reducer: name, onState, token, signal, fetch = globalThis.fetch }) {
  const path = stream.split("/").map(encodeURIComponent).join("/")
  const url = `${server.replace(/\/$/, "")}/v1/stream/${path}`
  const get = async (address, more = {}) => {
    const { headers, ...options } = more
    const sent = token ? { Authorization: `Bearer ${token}`, ...headers } : headers
    const response = await fetch(address, { signal, headers: sent, ...options }).catch((error) => {
      throw new Lost(error.message)
    })
    if (response.ok) return response
    if (response.status >= 500 || response.status === 429) throw new Lost(`the server responded ${response.status}`)
    throw new Error(`${address}: the server responded ${response.status}: ${await response.text()}`)
  }
  const retrying = (work) => again(work, signal)

  const module = await retrying(() => get(`${url.split("/v1/stream/")[0]}/v1/reducers/${name}/module`))
  const origin = module.headers.get("stream-reducer")
  const reducer = await Reducer.load(await module.arrayBuffer())
  const head = await retrying(() => get(url, { method: "HEAD" }))
  const isJson = head.headers.get("content-type").split(";")[0] === "application/json"
  const incarnation = { "Stream-Incarnation": head.headers.get("stream-incarnation") }

  let offset = await retrying(async () => {
    const { snapshots } = await (await get(`${url}/snapshots`, { headers: incarnation })).json()
    const own = snapshots.filter((each) => each.origin === origin && !each.behind_trim)
    const newest = own.sort((one, other) => (one.offset < other.offset ? 1 : -1))[0]
    if (!newest) return await reducer.restore(), "-1"
    const query = new URLSearchParams({ origin })
    const body = await get(`${url}/snapshot/${newest.offset}?${query}`, { headers: incarnation })
    await reducer.restore(new Uint8Array(await body.arrayBuffer()))
    return newest.offset
  })
  for (;;) {
    await retrying(async () => {
      const query = new URLSearchParams({ offset, live: "sse", record_view: "records" })
      const response = await get(`${url}?${query}`, { headers: incarnation })
      let pending = [] // until their offset is known: a lost connection must not repeat them
      for await (const event of events(response.body)) {
        if (event.type === "data") pending.push(...parseRecords(event.data, isJson))
        if (event.type !== "control") continue
        const control = JSON.parse(event.data)
        reducer.apply(pending)
        pending = []
        offset = control.streamNextOffset ?? offset
        onState(reducer, offset)
        if (control.streamClosed) offset = null
      }
    })
    if (offset === null) return
  }
}

class Lost extends Error {}

/** Does the work until the connection holds. */
async function again(work, signal) {
  for (let tries = 0; ; tries++) {
    try {
      return await work()
    } catch (error) {
      if (signal?.aborted || !(error instanceof Lost)) throw error
      const pause = RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]
      await new Promise((resolve) => setTimeout(resolve, pause))
    }
  }
}

/** The server-sent events of a response's body. */
export async function* events(body) {
  let rest = ""
  for await (const text of texts(body)) {
    rest += text
    const parts = rest.split(/\r?\n\r?\n/)
    rest = parts.pop()
    for (const part of parts) {
      const event = { type: "message", data: [] }
      for (const line of part.split(/\r?\n/)) {
        const [, field, value] = /^([^:]*):? ?(.*)$/.exec(line)
        if (field === "event") event.type = value
        if (field === "data") event.data.push(value)
      }
      if (event.data.length) yield { type: event.type, data: event.data.join("\n") }
    }
  }
}

async function* texts(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader()
  try {
    for (let read = await reader.read(); !read.done; read = await reader.read()) yield read.value
  } catch (error) {
    throw new Lost(error.message)
  } finally {
    reader.releaseLock()
  }
}
