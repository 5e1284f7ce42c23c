// The client against the node at SERVER, which wants tokens: TOKEN for everything, READER to read alone. At REFUSING no server is.
import assert from "node:assert/strict"
import { randomUUID } from "node:crypto"
import { test } from "node:test"
import { AccessDenied, Client, ConditionFailed, LeaseLost, NewRecord, NOW, ProducerFailed, ProducerFenced, RawJson, Refused, StreamClosed, StreamExists, StreamNotFound, Trimmed, Unavailable } from "@polynya/client"

const { SERVER, TOKEN, READER, REFUSING } = process.env
const client = new Client(SERVER, { token: TOKEN })
const fresh = (kind = "s") => `ts/${kind}-${randomUUID().slice(0, 8)}`
const created = async (options, kind) => { const stream = client.stream(fresh(kind)); await stream.create(options); return stream }
const all = async (reader, take = (record) => record.value) => { const found = []; for await (const record of reader) found.push(take(record)); return found }
const first = async (reader, count) => { const found = []; for await (const record of reader) { found.push(record); if (found.length === count) break } return found }

test("values come back as they went in, with keys and headers if they are wanted", async () => {
  const stream = await created()
  const values = [{ a: [1, "ä🦭"] }, null, 1.5, "text", [[]], true]
  await stream.append(values)
  await stream.append([new RawJson("12345678901234567890.0")])
  assert.deepEqual((await all(stream.read())).slice(0, 6), values)
  assert.deepEqual((await all(stream.read(), (record) => record.text)).at(-1), "12345678901234567890.0")
  const at = await stream.append([new NewRecord({ value: { item: 7 }, key: "ann", headers: { source: "web" }, timestamp: 1_790_000_000_000 }), { plain: 1 }])
  const whole = await all(stream.read({ record: 7, wholeRecords: true }), ({ keyText, headers, timestamp, value, offset }) => [keyText, headers.map(([name, bytes]) => [name, new TextDecoder().decode(bytes)]), timestamp !== null, value, offset])
  assert.deepEqual(whole.map((each) => each.slice(0, 4)), [["ann", [["source", "web"]], true, { item: 7 }], [null, [], true, { plain: 1 }]])
  assert.equal(whole[1][4], at.offset)
  assert.deepEqual(await all(stream.read({ offset: whole[0][4] })), [{ plain: 1 }])
})

test("bytes and text come back through every way of reading", async () => {
  const bytes = Uint8Array.from({ length: 70_000 }, (_, at) => (at * 31) % 256)
  const binary = await created({ contentType: "application/octet-stream" })
  await binary.append([bytes])
  const followed = first(binary.tail(), 2)
  await binary.append([new Uint8Array([0, 255])])
  const pieces = (await followed).map((record) => [...record.bytes])
  assert.deepEqual(pieces.flat(), [...bytes, 0, 255])
  const text = await created({ contentType: "text/plain" })
  await text.append(["one\r\n", "two ä"])
  await text.close()
  assert.equal((await all(text.tail(), (record) => record.text)).join(""), "one\r\ntwo ä")
})

test("refusals have types, and say what came and what to do", async () => {
  const stream = await created()
  await assert.rejects(client.stream(fresh()).append([1]), StreamNotFound)
  await assert.rejects(all(client.stream(fresh()).tail()), StreamNotFound)
  await assert.rejects(client.stream(stream.name).create({ contentType: "text/plain" }), StreamExists)
  await assert.rejects(client.stream(stream.name, { contentType: "text/plain" }).append(["x"]), (error) => error instanceof Refused && error.code === "CONTENT_TYPE_MISMATCH" && error.requestId !== "")
  const { offset } = await stream.append([1, 2])
  await stream.append([3], { ifMatch: offset })
  await assert.rejects(stream.append([4], { ifMatch: offset }), (error) => error instanceof ConditionFailed && error.offset > offset)
  assert.equal(await stream.trim(offset), offset)
  await assert.rejects(all(stream.read({ offset: (await first(stream.read(), 1))[0].offset.replace(/3/, "1") })), (error) => error instanceof Trimmed && error.retainedOffset === offset && error.status === 410)
  const closed = await stream.close()
  await assert.rejects(stream.append([5]), (error) => error instanceof StreamClosed && error.offset === closed.offset)
  await stream.delete()
  assert.equal(await stream.delete({ missingOk: true }), false)
  assert.equal(await stream.exists(), false)
})

