// The client without a server: what it sends again, what it refuses, and how it reads events. A fake `fetch` answers.
import assert from "node:assert/strict"
import { test } from "node:test"
import { AccessDenied, AnswerDamaged, Client, NewRecord, OutcomeUnknown, ProducerFailed, RawJson, Refused, StreamClosed, StreamNotFound, Trimmed, Unavailable } from "@polynya/client"

const JSON_TYPE = "application/json"
const at = (record, byte) => `${String(record).padStart(16, "0")}_${String(byte).padStart(16, "0")}`
const retry = { seconds: 5, pauseSeconds: 0.001, pauseSecondsMax: 0.001 }

// A client whose requests get these answers in turn; a function is called with the request, an error is thrown.
function played(...answers) {
  const asked = []
  const play = async (url, init) => {
    asked.push({ url: url.replace("http://node", ""), method: init.method, headers: init.headers, body: init.body })
    let answer = answers.shift()
    if (typeof answer === "function") answer = answer(asked.at(-1))
    if (answer === undefined) throw new Error(`no answer is left for ${init.method} ${url}`)
    if (answer instanceof Error) throw answer
    const { status = 200, headers = {}, body = "" } = answer
    return new Response(status === 204 ? null : body, { status, headers })
  }
  return { client: new Client("http://node", { fetch: play, retry }), asked, answers }
}

const lost = Object.assign(new TypeError("fetch failed"), { cause: Object.assign(new Error("read ECONNRESET"), { code: "ECONNRESET" }) })
const refusing = Object.assign(new TypeError("fetch failed"), { cause: Object.assign(new Error("connect ECONNREFUSED"), { code: "ECONNREFUSED" }) })
const told = (status, code, headers = {}) => ({ status, headers, body: JSON.stringify({ error: { code, message: `it is ${code}`, request_id: "r-1" } }) })
const stored = (record, headers = {}) => ({ status: 200, headers: { "stream-next-offset": at(record, record * 2), ...headers } })
const stream = ({ client }) => client.stream("orders", { contentType: JSON_TYPE })
const page = (values, end, more = {}) => ({
  headers: { "content-type": JSON_TYPE, "stream-next-offset": end, "stream-incarnation": "7", ...more },
  body: JSON.stringify(values),
})
const UP = { "stream-up-to-date": "true" }
const events = (...pieces) => ({
  headers: { "content-type": "text/event-stream", "stream-incarnation": "7" },
  body: new ReadableStream({ start: (flow) => { for (const piece of pieces) flow.enqueue(new TextEncoder().encode(piece)); flow.close() } }),
})
const data = (values) => `event: data\ndata:${JSON.stringify(values)}\n\n`
const control = (offset, more = {}) => `event: control\ndata:${JSON.stringify({ streamNextOffset: offset, ...more })}\n\n`
const all = async (reader) => { const found = []; for await (const record of reader) found.push(record.value); return found }

test("an append is sent again while nothing can have been applied", async () => {
  const play = played(refusing, told(503, "UNAVAILABLE", { "stream-outcome": "refused", "retry-after": "0" }), told(429, "RATE_LIMIT"), stored(1))
  assert.equal((await stream(play).append([{ n: 1 }])).offset, at(1, 2))
  assert.equal(play.asked.length, 4)
  assert.equal(new TextDecoder().decode(play.asked[3].body), '[{"n":1}]')
})

test("Retry-After is waited for, and given up on when it is too long", async () => {
  const play = played(told(429, "RATE_LIMIT", { "retry-after": "60" }))
  await assert.rejects(stream(play).append([1]), (error) => error instanceof Unavailable && error.retryAfter === 60 && error.code === "RATE_LIMIT" && error.requestId === "r-1")
  assert.equal(play.asked.length, 1)
  const soon = played(told(503, "UNAVAILABLE", { "stream-outcome": "refused", "retry-after": "1" }), stored(1))
  const began = performance.now()
  await stream(soon).append([1])
  assert.ok(performance.now() - began >= 990)
})

