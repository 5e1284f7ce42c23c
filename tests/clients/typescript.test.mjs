// The official TypeScript client, feature by feature, against the server at SERVER.
import assert from "node:assert/strict"
import { test } from "node:test"
import { DurableStream, IdempotentProducer, StaleEpochError, stream } from "@durable-streams/client"
import { fresh, numbers, persistent, until, watched } from "./help.mjs"

const JSON_TYPE = "application/json"
const quick = { initialDelay: 10, maxDelay: 50, multiplier: 1.3 }

const items = async (url) => (await stream({ url, live: false })).json()

test("a stream is made, filled, read, described and deleted", async () => {
  const url = fresh()
  const made = await DurableStream.create({ url, contentType: JSON_TYPE, body: JSON.stringify([{ n: 0 }]) })
  await made.append(JSON.stringify({ n: 1 }))
  await made.append(JSON.stringify([2, 3])) // one record, which is an array
  assert.deepEqual(await items(url), [{ n: 0 }, { n: 1 }, [2, 3]])
  const head = await DurableStream.head({ url })
  assert.equal(head.exists, true)
  assert.equal(head.contentType, JSON_TYPE)
  assert.equal(head.streamClosed, false)
  const connected = await DurableStream.connect({ url })
  assert.equal(connected.contentType, JSON_TYPE)
  await connected.delete()
  assert.deepEqual(await DurableStream.head({ url }), { exists: false })
  await assert.rejects(stream({ url, live: false }), { status: 404 })
})

test("what is wrong is refused, and nothing of it is stored", async () => {
  const url = fresh()
  const made = await DurableStream.create({ url, contentType: JSON_TYPE })
  await assert.rejects(DurableStream.create({ url, contentType: "text/plain" }), { status: 409 })
  await assert.rejects(made.append("{", { seq: "1" }), { status: 400 })
  await made.append("1", { seq: "b" })
  await assert.rejects(made.append("2", { seq: "a" }), { status: 409 })
  assert.deepEqual(await items(url), [1])
})

test("numbers and text come back byte for byte", async () => {
  const url = fresh()
  const made = await DurableStream.create({ url, contentType: JSON_TYPE })
  await made.append(`{"big": 12345678901234567890, "one": 1.0, "umlaut": "ä🦭"}`)
  const text = await (await stream({ url, live: false, json: false })).text()
  assert.equal(text, `[{"big": 12345678901234567890, "one": 1.0, "umlaut": "ä🦭"}]`)
})

test("text and binary streams give their bytes through every way of reading", async () => {
  const text = await DurableStream.create({ url: fresh(), contentType: "text/plain" })
  for (const piece of ["one ", "two\r\n", "drei ä"]) await text.append(piece)
  assert.equal(await (await text.stream({ live: false })).text(), "one two\r\ndrei ä")
  const binary = await DurableStream.create({ url: fresh(), contentType: "application/octet-stream" })
  const bytes = Uint8Array.from({ length: 70_000 }, (_, at) => (at * 31) % 256)
  await binary.append(bytes)
  assert.deepEqual(await (await binary.stream({ live: false })).body(), bytes)
  const pieces = []
  for await (const piece of (await binary.stream({ live: false })).bodyStream()) pieces.push(piece)
  assert.deepEqual(new Uint8Array(Buffer.concat(pieces)), bytes)
})

test("appends that overlap go out in few requests and stay in order", async () => {
  const url = fresh()
  const watch = watched()
  const made = await DurableStream.create({ url, contentType: JSON_TYPE, fetch: watch.fetch })
  await Promise.all(numbers(500).map((item) => made.append(JSON.stringify(item))))
  assert.deepEqual(await items(url), numbers(500))
  assert.ok(watch.asked.filter(({ method }) => method === "POST").length < 50, `${watch.asked.length} requests`)
})

