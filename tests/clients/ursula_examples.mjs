// What the examples of Ursula's documentation ask for, with their assumptions about each answer: the
// clients page, the resumable AI stream, the chat room, and the browser telemetry with its indexer. The
// URL of the server is the argument.
import assert from "node:assert/strict"

const base = process.argv[2]

/** The part of a browser's EventSource that the examples use. */
class Events {
  #listeners = {}
  #ends = new AbortController()

  constructor(url) {
    this.ready = this.#follow(url)
  }

  addEventListener(type, listener) {
    this.#listeners[type] = listener
  }

  close() {
    this.#ends.abort()
  }

  async #follow(url) {
    const response = await fetch(url, { signal: this.#ends.signal, headers: { Accept: "text/event-stream" } })
    assert.equal(response.status, 200)
    assert.equal(response.headers.get("Content-Type"), "text/event-stream")
    this.headers = response.headers
    this.ended = this.#read(response.body).catch((error) => assert.equal(error.name, "AbortError"))
  }

  async #read(body) {
    let rest = ""
    for await (const text of body.pipeThrough(new TextDecoderStream())) {
      const blocks = (rest + text).split("\n\n")
      rest = blocks.pop()
      for (const block of blocks) {
        const fields = block.split("\n").map((line) => /^([^:]*):? ?(.*)$/.exec(line).slice(1))
        const data = fields.filter(([name]) => name === "data").map(([, value]) => value)
        const type = fields.find(([name]) => name === "event")?.[1] ?? "message"
        if (data.length) this.#listeners[type]?.({ data: data.join("\n") })
      }
    }
  }
}

/** Follows a stream until `enough(events)`. Returns the events, and the head of the answer. */
async function follow(url, enough, meanwhile = async () => {}) {
  const source = new Events(url)
  const found = []
  const done = new Promise((resolve) => {
    for (const type of ["data", "control"])
      source.addEventListener(type, (event) => {
        found.push([type, event.data])
        if (enough(found)) resolve()
      })
  })
  await source.ready
  await meanwhile(found)
  await done
  source.close()
  await source.ended
  return [found, source.headers]
}

const of = (events, wanted) => events.filter(([type]) => type === wanted).map(([, data]) => data)
const controls = (events) => of(events, "control").map((data) => JSON.parse(data))
const lines = (text) => text.split("\n").filter(Boolean).map((line) => JSON.parse(line))

async function clients() {
  assert.equal((await fetch(`${base}/demo`, { method: "PUT" })).status, 201)
  assert.equal((await fetch(`${base}/demo/hello`, { method: "PUT" })).status, 201)
  const appended = await fetch(`${base}/demo/hello`, {
    method: "POST",
    headers: { "Content-Type": "application/octet-stream" },
    body: "hello world",
  })
  assert.equal(appended.status, 204)
  const next = appended.headers.get("stream-next-offset")
  const read = await fetch(`${base}/demo/hello?offset=-1`)
  assert.equal(await read.text(), "hello world")
  assert.equal(read.headers.get("stream-next-offset"), next)
  assert.equal(await (await fetch(`${base}/demo/hello?offset=${next}`)).text(), "")
  const [events, head] = await follow(`${base}/demo/hello?offset=-1&live=sse`, (found) => of(found, "control").length)
  assert.equal(head.get("Stream-Sse-Data-Encoding"), "base64")
  assert.equal(head.get("Stream-Data-Content-Type"), "application/octet-stream")
  assert.equal(atob(of(events, "data").join("")), "hello world")
}