test("an append whose outcome is unknown is not sent again, unless it has a producer", async () => {
  for (const answer of [lost, told(503, "OUTCOME_UNKNOWN", { "stream-outcome": "unknown" }), told(500, "INTERNAL")]) {
    const play = played(answer)
    await assert.rejects(stream(play).append([1]), (error) => error instanceof OutcomeUnknown && error.outcome === "unknown")
    assert.equal(play.asked.length, 1)
  }
  const play = played(lost, stored(1, { "producer-epoch": "0", "producer-seq": "4" }))
  await stream(play).append([1], { producer: ["gate", 0, 4] })
  assert.deepEqual([play.asked[1].headers["producer-id"], play.asked[1].headers["producer-seq"]], ["gate", "4"])
})

test("refusals have types, codes and the fields of their headers", async () => {
  const cases = [
    [told(404, "NOT_FOUND"), StreamNotFound],
    [told(401, "TOKEN_REFUSED"), AccessDenied],
    [told(409, "STREAM_CLOSED", { "stream-next-offset": at(3, 6) }), StreamClosed],
    [told(400, "INVALID_JSON"), Refused],
  ]
  for (const [answer, kind] of cases) {
    await assert.rejects(stream(played(answer)).append([1]), (error) => error instanceof kind && error.message.includes("append to 'orders'") && error.outcome === "refused")
  }
  await assert.rejects(stream(played(cases[2][0])).append([1]), { offset: at(3, 6), code: "STREAM_CLOSED" })
  await assert.rejects(all(stream(played(told(410, "TRIMMED", { "stream-retained-offset": at(9, 99) }))).read()), (error) => error instanceof Trimmed && error.retainedOffset === at(9, 99))
})

test("another server than a node, a wrong URL and a missing server are said", async () => {
  await assert.rejects(stream(played({ body: "<html>" })).append([1]), (error) => error instanceof AnswerDamaged && /check that the URL/.test(error.message))
  await assert.rejects(stream(played({ status: 404, body: "<html>no such page" })).append([1]), /no such page/)
  for (const url of ["localhost:4437", "ftp://node", "", "http://node/?a=b"]) assert.throws(() => new Client(url), TypeError)
  const play = played(...Array(100_000).fill(refusing))
  const client = new Client("http://node", { fetch: async () => { throw refusing }, retry: { ...retry, seconds: 0 } })
  await assert.rejects(client.stream("a", { contentType: JSON_TYPE }).append([1]), (error) => error instanceof Unavailable && /ECONNREFUSED \(http:\/\/node\)/.test(error.message))
  assert.equal(play.asked.length, 0)
})

test("what is no record is refused before it is sent", async () => {
  const play = played()
  for (const wrong of [undefined, Number.NaN, { deep: [Infinity] }, new Uint8Array(3), () => 1]) await assert.rejects(stream(play).append([wrong]), TypeError)
  await assert.rejects(stream(play).append("abc"), /append\(\[value\]\)/)
  await assert.rejects(stream(play).append([]), TypeError)
  assert.throws(() => new RawJson("{"), SyntaxError)
  assert.throws(() => play.client.stream("a/../b"), /dot segment/)
  assert.equal(play.asked.length, 0)
})

test("records have keys and headers of any bytes", async () => {
  const play = played(stored(2))
  await stream(play).append([new NewRecord({ value: { a: 1 }, key: "ann", headers: { source: "web", raw: new Uint8Array([0, 255]) }, timestamp: 17 }), new RawJson("12345678901234567890")])
  assert.equal(play.asked[0].headers["content-type"], "application/vnd.polynya.records+json")
  const sent = new TextDecoder().decode(play.asked[0].body)
  assert.equal(sent, '[{"value":{"a":1},"key":"ann","headers":[["source","web"],["raw",{"$base64":"AP8="}]],"timestamp":17},{"value":12345678901234567890}]')
  const whole = [{ offset: 4, timestamp: 17, append_time: 1, key: { $base64: "AP8=" }, headers: [["x", null]], value: { n: "}],", m: 1 } }]
  const read = played({ headers: { "content-type": JSON_TYPE, "stream-next-offset": at(5, 70) } }, page(whole, at(5, 70), { "content-type": "application/vnd.polynya.records+json", ...UP }))
  for await (const record of read.client.stream("orders").read({ wholeRecords: true })) {
    assert.deepEqual([record.value, [...record.key], record.headers, record.timestamp, record.offset], [{ n: "}],", m: 1 }, [0, 255], [["x", null]], 17, at(5, 70)])
  }
})

