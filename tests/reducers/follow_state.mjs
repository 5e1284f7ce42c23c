// Follows a stream with a reducer of the server, and prints each state as JSON: the record numbers do
// not come from a snapshot, so that the first line tells where it began.
import { pathToFileURL } from "node:url"

const [library, server, stream, reducer, token] = process.argv.slice(2)
const { follow } = await import(pathToFileURL(library))
const onState = (state, offset) =>
  console.log(JSON.stringify({ offset, state: Buffer.from(state.state()).toString("base64") }))
await follow({ server, stream, reducer, token, onState })
console.log("closed")
