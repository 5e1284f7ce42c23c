/** An incremental parser of server-sent events (WHATWG HTML 9.2.6). */

export interface StreamEvent {
  name: string
  data: string
  /** The last id seen, as in browsers. */
  id: string
}

const EVENT_CHARACTERS_MAX = 64 << 20 // an event holds one append or one page

/** Parses a body that comes in pieces. An event that the end cuts off is dropped. */
export class EventParser {
  readonly #decoder = new TextDecoder()
  #line = ""
  #afterCr = false
  #name = ""
  #id = ""
  #data: string[] = []
  #size = 0

  /** The events that this piece completes. Throws RangeError when one is too large. */
  feed(piece: Uint8Array): StreamEvent[] {
    const found: StreamEvent[] = []
    for (const line of this.#lines(piece)) {
      if (line !== "") {
        this.#field(line)
        continue
      }
      if (this.#data.length > 0) found.push({ name: this.#name || "message", data: this.#data.join("\n"), id: this.#id })
      this.#name = ""
      this.#data = []
      this.#size = 0
    }
    return found
  }

  #field(line: string): void {
    const colon = line.indexOf(":")
    const field = colon < 0 ? line : line.slice(0, colon)
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1)
    if (field === "data") {
      this.#data.push(value)
      this.#size += value.length
      if (this.#size > EVENT_CHARACTERS_MAX) throw new RangeError(`an event has more than ${EVENT_CHARACTERS_MAX} characters`)
    } else if (field === "event") this.#name = value
    else if (field === "id" && !value.includes("\0")) this.#id = value
  }

  /** Split into lines that end in CR LF, LF or CR. */
  #lines(piece: Uint8Array): string[] {
    let text = this.#decoder.decode(piece, { stream: true })
    if (text === "") return []
    if (this.#afterCr && text.startsWith("\n")) text = text.slice(1)
    this.#afterCr = text === "" ? false : text.endsWith("\r")
    const lines = text.split(/\r\n|\n|\r/)
    const rest = lines.pop() ?? ""
    if (lines.length === 0) this.#line += rest
    else {
      lines[0] = this.#line + lines[0]
      this.#line = rest
    }
    if (this.#line.length > EVENT_CHARACTERS_MAX) throw new RangeError(`a line has more than ${EVENT_CHARACTERS_MAX} characters`)
    return lines
  }
}