test("each record knows the offset behind it, and its exact text", async () => {
  const body = '[ {"big": 12345678901234567890} ,1.0,["a,]\\"b"]]'
  const play = played({ headers: { "content-type": JSON_TYPE, "stream-next-offset": at(3, 100), ...UP }, body })
  const found = []
  const reader = stream(play).read()
  for await (const record of reader) found.push([record.text, record.offset, reader.offset, reader.upToDate])
  assert.deepEqual(found, [
    ['{"big": 12345678901234567890}', at(1, 85), at(1, 85), false],
    ["1.0", at(2, 89), at(2, 89), false],
    ['["a,]\\"b"]', at(3, 100), at(3, 100), true],
  ])
})

test("a tail reads up, follows events over connections, and gives each record once", async () => {
  const play = played(
    page([1, 2], at(2, 4), UP),
    events(data([3]) + control(at(3, 6)), data([4]).slice(0, 20)),
    events(data([3]) + control(at(3, 6)), data([4]), data([5]), control(at(5, 10), { upToDate: true })),
    lost,
    events(": comment\n\n", control(at(5, 10), { upToDate: true, streamClosed: true })),
  )
  const reader = stream(play).tail()
  assert.deepEqual(await all(reader), [1, 2, 3, 4, 5])
  assert.ok(reader.closed)
  assert.deepEqual(play.asked.map(({ url }) => new URLSearchParams(url.split("?")[1]).get("offset")), ["-1", at(2, 4), at(3, 6), at(5, 10), at(5, 10)])
  assert.equal(play.asked[1].headers["stream-incarnation"], "7")
})

test("a reader that is left in the middle of a batch goes on there", async () => {
  const first = stream(played(page([1, 2, 3], at(3, 6), UP))).tail()
  for await (const record of first) if (record.value === 2) break
  assert.equal(first.offset, at(2, 4))
  const play = played(page([3], at(3, 6), { ...UP, "stream-closed": "true" }))
  assert.deepEqual(await all(stream(play).tail({ offset: first.offset })), [3])
  assert.match(play.asked[0].url, new RegExp(`offset=${at(2, 4)}`))
})

test("bytes come in base64 events, text by long polls", async () => {
  const bytes = { headers: { "content-type": "application/octet-stream", "stream-next-offset": at(0, 0), ...UP } }
  const live = { ...events("event: data\ndata:AP8=\n\n" + control(at(1, 2), { streamClosed: true })), }
  live.headers["stream-sse-data-encoding"] = "base64"
  const pages = []
  for await (const each of played(bytes, live).client.stream("b").tail().pages()) pages.push([...each.body])
  assert.deepEqual(pages, [[0, 255]])
  const text = (body, end, more) => ({ headers: { "content-type": "text/plain", "stream-next-offset": end, ...more }, body })
  const play = played(text("a\r\n", at(1, 3), UP), text("b", at(2, 4), { ...UP, "stream-closed": "true" }))
  const pieces = []
  for await (const record of play.client.stream("t").tail()) pieces.push(record.text)
  assert.deepEqual(pieces, ["a\r\n", "b"])
  assert.match(play.asked[1].url, /live=long-poll/)
})

test("an error event ends a tail or resumes it", async () => {
  const slow = `event: error\ndata:${told(503, "SLOW_READER").body}\n\n`
  const play = played(page([], at(0, 0), UP), events(slow), events(data([1]) + control(at(1, 2), { streamClosed: true })))
  assert.deepEqual(await all(stream(play).tail()), [1])
  const trimmed = played(page([], at(0, 0), UP), events(`event: error\ndata:${told(410, "TRIMMED").body}\n\n`))
  await assert.rejects(all(stream(trimmed).tail()), Trimmed)
})

