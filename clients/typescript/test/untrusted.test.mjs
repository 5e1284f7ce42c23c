// The client against the node at SERVER, whose certificate this process does not trust.
import assert from "node:assert/strict"
import { test } from "node:test"
import { Client, Unavailable } from "@polynya/client"

test("a certificate that is not trusted is said", async () => {
  const stream = new Client(process.env.SERVER, { retry: { seconds: 0 } }).stream("a", { contentType: "application/json" })
  await assert.rejects(stream.append([1]), (error) => error instanceof Unavailable && /unreachable.*certificate/.test(error.message))
})
