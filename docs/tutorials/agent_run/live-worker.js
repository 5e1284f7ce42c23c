// One connection for all tabs of the site, in a SharedWorker. It keeps the runs that it has read, so a tab that is
// reloaded has them at once, and goes on at another node when one is gone.

const PREFIX = "runs/"
const PAUSE_MS = 500
const runs = new Map() // by stream: the values, and the offset behind them
const tabs = new Map() // by port: the streams that this tab shows
let source, renewal
let node = 0 // of the session's list
let last = "" // the id of the last event

async function connect() {
  clearTimeout(renewal)
  source?.close()
  try {
    const { nodes, token, expires } = await (await fetch("/session")).json()
    open(nodes[node % nodes.length], token)
    renewal = setTimeout(connect, expires - Date.now() - 30_000)
  } catch {
    renewal = setTimeout(connect, PAUSE_MS) // the site is down
  }
}

function open(url, token) {
  const query = new URLSearchParams({ prefix: PREFIX, access_token: token })
  if (last) query.set("cursor", last)
  else for (const [stream, { offset }] of runs) query.append("stream", `${stream}@${short(offset)}`)
  const opened = new EventSource(`${url}/v1/live?${query}`)
  let wasOpen = false
  source = opened
  opened.addEventListener("open", () => { wasOpen = true })
  opened.addEventListener("data", (event) => {
    const { stream, streamNextOffset, data } = JSON.parse(event.data)
    append(stream, data, streamNextOffset)
    last = event.lastEventId
  })
  opened.addEventListener("control", (event) => {
    const { stream, streamNextOffset, streamDeleted } = JSON.parse(event.data)
    if (streamDeleted) runs.delete(stream)
    else if (stream && streamNextOffset) append(stream, [], streamNextOffset)
    last = event.lastEventId
  })
  opened.addEventListener("error", (event) => {
    opened.close()
    if (opened !== source) return
    if (event.data) last = "" // no node has the cursor any more: go on from the offsets
    else if (!wasOpen) node += 1 // it does not answer: the next one
    renewal = setTimeout(connect, wasOpen ? 0 : PAUSE_MS)
  })
}

/** Leave out zeros: a list of long offsets would not fit into a URL. */
function short(offset) {
  return offset.replace(/\b0+(?=\d)|(?<=_)0+(?=\d)/g, "")
}

function append(stream, values, offset) {
  const run = runs.get(stream) ?? { values: [], offset }
  runs.set(stream, run)
  const from = run.values.length
  run.values.push(...values)
  run.offset = offset
  if (values.length) for (const [port, shown] of tabs) if (shown.has(stream)) port.postMessage({ stream, from, values })
}

onconnect = ({ ports: [port] }) => {
  tabs.set(port, new Set())
  port.onmessage = ({ data: { show, bye, ping } }) => {
    if (ping) port.postMessage({ pong: ping })
    if (bye) tabs.delete(port)
    for (const stream of show ?? []) {
      tabs.get(port)?.add(stream)
      port.postMessage({ stream, from: 0, values: runs.get(stream)?.values ?? [] })
    }
  }
}

connect()
