// Build elements from text alone. The console never parses HTML: data of streams, tables and servers only becomes text nodes and attribute
// values, and no attribute here runs code.

const SVG = "http://www.w3.org/2000/svg";
const SAFE_LINK = /^(#|https?:)/;

/** Create an element: `props` are attributes, except `on` (listeners by event) and `class`. Children are elements, text, or null. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Create an SVG element in the same way. */
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
  if (name === "href" && !SAFE_LINK.test(value)) throw new Error("a link must be within the page or http");
  element.setAttribute(name, value);
}

/** Replace the children of an element. */
export function put(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Return whether a field has the keyboard, so that shortcuts are off. */
export function isField(element) {
  return element instanceof HTMLElement && (element.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName));
}

/** Let the browser save a text, or bytes, as a file. */
export function download(name, type, text) {
  const target = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { download: name });
  link.href = target;
  link.click();
  setTimeout(() => URL.revokeObjectURL(target), 60_000); // the browser reads it after the click
}

/** Copy text to the clipboard; return false where the browser denies it. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages on plain HTTP beyond localhost have no clipboard API; the deprecated command still works.
    const area = h("textarea", { class: "offscreen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