test("tokens that are wrong, missing or too weak are refused, and a wrong URL is said", async () => {
  const stream = await created()
  for (const options of [{}, { token: "polynya-nonsense" }]) {
    await assert.rejects(new Client(SERVER, options).stream(stream.name).append([1]), (error) => error instanceof AccessDenied && error.status === 401)
    await assert.rejects(all(new Client(SERVER, options).stream(stream.name).tail()), AccessDenied)
    await assert.rejects(all(new Client(SERVER, options).tailMany("ts/*")), AccessDenied)
  }
  const reader = new Client(SERVER, { token: READER }).stream(stream.name)
  assert.deepEqual(await all(reader.read()), [])
  await assert.rejects(reader.append([1]), (error) => error instanceof AccessDenied && error.code === "FORBIDDEN")
  await assert.rejects(new Client(`${SERVER}/elsewhere`, { token: TOKEN }).stream("a").append([1]), (error) => error instanceof Refused && error.status === 404)
  await assert.rejects(new Client(REFUSING, { retry: { seconds: 0 } }).stream("a").head(), (error) => error instanceof Unavailable && error.message.includes("ECONNREFUSED") && error.message.includes(REFUSING))
})

test("a short token is for what it names, and a client fetches another in time", async () => {
  const mine = await created({}, "minted")
  const other = await created()
  await mine.append([1])
  let minted = 0
  const token = async () => { minted += 1; return client.mintToken({ stream: mine.name, verbs: ["read"], expiresInSeconds: minted === 1 ? 5 : 600 }) }
  const page = new Client(SERVER, { token })
  assert.deepEqual(await all(page.stream(mine.name).read()), [1])
  assert.deepEqual(await all(page.stream(mine.name).read()), [1])
  assert.equal(minted, 2) // the first one ends too soon to be used twice
  await assert.rejects(page.stream(other.name).head(), AccessDenied)
  await assert.rejects(page.stream(mine.name).append([2]), AccessDenied)
  await assert.rejects(client.mintToken({}), TypeError)
  const { token: blind } = await client.mintToken({ stream: mine.name, verbs: ["append"] })
  await new Client(SERVER, { token: blind }).stream(mine.name, { contentType: "application/json" }).append([2])
  assert.deepEqual(await all(mine.read()), [1, 2])
})

test("a tail follows, and another goes on in the middle of a batch", async () => {
  const stream = await created()
  await stream.append([0, 1, 2])
  const reader = stream.tail()
  const found = []
  for await (const record of reader) { found.push(record.value); if (found.length === 2) break }
  assert.equal(reader.upToDate, false)
  const next = all(stream.tail({ offset: reader.offset }))
  const fromNow = all(stream.tail({ offset: NOW, live: "long-poll" }))
  const tails = [next, fromNow]
  await new Promise((resolve) => setTimeout(resolve, 0))
  await stream.append([3])
  await stream.append([4], { close: true })
  assert.deepEqual(await tails[0], [2, 3, 4])
  assert.deepEqual([0, 1, 2, 3, 4].slice(5 - (await tails[1]).length), await tails[1])
})

test("many streams come on one connection, new ones join, and offsets go on", async () => {
  const folder = fresh("many")
  const [a, b] = ["a", "b"].map((name) => client.stream(`${folder}/${name}`))
  await a.create()
  await a.append([1, 2])
  const reader = client.tailMany(`${folder}/*`)
  const found = []
  for await (const event of reader.events()) {
    for (const record of event.page.records) found.push([record.stream.split("/").at(-1), record.text])
    if (found.length === 2 && event.page.size > 0) {
      await b.create({ contentType: "text/plain" })
      await b.append(["joined"])
    }
    if (event.stream === b.name && event.page.size > 0) { assert.equal(event.page.records[0].text, "joined"); break }
    if (found.length > 3) break
  }
  assert.deepEqual(found.slice(0, 2), [["a", "1"], ["a", "2"]])
  const next = client.tailMany([a.name, b.name], { offsets: reader.offsets })
  await a.append([3], { close: true })
  await b.close()
  assert.deepEqual(await all(next, (record) => record.text), ["3"])
})

