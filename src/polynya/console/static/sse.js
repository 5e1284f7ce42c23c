// Server-sent events out of the bytes of an answer, as the HTML standard reads them. Pure: pieces in, events out.

/** Feed it text; it gives {event, data, id} for each event that is complete. */
export class SseParser {
  #pieces = []; // of a line that is not complete: joined once, however many they become
  #size = 0;
  #data = [];
  #event = "";
  #id = "";
  #begun = false;
  #afterCr = false; // the last piece ended in CR: an LF that follows is part of that line's end

  feed(text) {
    const events = [];
    let begin = 0;
    if (!this.#begun && text.length) {
      this.#begun = true;
      if (text.charCodeAt(0) === 0xfeff) begin = 1;
    }
    if (this.#afterCr && text.length) {
      this.#afterCr = false;
      if (text[begin] === "\n") begin += 1;
    }
    const ends = /\r\n|\r|\n/g;
    ends.lastIndex = begin;
    for (let end = ends.exec(text); end; end = ends.exec(text)) {
      this.#pieces.push(text.slice(begin, end.index));
      const line = this.#pieces.length === 1 ? this.#pieces[0] : this.#pieces.join("");
      this.#pieces = [];
      this.#line(line, events);
      begin = ends.lastIndex;
      this.#afterCr = end[0] === "\r" && begin === text.length;
    }
    if (begin < text.length) this.#pieces.push(text.slice(begin));
    this.#size += text.length;
    if (!this.#pieces.length && !this.#data.length) this.#size = 0;
    return events;
  }

  /** About how many characters an event that is not complete yet has. */
  get pending() {
    return this.#size;
  }

  #line(line, events) {
    if (line === "") {
      if (this.#data.length) events.push({ event: this.#event || "message", data: this.#data.join("\n"), id: this.#id });
      this.#data = [];
      this.#event = "";
      this.#size = 0;
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#event = value;
    else if (field === "id" && !value.includes("\0")) this.#id = value;
  }
}