async function resumableAiStream() {
  const url = `${base}/agent/run-42`
  const created = await fetch(url, { method: "PUT", headers: { "Content-Type": "text/plain", "Stream-TTL": "86400" } })
  assert.equal(created.status, 201)
  let seq = 0
  const send = async (chunk, at = seq++) => {
    const headers = { "Content-Type": "text/plain", "Producer-Id": "worker-1", "Producer-Epoch": "1", "Producer-Seq": String(at) }
    const response = await fetch(url, { method: "POST", headers, body: chunk })
    assert.ok(response.ok)
  }
  for (const chunk of ["The", " answer\n", " is"]) await send(chunk)
  await send(" is", 2) // after a network error: stored once
  const [events] = await follow(
    `${url}?offset=-1&live=sse`,
    (found) => controls(found).some((each) => each.streamClosed),
    async () => {
      await send(" 42")
      const sealed = await fetch(url, { method: "POST", headers: { "Stream-Closed": "true" } })
      assert.ok(sealed.ok)
    },
  )
  assert.equal(of(events, "data").join(""), "The answer\n is 42")
  const late = await fetch(url, { method: "POST", headers: { "Content-Type": "text/plain" }, body: "x" })
  assert.equal(late.status, 409)
}

async function chatRoom() {
  const url = `${base}/chat/room-7`
  const type = { "Content-Type": "application/json" }
  const created = await fetch(url, { method: "PUT", headers: type })
  assert.equal(created.headers.get("Stream-Extensions"), "json-record-coordinates-v1")
  let records = 0
  const send = async (body) => {
    const response = await fetch(url, { method: "POST", headers: type, body: JSON.stringify(body) })
    const range = ["Start", "Next"].map((end) => Number(response.headers.get(`Stream-Record-${end}`)))
    assert.deepEqual(range, [records, (records += Array.isArray(body) ? body.length : 1)])
  }
  const message = (text) => ({ user: "ada", text, sent_at: "2026-07-23T09:00:00Z" })
  await send(Array.from({ length: 60 }, (_, at) => message(`from the outbox ${at}`)))
  await send(message("hello"))

  const history = await fetch(`${url}?tail_records=50&record_view=envelope`)
  assert.equal(history.headers.get("Content-Type"), "application/vnd.durable-stream-records+ndjson")
  const last = lines(await history.text())
  assert.deepEqual(last.map(({ record }) => record), Array.from({ length: 50 }, (_, at) => 11 + at))
  assert.deepEqual(last.at(-1), { record: 60, value: message("hello") })

  // renderMessage(record, value) of each event; one event per record
  const shown = []
  const render = (data) => {
    const { record, value } = JSON.parse(data)
    shown.push([record, value.text])
  }
  const reads = (from) => `${url}?record=${from}&record_view=envelope&live=sse`
  const [events, head] = await follow(
    reads("now"),
    (found) => of(found, "data").length === 3,
    async () => {
      await send(message("hey"))
      await send([message("two"), message("at once")])
    },
  )
  of(events, "data").forEach(render)
  assert.equal(head.get("Stream-Extensions"), "json-record-coordinates-v1")
  assert.equal(head.get("Stream-Data-Content-Type"), "application/vnd.durable-stream-record+json")
  await send(message("while nobody looked"))
  // the last control event seen says where to go on; what it precedes is not missed
  const stored = controls(events).at(-1).streamNextRecord
  const [rest] = await follow(reads(stored), (found) => of(found, "data").length === records - stored)
  for (const data of of(rest, "data")) if (JSON.parse(data).record > shown.at(-1)[0]) render(data)
  assert.deepEqual(shown, [[61, "hey"], [62, "two"], [63, "at once"], [64, "while nobody looked"]])
  assert.equal(controls(rest).at(-1).streamNextRecord, records)
}

/** A collector that buffers events and posts them together, as that of the example. */
function collector(streamUrl, flushSize) {
  let queue = []
  const flush = async () => {
    const batch = queue
    queue = []
    const response = await fetch(streamUrl, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(batch),
      keepalive: true,
    })
    if (!response.ok) throw new Error(`telemetry append failed: ${response.status}`)
    return {
      recordStart: Number(response.headers.get("Stream-Record-Start") ?? NaN),
      recordNext: Number(response.headers.get("Stream-Record-Next") ?? NaN),
    }
  }
  const capture = (type, fields) => {
    queue.push({ captured_at: new Date().toISOString(), type, ...fields })
    return queue.length < flushSize ? null : flush()
  }
  return { capture, flush }
}