test("a source is piped in, and its end closes the stream", async () => {
  const piped = await DurableStream.create({ url: fresh(), contentType: "text/plain" })
  await new Blob(["a".repeat(5000), "b"]).stream().pipeTo(piped.writable())
  const read = await piped.stream({ live: false })
  assert.equal(await read.text(), "a".repeat(5000) + "b")
  assert.equal(read.streamClosed, true)
  const appended = await DurableStream.create({ url: fresh(), contentType: "text/plain" })
  await appended.appendStream((async function* () { yield "x"; yield "y" })()) // prettier-ignore
  assert.equal(await (await appended.stream({ live: false })).text(), "xy")
})

test("an idempotent producer stores everything once and in order, whatever answers are lost", async () => {
  const url = fresh()
  const made = await DurableStream.create({ url, contentType: JSON_TYPE })
  const lossy = watched(async (number, ask) => {
    const answer = await ask()
    if (number % 3 === 0) throw new TypeError("the answer is lost")
    return answer
  })
  const errors = []
  const options = { fetch: persistent(lossy.fetch), maxBatchBytes: 500, lingerMs: 1, onError: (error) => errors.push(error) }
  const producer = new IdempotentProducer(made, "writer", options)
  for (const item of numbers(2000)) producer.append(JSON.stringify(item))
  await producer.flush()
  assert.deepEqual(errors, [])
  assert.deepEqual(await items(url), numbers(2000))
  assert.ok(lossy.asked.length > 30, `only ${lossy.asked.length} requests: nothing was lost`)
})

test("a newer producer fences the older one off, and one that claims takes over", async () => {
  const url = fresh()
  const made = await DurableStream.create({ url, contentType: JSON_TYPE })
  const send = async (producer, item) => {
    producer.append(JSON.stringify(item))
    await producer.flush()
  }
  const errors = []
  const old = new IdempotentProducer(made, "p", { epoch: 0, onError: (error) => errors.push(error) })
  await send(old, "old")
  await send(new IdempotentProducer(made, "p", { epoch: 4 }), "new")
  await send(old, "zombie").catch((error) => errors.push(error))
  assert.ok(errors.some((error) => error instanceof StaleEpochError), `${errors}`)
  const claiming = new IdempotentProducer(made, "p", { autoClaim: true })
  await send(claiming, "claimed")
  assert.equal(claiming.epoch, 5)
  assert.deepEqual(await items(url), ["old", "new", "claimed"])
})

for (const live of ["sse", "long-poll", true]) {
  test(`live=${live} gives what was there, then what comes, once`, async () => {
    const made = await DurableStream.create({ url: fresh(), contentType: JSON_TYPE })
    await made.append(JSON.stringify({ n: 0 }))
    const reading = await stream({ url: made.url, live, offset: "-1" })
    const got = []
    const stop = reading.subscribeJson((batch) => void got.push(...batch.items))
    await until("the catch-up", () => got.length === 1)
    for (const item of numbers(49, 1)) await made.append(JSON.stringify(item))
    await until("all of it", () => got.length >= 50)
    assert.deepEqual(got, numbers(50))
    stop()
    reading.cancel()
  })
}

test("binary data comes through server-sent events as it is", async () => {
  const made = await DurableStream.create({ url: fresh(), contentType: "application/octet-stream" })
  const bytes = Uint8Array.from({ length: 1000 }, (_, at) => at % 256)
  await made.append(bytes)
  const reading = await stream({ url: made.url, live: "sse", offset: "-1" })
  const got = []
  reading.subscribeBytes((chunk) => void got.push(...chunk.data))
  await until("the first", () => got.length === 1000)
  await made.append(bytes.slice(0, 7))
  await until("the second", () => got.length === 1007)
  assert.deepEqual(Uint8Array.from(got), Uint8Array.from([...bytes, ...bytes.slice(0, 7)]))
  reading.cancel()
})

