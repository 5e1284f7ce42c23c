// kafkajs writes numbered records and reads them by a fetch from the beginning; prints JSON.
// node kafkajs.mjs BROKERS TOPIC COUNT [MECHANISM USER PASSWORD CA]
import fs from "node:fs";
import { CompressionTypes, Kafka, logLevel } from "kafkajs";

const [brokers, topic, count, mechanism, username, password, ca] = process.argv.slice(2);
const secured = mechanism
  ? { sasl: { mechanism, username, password }, ssl: { ca: [fs.readFileSync(ca, "utf-8")] } }
  : {};
const kafka = new Kafka({ brokers: brokers.split(","), logLevel: logLevel.ERROR, ...secured });

const admin = kafka.admin();
await admin.connect();
await admin.createTopics({ topics: [{ topic, numPartitions: 1, replicationFactor: 1 }] });
const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
await producer.connect();
const messages = [...Array(Number(count)).keys()].map((number) => ({
  key: number % 7 === 3 ? null : `k${number}`,
  value: number % 5 === 2 ? null : `value ${number}`,
  headers: { n: String(number) },
  partition: 0,
}));
const sent = await producer.send({ topic, messages, compression: CompressionTypes.GZIP });
await producer.disconnect();
const offsets = await admin.fetchTopicOffsets(topic);
const topics = await admin.listTopics();
await admin.disconnect();
console.log(JSON.stringify({ base: sent[0].baseOffset, high: offsets[0].high, topics }));