test("where events do not get through, long polls are tried", async () => {
  const nothing = () => ({ headers: { "content-type": "text/event-stream" }, body: "" })
  const play = played(page([], at(0, 0), UP), nothing(), nothing(), nothing(), page([1], at(1, 2), { ...UP, "stream-closed": "true" }))
  assert.deepEqual(await all(stream(play).tail()), [1])
  assert.match(play.asked.at(-1).url, /live=long-poll/)
})

test("a signal or close() ends a tail that waits", async () => {
  const hanging = async (url, init) => {
    if (!url.includes("live=")) return new Response("[]", { headers: page([], at(0, 0), UP).headers })
    return new Promise((_, reject) => init.signal.addEventListener("abort", () => reject(init.signal.reason)))
  }
  const orders = new Client("http://node", { fetch: hanging, retry }).stream("orders")
  const abort = new AbortController()
  const given = all(orders.tail({ signal: abort.signal }))
  setTimeout(() => abort.abort(new Error("enough")), 5)
  await assert.rejects(given, /enough/)
  const reader = orders.tail()
  setTimeout(() => reader.close(), 5)
  assert.deepEqual(await all(reader), [])
})

test("many streams resume with the cursor, and without it with the offset of each stream", async () => {
  const event = (id, body, name = "data") => `id:${id}\nevent: ${name}\ndata:${JSON.stringify(body)}\n\n`
  const begins = (id, name) => event(id, { stream: name, streamNextOffset: at(0, 0), contentType: JSON_TYPE, streamIncarnation: "1" }, "control")
  const one = (id, name, record, more = {}) => event(id, { stream: name, streamNextOffset: at(record, record * 2), data: [record], ...more })
  const gone = `event: error\ndata:${told(410, "CURSOR_GONE").body}\n\n`
  const play = played(
    events(begins("c.1", "a") + begins("c.2", "b") + one("c.3", "a", 1)),
    events(gone),
    events(one("d.1", "a", 1) + one("d.2", "a", 2, { streamClosed: true }) + event("d.3", { allUpToDate: true, streams: 2 }, "control") + one("d.4", "b", 1, { streamClosed: true })),
  )
  const reader = play.client.tailMany(["a", "b"])
  const found = []
  for await (const record of reader) found.push([record.stream, record.value])
  assert.deepEqual(found, [["a", 1], ["a", 2], ["b", 1]])
  assert.equal(play.asked[1].headers["last-event-id"], "c.3")
  assert.deepEqual(new URLSearchParams(play.asked[2].url.split("?")[1]).getAll("stream"), ["a@1_2", "b@0_0"])
  assert.equal(play.asked[2].headers["last-event-id"], undefined)
  assert.deepEqual([...reader.offsets], [["a", at(2, 4)], ["b", at(1, 2)]])
  assert.ok(reader.upToDate)
  for (const wrong of [[], ["a", "runs/*"]]) assert.throws(() => play.client.tailMany(wrong), TypeError)
})

test("a producer sends batches again until they are stored, and ends with exact counts", async () => {
  const ours = (number) => stored(number + 1, { "producer-epoch": "0", "producer-seq": String(number) })
  const play = played(lost, ours(0), told(503, "UNAVAILABLE"), ours(1), told(409, "STREAM_CLOSED", { "stream-next-offset": at(2, 4) }))
  const producer = await stream(play).producer({ batchRecords: 2 })
  for (const n of [1, 2, 3]) await producer.append(n)
  await producer.flush()
  assert.deepEqual(play.asked.map(({ body, headers }) => [new TextDecoder().decode(body), headers["producer-seq"]]), [["[1,2]", "0"], ["[1,2]", "0"], ["[3]", "1"], ["[3]", "1"]])
  await producer.append(4)
  await assert.rejects(producer.close(), (error) => error instanceof ProducerFailed && error.reason instanceof StreamClosed && error.applied === 3 && error.refused === 1 && error.unknown === 0)
  await assert.rejects(producer.append(5), ProducerFailed)
})

