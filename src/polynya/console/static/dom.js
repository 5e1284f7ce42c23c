// Elements from text alone. Nothing in the console parses HTML: what a stream, a table or a server says can only become text nodes and
// attribute values, and no attribute here runs anything.

const SVG = "http://www.w3.org/2000/svg";
const SAFE_LINK = /^(#|https?:)/;

/** An element: `props` are attributes, but `on` (listeners by event) and `class`. Children are elements, text, or null. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else {
      set(element, name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function set(element, name, value) {
  if (/^on/i.test(name) || name === "style" || name === "srcdoc") throw new Error(`no attribute ${name} here`);
  if (name === "href" && !SAFE_LINK.test(value)) throw new Error("a link leads within the page, or to http");
  element.setAttribute(name, value);
}

/** Replace what an element holds. */
export function put(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Whether typing goes to a field, and not to shortcuts. */
export function isField(element) {
  return element instanceof HTMLElement && (element.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName));
}

/** Put text on the clipboard; false where the browser does not let us. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers give pages on plain HTTP beyond localhost no clipboard; the old way still works there.
    const area = h("textarea", { class: "offscreen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
