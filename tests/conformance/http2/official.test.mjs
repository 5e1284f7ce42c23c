// The official suite over HTTP/2, which undici chooses in the handshake of TLS. The node's certificate is its own.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"
import { Agent, fetch, setGlobalDispatcher } from "undici"

setGlobalDispatcher(new Agent({ allowH2: true, connect: { rejectUnauthorized: false } }))
globalThis.fetch = fetch

runConformanceTests({
  baseUrl: process.env.CONFORMANCE_URL,
  longPollTimeoutMs: Number(process.env.CONFORMANCE_LONG_POLL_MS),
  subscriptions: true,
})
