// Appends COUNT numbers with the official client's idempotent producer, repeating what was not answered, and closes the stream.
import { DurableStream, IdempotentProducer } from "@durable-streams/client"

const [url, count] = process.argv.slice(2)
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

// The producer takes an answer as it comes, so what a server that goes away answers (nothing, or 503) is repeated here.
const persistent = async (input, options) => {
  for (;;) {
    const answer = await fetch(input, options).catch((error) => {
      if (!(error instanceof TypeError)) throw error
    })
    if (answer && answer.status !== 503) return answer
    await pause(20)
  }
}

const onError = (error) => {
  console.error(error)
  process.exit(1)
}

// Node's fetch (undici 6) never settles when a connection ends before its parser, which it loads with the first one, is there: `fetch`
// then stays pending without a socket, and the process ends with code 13. So the first connection is over before the server may go away.
await (await fetch(url, { method: "HEAD" })).arrayBuffer()
process.on("exit", () => {
  if (process.exitCode === 13) console.error("the event loop ran empty: a promise was pending that neither a connection nor a timer can settle")
})

const to = new DurableStream({ url, contentType: "application/json" })
const producer = new IdempotentProducer(to, "producer", { fetch: persistent, lingerMs: 1, onError })
for (let number = 0; number < Number(count); number++) {
  producer.append(String(number))
  if (number % 10 === 0) await pause(2)
  if (number % 100 === 0) console.log(number)
}
await producer.flush()
await producer.close()
