// Rows for the keys j and k. Each row has one focusable element with `data-row`, a link or a button: Enter activates it, and screen
// readers announce its kind.

/** The rows inside `parent`. */
export class Rows {
  #elements = new Map();

  constructor(parent) {
    this.parent = parent;
  }

  /** Show `entries` in their order: `make` builds a row, `refresh` updates it. Rows that remain keep their focus. */
  show(entries, key, make, refresh) {
    const made = new Map();
    let before = null;
    for (const entry of entries) {
      const id = key(entry);
      const element = this.#elements.get(id) ?? make(entry);
      made.set(id, element);
      refresh?.(element, entry);
      const place = before ? before.nextSibling : this.parent.firstChild;
      if (place !== element) this.parent.insertBefore(element, place);
      before = element;
    }
    for (const [id, element] of this.#elements) if (made.get(id) !== element) element.remove();
    this.#elements = made;
  }

  get targets() {
    return [...this.parent.querySelectorAll("[data-row]")];
  }

  /** Move the focus by `step` rows; focus the first one when none has it. */
  move(step) {
    const targets = this.targets;
    if (!targets.length) return null;
    const at = targets.indexOf(document.activeElement);
    const next = at < 0 ? (step > 0 ? 0 : targets.length - 1) : Math.min(Math.max(at + step, 0), targets.length - 1);
    targets[next].focus({ preventScroll: true });
    targets[next].scrollIntoView({ block: "nearest" });
    return targets[next];
  }
}
