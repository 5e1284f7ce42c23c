// Appends COUNT numbers by a producer to STREAM, follows it by two tails and with another stream on one connection, while the server dies and
// comes back; prints each hundredth number, and checks that nothing was lost and nothing came twice.
import assert from "node:assert/strict"
import { Client } from "@polynya/client"

const [url, name, count] = process.argv.slice(2)
const client = new Client(url, { token: process.env.TOKEN, retry: { pauseSeconds: 0.02, pauseSecondsMax: 0.2 } })
const [stream, other] = [client.stream(name), client.stream(`${name}-other`)]
await stream.create()
await other.create()

const all = async (reader) => { const found = []; for await (const record of reader) if (record.stream === name) found.push(record.value); return found }
const tails = [all(stream.tail()), all(stream.tail({ live: "long-poll" })), all(client.tailMany([name, other.name]))]

const producer = await stream.producer({ id: "survivor", batchRecords: 7 })
for (let number = 0; number < Number(count); number += 1) {
  const receipt = await producer.append(number)
  if (number % 100 === 99) {
    await receipt.durable
    console.log(number + 1)
  }
}
await producer.closeStream()
await other.close()
const expected = Array.from({ length: Number(count) }, (_, number) => number)
for (const found of await Promise.all(tails)) assert.deepEqual(found, expected)
assert.deepEqual(await all(stream.read()), expected)
assert.equal(producer.applied, Number(count))
console.log("nothing lost, nothing twice")
