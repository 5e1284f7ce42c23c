// Follows the stream URL with the official client, and prints each record on a line of its own until the stream is closed.
import { stream } from "@durable-streams/client"

const [url, live] = process.argv.slice(2)
const backoffOptions = { initialDelay: 20, maxDelay: 200, multiplier: 1.3 }
const reading = await stream({ url, live, offset: "-1", backoffOptions, sseResilience: { logWarnings: false } })
for await (const item of reading.jsonStream()) console.log(JSON.stringify(item))
