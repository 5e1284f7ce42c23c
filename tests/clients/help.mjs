// What the stories share: fresh stream URLs below SERVER, a fetch that is watched, and waiting for a condition.
import { randomUUID } from "node:crypto"

export const server = process.env.SERVER

export const fresh = (kind = "s") => `${server}/v1/stream/clients/${kind}-${randomUUID().slice(0, 8)}`

export const numbers = (count, first = 0) => Array.from({ length: count }, (_, at) => ({ n: first + at }))

// A fetch that notes what was asked, and does to a request what `meddle(number, ask)` says; by default it just asks.
export const watched = (meddle = (_, ask) => ask()) => {
  const asked = []
  const watching = async (url, options) => {
    asked.push({ url: String(url), method: options?.method ?? "GET" })
    return meddle(asked.length, () => fetch(url, options))
  }
  return { asked, fetch: watching }
}

export const until = async (what, look, seconds = 60) => {
  const deadline = Date.now() + seconds * 1000
  for (;;) {
    const found = await look()
    if (found) return found
    if (Date.now() > deadline) throw new Error(`waited ${seconds} s in vain for: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

// A fetch that asks again when it got no answer.
export const persistent = (ask) => async (url, options) => {
  for (;;) {
    try {
      return await ask(url, options)
    } catch (error) {
      if (!(error instanceof TypeError)) throw error
    }
  }
}
