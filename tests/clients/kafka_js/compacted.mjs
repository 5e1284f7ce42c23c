// kafkajs reads a compacted topic from the beginning until it has no lag, and prints the last value
// of each key as JSON: [records, values, end].
// node compacted.mjs BROKERS TOPIC
import { Kafka, logLevel } from "kafkajs";

const [brokers, topic] = process.argv.slice(2);
const kafka = new Kafka({ brokers: brokers.split(","), logLevel: logLevel.ERROR });
const admin = kafka.admin();
await admin.connect();
const [{ high }] = await admin.fetchTopicOffsets(topic);
await admin.disconnect();

const values = {};
let records = 0;
const consumer = kafka.consumer({ groupId: `compacted-${topic}`, maxWaitTimeInMs: 100 });
await consumer.connect();
await consumer.subscribe({ topic, fromBeginning: true });
const ended = new Promise((resolve) => {
  consumer.on(consumer.events.END_BATCH_PROCESS, ({ payload }) => {
    if (Number(payload.lastOffset) + 1 >= Number(high)) resolve(Number(payload.lastOffset) + 1);
  });
});
await consumer.run({
  eachMessage: async ({ message }) => {
    records += 1;
    values[String(message.key)] = message.value === null ? null : String(message.value);
  },
});
const end = await ended;
await consumer.disconnect();
console.log(JSON.stringify([records, values, end]));
