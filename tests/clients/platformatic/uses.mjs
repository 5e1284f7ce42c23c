/**
 * Uses of a node by @platformatic/kafka: `node uses.mjs SERVERS TOPIC COUNT CODEC...`. Prints a line of
 * JSON for each.
 */
import { Admin, Consumer, MessagesStreamModes, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'

const [servers, topic, number, ...codecs] = process.argv.slice(2)
const count = Number(number)
const base = { clientId: 'platformatic', bootstrapBrokers: servers.split(',') }

const admin = new Admin(base)
await admin.createTopics({ topics: [topic], partitions: 2, replicas: 1 })

for (const compression of codecs) {
  const producer = new Producer({ ...base, serializers: stringSerializers, compression, idempotent: true })
  const messages = Array.from({ length: count }, (_, at) => ({
    topic, partition: at % 2, key: `k${at}`, value: `${compression} ${at} `.repeat(9), headers: { n: String(at) }
  }))
  await producer.send({ messages })
  await producer.close()
}

/** Returns the next values of a group, which it commits. */
async function read (wanted) {
  const consumer = new Consumer({ ...base, groupId: `${topic}-readers`, deserializers: stringDeserializers, maxWaitTime: 200 })
  const stream = await consumer.consume({ topics: [topic], autocommit: false, mode: MessagesStreamModes.COMMITTED, fallbackMode: 'earliest', sessionTimeout: 10000, heartbeatInterval: 500 })
  const found = []
  for await (const message of stream) {
    found.push(message.value)
    await message.commit()
    if (found.length === wanted) break
  }
  await consumer.close(true)
  return found
}

const all = codecs.length * count
const first = await read(all / 2)
const rest = await read(all - all / 2)
console.log(JSON.stringify([first.length, rest.length, new Set([...first, ...rest]).size]))

// what an aborted and a committed transaction leave to a reader of committed records
const producer = new Producer({ ...base, serializers: stringSerializers, idempotent: true, transactionalId: topic })
for (const value of ['aborted', 'committed']) {
  const transaction = await producer.beginTransaction()
  await transaction.send({ messages: [{ topic, partition: 0, value }] })
  await (value === 'aborted' ? transaction.abort() : transaction.commit())
}
await producer.close()
console.log(JSON.stringify((await read(1))))
await admin.deleteTopics({ topics: [topic] })
await admin.close()