test("a named producer fences its earlier run, and closes its stream", async () => {
  const stream = await created()
  const early = await stream.producer({ id: "billing" })
  const receipt = await early.append(0)
  await early.flush()
  assert.equal((await receipt.durable).offset, (await stream.head()).offset)
  const late = await stream.producer({ id: "billing" })
  for (let n = 1; n < 500; n += 1) await late.append(n)
  await late.flush()
  await early.append(-1)
  await assert.rejects(early.flush(), (error) => error instanceof ProducerFailed && error.reason instanceof ProducerFenced && error.reason.epoch === late.epoch && error.refused === 1)
  await late.closeStream()
  await late.close()
  assert.deepEqual(await all(stream.tail()), Array.from({ length: 500 }, (_, n) => n))
  const third = await stream.producer()
  await third.append(1)
  await assert.rejects(third.close(), (error) => error.reason instanceof StreamClosed)
})

test("an append with a producer's numbers is stored once", async () => {
  const stream = await created()
  const producer = ["gate", 0, 0]
  await stream.append([1], { producer })
  await stream.append([1], { producer })
  await assert.rejects(stream.append([2], { producer }), { code: "PRODUCER_CONFLICT" })
  const outcomes = await client.appendMany([{ stream: stream.name, records: [2, 3], producer: ["gate", 0, 1] }, { stream: fresh(), records: [1] }])
  assert.deepEqual(outcomes.map((each) => each.code ?? each.status), [200, "NOT_FOUND"])
  assert.deepEqual(await all(stream.read()), [1, 2, 3])
})

test("a worker claims, gives back, acknowledges and releases, and a poisoned record becomes a dead letter", async () => {
  const [jobs, wakes, dead] = [await created({}, "jobs"), await created({}, "wakes"), await created({}, "dead")]
  const crew = client.subscription(`ts.${randomUUID()}`)
  await crew.create({ streams: [jobs.name], wakeStream: wakes.name, leaseSeconds: 30, maxAttempts: 2, deadLetterStream: dead.name })
  assert.equal(await crew.claim("w1"), undefined)
  await jobs.append([{ to: null }, { to: "ann" }])
  await first(wakes.tail(), 1)
  const attempts = []
  for (let round = 0; round < 2; round += 1) {
    const lease = await crew.claim("w1")
    assert.equal(await crew.claim("w2"), undefined)
    assert.equal(lease.failure?.attempts, round === 0 ? undefined : 1)
    const [record] = await first(jobs.read({ offset: lease.streams[0].acked_offset }), 1)
    attempts.push(await lease.retry({ stream: jobs.name, offset: record.offset, after: 0, error: "no address", record: record.value }))
    await assert.rejects(lease.ack({}), LeaseLost)
  }
  assert.deepEqual(attempts.map(({ attempts, deadLetter }) => [attempts, deadLetter]), [[1, false], [2, true]])
  const [letter] = await first(dead.tail(), 1)
  assert.deepEqual([letter.value.error, letter.value.record], ["no address", { to: null }])
  const released = await crew.claim("w1")
  await released.extend()
  await released.release()
  const lease = await crew.claim("w2")
  assert.equal(await lease.keep(async () => (await all(jobs.read({ offset: lease.streams[0].acked_offset })))[0].to), "ann")
  assert.equal(await lease.ack({ [jobs.name]: lease.streams[0].tail_offset }, { done: true }), false)
  assert.equal(await crew.claim("w1"), undefined)
  assert.equal((await crew.show()).streams[0].lag, 0)
  await crew.delete()
})

test("attributes, snapshots, forks and lists", async () => {
  const stream = await created({}, "doc")
  await stream.setAttributes({ owner: "shop", retries: 3 })
  assert.deepEqual(await stream.setAttributes({ retries: null }), { owner: "shop" })
  const { offset } = await stream.append([1, 2, 3])
  assert.equal((await stream.bootstrap()).snapshot, undefined)
  await stream.publishSnapshot(offset, { sum: 6 }).catch((error) => assert.equal(error.code, "FORBIDDEN")) // `all` has not the verb
  const fork = await stream.fork(fresh("fork"), { offset })
  await fork.append([4])
  assert.deepEqual(await all(fork.read()), [1, 2, 3, 4])
  const names = []
  for await (const { name } of client.streams(stream.name)) names.push(name)
  assert.deepEqual(names, [stream.name])
})
