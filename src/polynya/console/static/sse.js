// Parse server-sent events from response text, per the HTML standard. Pure.

/** Feed it text; it returns {event, data, id} for each complete event. */
export class SseParser {
  #pieces = []; // pieces of an incomplete line, joined once at its end
  #size = 0;
  #data = [];
  #event = "";
  #id = "";
  #begun = false;
  #afterCr = false; // the last piece ended in CR: a following LF belongs to that line end

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

  /** Return about how many characters the incomplete event has. */
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
