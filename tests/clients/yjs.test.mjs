// Yjs documents on the server: upstream's Yjs server in front of it, two providers that edit at once, presence, compaction.
import assert from "node:assert/strict"
import { after, before, test } from "node:test"
import { YjsProvider } from "@durable-streams/y-durable-streams"
import { YjsServer } from "@durable-streams/y-durable-streams/server"
import { Awareness } from "y-protocols/awareness"
import * as Y from "yjs"
import { server, until } from "./help.mjs"

let yjs
before(async () => {
  yjs = new YjsServer({ port: 0, dsServerUrl: server, compactionThreshold: 4000 })
  await yjs.start()
})
after(() => yjs.stop())

const open = async (docId, more = {}) => {
  const doc = new Y.Doc()
  const awareness = new Awareness(doc)
  const provider = new YjsProvider({ doc, awareness, baseUrl: `${yjs.url}/v1/yjs/clients`, docId, connect: false, ...more })
  const errors = []
  provider.on("error", (error) => errors.push(error))
  await provider.connect()
  await until("it to sync", () => provider.synced)
  const close = () => {
    provider.destroy()
    doc.destroy()
  }
  return { text: doc.getText("t"), map: doc.getMap("m"), awareness, errors, close }
}

for (const liveMode of ["sse", "long-poll"]) {
  test(`two editors agree, and a third who comes later too: ${liveMode}`, async () => {
    const docId = `notes/${crypto.randomUUID()}`
    const [one, two] = [await open(docId, { liveMode }), await open(docId, { liveMode })]
    one.text.insert(0, "Hello")
    await until("two to see it", () => two.text.toString() === "Hello")
    one.text.insert(5, " ice")
    two.text.insert(0, ">> ")
    two.map.set("colour", "blue")
    await until("both to agree", () => one.text.toString() === two.text.toString() && one.text.length === 12)
    await until("the map", () => one.map.get("colour") === "blue")
    const three = await open(docId, { liveMode })
    assert.equal(three.text.toString(), one.text.toString())
    assert.deepEqual([...one.errors, ...two.errors, ...three.errors], [])
    for (const { close } of [one, two, three]) close()
  })
}

test("who is there is seen by the others", async () => {
  const docId = `presence/${crypto.randomUUID()}`
  const [one, two] = [await open(docId), await open(docId)]
  one.awareness.setLocalState({ name: "Ursa" })
  await until("two to see one", () => [...two.awareness.getStates().values()].some((seen) => seen?.name === "Ursa"))
  for (const { close } of [one, two]) close()
})

test("a long history is compacted, and those who come later still get all of it", async () => {
  const docId = `long/${crypto.randomUUID()}`
  const writer = await open(docId)
  for (let line = 0; line < 200; line++) {
    writer.text.insert(writer.text.length, `line ${line}: ${"x".repeat(40)}\n`)
    if (line % 20 === 0) await new Promise((resolve) => setTimeout(resolve, 10))
  }
  const discover = () => fetch(`${yjs.url}/v1/yjs/clients/docs/${docId}?offset=snapshot`, { redirect: "manual" })
  await until("a snapshot", async () => (await discover()).headers.get("location")?.includes("_snapshot"))
  const reader = await open(docId)
  await until("the reader to have all", () => reader.text.toString() === writer.text.toString())
  writer.text.insert(0, "after ")
  await until("it to follow", () => reader.text.toString().startsWith("after line 0"))
  assert.deepEqual([...writer.errors, ...reader.errors], [])
  for (const { close } of [writer, reader]) close()
})
