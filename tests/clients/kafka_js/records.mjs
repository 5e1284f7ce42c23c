// kafkajs writes and reads numbered records with keys, headers, tombstones and nulls; prints what
// it read as JSON. It has no codec but gzip.
// node records.mjs write|read BROKERS TOPIC none|gzip COUNT
import { CompressionTypes, Kafka, logLevel } from "kafkajs";

const [verb, brokers, topic, codec, count] = process.argv.slice(2);
const kafka = new Kafka({ brokers: brokers.split(","), logLevel: logLevel.ERROR });
const SOME = 1000; // records of one request

function record(number) {
  return {
    key: number % 7 === 3 && number % 5 !== 2 ? null : `k${number}`,
    value: number % 5 === 2 ? null : `${codec} ${number} `.repeat(9),
    headers: number % 3 === 0 ? { n: String(number) } : {},
    timestamp: String(1_700_000_000_000 + number),
    partition: 0,
  };
}

async function write() {
  const compression = codec === "gzip" ? CompressionTypes.GZIP : CompressionTypes.None;
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  for (let begin = 0; begin < count; begin += SOME) {
    const length = Math.min(SOME, count - begin);
    const messages = Array.from({ length }, (_, index) => record(begin + index));
    await producer.send({ topic, messages, compression });
  }
  await producer.disconnect();
}

async function read() {
  const found = [];
  const consumer = kafka.consumer({ groupId: `js-${topic}` });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await new Promise((resolve) => {
    consumer.run({
      eachMessage: async ({ message }) => {
        const headers = Object.entries(message.headers).map(([name, data]) => [name, String(data)]);
        const text = (data) => (data === null ? null : String(data));
        const place = [Number(message.offset), text(message.key), text(message.value)];
        found.push([...place, headers, Number(message.timestamp)]);
        if (found.length === Number(count)) resolve();
      },
    });
  });
  await consumer.disconnect();
  console.log(JSON.stringify(found));
}

await (verb === "write" ? write() : read());