async function browserTelemetry() {
  const url = `${base}/telemetry/events`
  await fetch(url, { method: "PUT", headers: { "Content-Type": "application/json" } })
  const { capture, flush } = collector(url, 20)
  const ranges = []
  for (let at = 0; at < 50; at++) {
    const full = capture("network_response", { status: 200 + at })
    if (full) ranges.push(await full)
  }
  ranges.push(await flush())
  assert.deepEqual(ranges, [[0, 20], [20, 40], [40, 50]].map(([recordStart, recordNext]) => ({ recordStart, recordNext })))

  const found = []
  let record = 42
  for (;;) {
    const page = await fetch(`${url}?record=${record}&max_records=5&record_view=envelope`)
    assert.equal(page.headers.get("Stream-Extensions"), "json-record-coordinates-v1")
    assert.equal(page.headers.get("Stream-Record-First"), "0")
    assert.equal(Number(page.headers.get("Stream-Record-Start")), record)
    const next = Number(page.headers.get("Stream-Record-Next"))
    found.push(...lines(await page.text()))
    if (next === record) break
    record = next
  }
  assert.deepEqual(found.map(({ record, value }) => [record, value.status]), Array.from({ length: 8 }, (_, at) => [42 + at, 242 + at]))

  const plain = await fetch(`${url}?record=42&max_records=100`)
  assert.equal(plain.headers.get("Stream-Record-Next"), "50")
  const head = await fetch(url, { method: "HEAD" })
  assert.deepEqual(["First", "Next"].map((end) => head.headers.get(`Stream-Record-${end}`)), ["0", "50"])

  const [events] = await follow(`${url}?record=48&record_view=envelope&live=sse`, (seen) => of(seen, "control").length)
  assert.deepEqual(of(events, "data").map((data) => JSON.parse(data).record), [48, 49])
  assert.equal(controls(events).at(-1).streamNextRecord, 50)
}

/** What `ursula indexer --stream-url` asks of its source. */
async function indexer() {
  const url = `${base}/telemetry/events`
  const advertises = (answer) => assert.equal(answer.headers.get("stream-extensions"), "json-record-coordinates-v1")
  const range = async () => {
    const head = await fetch(url, { method: "HEAD" })
    assert.equal(head.headers.get("content-type"), "application/json")
    advertises(head)
    return ["first", "next"].map((end) => Number(head.headers.get(`stream-record-${end}`)))
  }
  const read = (record) => fetch(`${url}?record=${record}&record_view=envelope&max_records=8`)
  const boundary = (await read(0)).headers.get("Stream-Next-Offset")
  assert.ok((await fetch(`${url}/retention/${boundary}`, { method: "PUT" })).ok)
  const [first, next] = await range()
  assert.deepEqual([first, next], [8, 50])

  const gone = await read(0)
  assert.deepEqual([gone.status, gone.headers.get("stream-record-first")], [410, "8"])
  const indexed = []
  for (let record = first; record < next; record = indexed.at(-1).record + 1) {
    const page = await read(record)
    assert.equal(page.status, 200)
    advertises(page)
    indexed.push(...lines(await page.text()))
  }
  assert.deepEqual(indexed.map(({ record, value }) => value.status - record), Array(42).fill(200))
  assert.ok(indexed.every(({ value }) => Date.parse(value.captured_at) > 0))
  const upToDate = await read(next)
  assert.deepEqual([upToDate.status, await upToDate.text()], [200, ""])
}

for (const example of [clients, resumableAiStream, chatRoom, browserTelemetry, indexer]) {
  await example()
  console.log(example.name)
}
