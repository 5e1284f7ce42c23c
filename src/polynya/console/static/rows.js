// Rows that j and k walk through. Each row has one element with `data-row`, a link or a button, which takes the focus: Enter then does what
// it does, and readers of the screen are told what it is.

/** The rows inside `parent`. */
export class Rows {
  #elements = new Map();

  constructor(parent) {
    this.parent = parent;
  }

  /** Show `entries` in their order: `make` builds a row, `refresh` fills what changes. Rows that stay keep their focus. */
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

  /** Move the focus by `step` rows; the first one when none has it. */
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
