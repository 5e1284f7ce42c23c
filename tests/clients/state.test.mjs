// The State protocol of @durable-streams/state: values and a reactive database (TanStack DB) that live in a JSON stream.
import assert from "node:assert/strict"
import { test } from "node:test"
import { DurableStream, stream } from "@durable-streams/client"
import { createStateSchema, isChangeEvent, MaterializedState } from "@durable-streams/state"
import { createStreamDB } from "@durable-streams/state/db"
import { createLiveQueryCollection, eq } from "@tanstack/db"
import { fresh, until } from "./help.mjs"

const anything = { "~standard": { version: 1, vendor: "test", validate: (value) => ({ value }) } }
const state = createStateSchema({
  users: { schema: anything, type: "user", primaryKey: "id" },
  messages: { schema: anything, type: "message", primaryKey: "id" },
})

const write = (to, event) => to.append(JSON.stringify(event))

test("state is what its changes make of it, read at once or followed", async () => {
  const log = await DurableStream.create({ url: fresh("state"), contentType: "application/json" })
  await write(log, state.users.insert({ value: { id: "1", name: "Odo" } }))
  await write(log, state.users.insert({ value: { id: "2", name: "Kira" } }))
  await write(log, state.users.update({ value: { id: "1", name: "Odo'Ital" } }))
  await write(log, state.users.delete({ key: "2" }))
  const held = new MaterializedState()
  const following = await stream({ url: log.url, live: "sse", offset: "-1" })
  following.subscribeJson((batch) => batch.items.filter(isChangeEvent).forEach((event) => held.apply(event)))
  await until("the first changes", () => held.get("user", "1")?.name === "Odo'Ital")
  assert.equal(held.get("user", "2"), undefined)
  await write(log, state.users.insert({ value: { id: "3", name: "Quark" } }))
  await until("the next", () => held.get("user", "3")?.name === "Quark")
  following.cancel()
})

for (const live of ["sse", "long-poll"]) {
  test(`two databases on one stream agree, with queries that follow and actions that are confirmed: ${live}`, async () => {
    const url = fresh("db")
    await DurableStream.create({ url, contentType: "application/json" })
    const open = () => {
      const streamOptions = { url, contentType: "application/json" }
      const actions = ({ db, stream: log }) => ({
        addUser: {
          onMutate: (value) => db.collections.users.insert(value),
          mutationFn: async (value) => {
            const txid = crypto.randomUUID()
            await write(log, state.users.insert({ value, headers: { txid } }))
            await db.utils.awaitTxId(txid)
          },
        },
      })
      return createStreamDB({ streamOptions, state, live, actions })
    }
    const [mine, theirs] = [open(), open()]
    try {
      await Promise.all([mine.preload(), theirs.preload()])
      const adults = createLiveQueryCollection({
        startSync: true,
        query: (q) => q.from({ user: theirs.collections.users }).where(({ user }) => eq(user.adult, true)),
      })
      await mine.actions.addUser({ id: "1", name: "Odo", adult: true }).isPersisted.promise
      await mine.actions.addUser({ id: "2", name: "Nog", adult: false }).isPersisted.promise
      await until("the other one to know", () => theirs.collections.users.size === 2)
      await until("the query to know", () => adults.size === 1)
      await write(await DurableStream.connect({ url }), state.users.update({ value: { id: "2", name: "Nog", adult: true } }))
      await until("the query to follow", () => adults.size === 2)
      assert.deepEqual([...mine.collections.users.keys()].sort(), [...theirs.collections.users.keys()].sort())
    } finally {
      mine.close()
      theirs.close()
    }
  })
}