test("records that wait for room keep their order", async () => {
  const ours = (number) => stored(number + 1, { "producer-epoch": "0", "producer-seq": String(number) })
  const play = played(...Array.from({ length: 8 }, (_, number) => ours(number)))
  const producer = await stream(play).producer({ bufferBytes: 8 })
  const long = "x".repeat(20)
  const given = [1, long, 2, 3, long, 4].map((value) => producer.append(value)) // none is awaited
  await Promise.all(given)
  await producer.close()
  const sent = play.asked.flatMap(({ body }) => JSON.parse(new TextDecoder().decode(body)))
  assert.deepEqual([sent, producer.applied], [[1, long, 2, 3, long, 4], 6])
})

test("a named producer takes the next epoch and is told when it is fenced", async () => {
  const play = played(told(403, "PRODUCER_STALE", { "producer-epoch": "4" }), stored(1, { "producer-epoch": "5", "producer-seq": "0" }), told(403, "PRODUCER_STALE", { "producer-epoch": "6" }))
  const producer = await stream(play).producer({ id: "billing" })
  await producer.append(1)
  await producer.flush()
  assert.equal(producer.epoch, 5)
  await producer.append(2)
  await assert.rejects(producer.flush(), /fenced by a newer run of this producer with epoch 6/)
})

test("a token is fetched before its end, and again when it is refused", async () => {
  const used = []
  let fetched = 0
  const token = async () => ({ token: `t${(fetched += 1)}`, expires_ms: fetched === 1 ? Date.now() + 1000 : Date.now() + 600_000 })
  const fake = async (url, init) => {
    used.push(init.headers.authorization)
    if (used.length === 2) return new Response(told(401, "TOKEN_REFUSED").body, { status: 401 })
    return new Response("[1]", { headers: page([1], at(1, 2), UP).headers })
  }
  const orders = new Client("http://node", { fetch: fake, retry, token }).stream("orders")
  assert.deepEqual(await all(orders.read()), [1])
  assert.deepEqual(await all(orders.read()), [1])
  assert.deepEqual(await all(orders.read()), [1])
  assert.deepEqual(used, ["Bearer t1", "Bearer t2", "Bearer t3", "Bearer t3"])
})

test("appends to many streams have an outcome each, and are repeated only with producers", async () => {
  const outcomes = { body: '[{"status":200,"next_offset":"x"},{"status":404,"code":"NOT_FOUND","message":"no"}]' }
  const play = played(outcomes)
  const found = await play.client.appendMany([{ stream: "a", records: [{ t: 1 }], producer: ["g", 0, 0] }, { stream: "b", data: new Uint8Array([0, 1]), ifMatch: at(0, 0) }])
  assert.deepEqual(found.map((each) => each.code ?? each.status), [200, "NOT_FOUND"])
  assert.equal(play.asked[0].body, `{"stream":"a","records":[{"t":1}],"producer":["g",0,0]}\n{"stream":"b","base64":"AAE=","if_match":"${at(0, 0)}"}`)
  await assert.rejects(played(lost).client.appendMany([{ stream: "a", records: [1] }]), OutcomeUnknown)
  const again = played(lost, { body: '[{"status":204}]' })
  assert.equal((await again.client.appendMany([{ stream: "a", records: [1], producer: ["g", 0, 0] }]))[0].status, 204)
})

test("events do not depend on how their bytes are cut", async () => {
  const text = "id:1\r\nevent: data\r\ndata:[1,\rdata:\"ä🦭\"]\n\n" + control(at(2, 10), { streamClosed: true })
  const bytes = new TextEncoder().encode(text)
  for (let cut = 1; cut < bytes.length; cut += 1) {
    const live = events()
    live.body = new ReadableStream({ start: (flow) => { flow.enqueue(bytes.subarray(0, cut)); flow.enqueue(bytes.subarray(cut)); flow.close() } })
    assert.deepEqual(await all(stream(played(page([], at(0, 0), UP), live)).tail()), [1, "ä🦭"], `cut at ${cut}`)
  }
})