for (const live of ["sse", "long-poll"]) {
  test(`a reader resumes at the offset it saved: ${live}`, async () => {
    const made = await DurableStream.create({ url: fresh(), contentType: JSON_TYPE })
    await made.append(JSON.stringify({ n: 0 }))
    let saved = "-1"
    const got = []
    const read = async (count) => {
      const reading = await stream({ url: made.url, live, offset: saved })
      reading.subscribeJson((batch) => {
        got.push(...batch.items)
        saved = batch.offset
      })
      await until(`${count} items`, () => got.length >= count)
      reading.cancel()
    }
    await read(1)
    await made.append(JSON.stringify({ n: 1 })) // nobody is listening
    await read(2)
    assert.deepEqual(got, numbers(2))
  })

  test(`the end of a closed stream ends its readers: ${live}`, async () => {
    const made = await DurableStream.create({ url: fresh(), contentType: JSON_TYPE })
    const reading = await stream({ url: made.url, live, offset: "-1" })
    const got = []
    const ended = (async () => {
      for await (const item of reading.jsonStream()) got.push(item)
    })()
    await made.append(JSON.stringify("last but one"))
    const { finalOffset } = await made.close({ body: JSON.stringify("last") })
    await ended
    assert.deepEqual(got, ["last but one", "last"])
    assert.equal(reading.streamClosed, true)
    assert.equal(reading.offset, finalOffset)
    assert.deepEqual(await made.close(), { finalOffset })
    await assert.rejects(made.append(JSON.stringify("more")), { status: 409, message: /STREAM_CLOSED/ })
    assert.equal((await DurableStream.head({ url: made.url })).streamClosed, true)
  })
}

test("a producer closes its stream with a last record, and may say so twice", async () => {
  const made = await DurableStream.create({ url: fresh(), contentType: JSON_TYPE })
  const lossy = watched(async (number, ask) => {
    const answer = await ask()
    if (number === 1) throw new TypeError("the answer is lost")
    return answer
  })
  const producer = new IdempotentProducer(made, "p", { fetch: persistent(lossy.fetch), lingerMs: 1 })
  producer.append(JSON.stringify(1))
  const closed = await producer.close(JSON.stringify(2))
  assert.deepEqual(await producer.close(), closed)
  assert.deepEqual(await items(made.url), [1, 2])
})

test("a fork begins as its source and goes its own way", async () => {
  const source = await DurableStream.create({ url: fresh("source"), contentType: JSON_TYPE })
  for (const item of numbers(3)) await source.append(JSON.stringify(item))
  const { offset } = await DurableStream.head({ url: source.url })
  await source.append(JSON.stringify({ n: 3 }))
  const headers = { "Stream-Forked-From": new URL(source.url).pathname, "Stream-Fork-Offset": offset }
  const fork = await DurableStream.create({ url: fresh("fork"), contentType: JSON_TYPE, headers })
  const reading = await stream({ url: fork.url, live: "sse", offset: "-1" })
  const got = []
  reading.subscribeJson((batch) => void got.push(...batch.items))
  await until("what is inherited", () => got.length === 3)
  await (await DurableStream.connect({ url: fork.url })).append(JSON.stringify("fork"))
  await until("what is its own", () => got.length === 4)
  assert.deepEqual(got, [...numbers(3), "fork"])
  assert.deepEqual(await items(source.url), numbers(4))
  reading.cancel()
})

test("a stream with a time to live goes", async () => {
  const url = fresh()
  await DurableStream.create({ url, contentType: JSON_TYPE, ttlSeconds: 1 })
  await until("it to expire", async () => !(await DurableStream.head({ url })).exists)
  await DurableStream.create({ url, contentType: "text/plain" })
})

test("a busy server is asked again after the time that it names", async () => {
  const url = fresh()
  await DurableStream.create({ url, contentType: JSON_TYPE, body: "[1]" })
  const busy = watched((number, ask) => (number === 1 ? new Response("", { status: 503, headers: { "Retry-After": "0" } }) : ask()))
  const reading = await stream({ url, live: false, fetch: busy.fetch, backoffOptions: quick })
  assert.deepEqual(await reading.json(), [1])
  assert.equal(busy.asked.length, 2)
})
