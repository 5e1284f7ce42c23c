// Conditions on JSON values: a path and a comparison, such as `$.order.items[*].price>=1.5`. Pure.

import { parse, unquoted } from "./json.js";

const BYTES_MAX = 1 << 20; // a longer value does not match
const STEP = /^(?:\.([^.[\]=!<>~\s]+)|\[(\d+)\]|\[\*\]|\["((?:[^"\\]|\\.)*)"\]|\['([^']*)'\])/;
const COMPARISON = /^\s*(==|=|!=|<=|>=|<|>|~)\s*(.*)$/s;
const WHOLE = /^-?\d+$/;
const NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/;
export const SYNTAX = "a path and a value: $.item=7, $.order.id=\"a-1\", $.lines[0].price>=1.5, $.lines[*].name~tea, or $.error alone if it must be there";

/** Return a function that tells whether a text fulfils a condition; null if it is malformed. An empty condition is always true. */
export function condition(typed) {
  const text = typed.trim();
  if (!text) return () => true;
  const read = stepsOf(text);
  if (!read) return null;
  const rest = text.slice(read.end);
  const compare = COMPARISON.exec(rest);
  if (!compare && rest.trim()) return null;
  const holds = compare ? comparison(compare[1], compare[2].trim()) : () => true;
  return (bytes) => bytes.length <= BYTES_MAX && at(bytes, read.steps).some(holds);
}

/** Return the steps of a path, names, numbers or "*" as {any}, and where the path ends. */
function stepsOf(text) {
  if (text[0] !== "$") return null;
  const steps = [];
  let end = 1;
  for (let found = STEP.exec(text.slice(end)); found; found = STEP.exec(text.slice(end))) {
    const [all, name, index, quoted, single] = found;
    if (index !== undefined) steps.push(Number(index));
    else if (name !== undefined || single !== undefined) steps.push(name ?? single);
    else if (quoted !== undefined) steps.push(nameOf(quoted));
    else steps.push(null); // every element
    end += all.length;
  }
  return { steps, end };
}

function nameOf(inside) {
  try {
    return unquoted(`"${inside}"`);
  } catch {
    return inside;
  }
}

/** Return the nodes at a path of a JSON text: none if it is no JSON, several by repeated keys and by "[*]". */
function at(bytes, steps) {
  let nodes;
  try {
    nodes = [parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes))];
  } catch {
    return [];
  }
  for (const step of steps) nodes = nodes.flatMap((node) => childrenOf(node, step));
  return nodes;
}

function childrenOf(node, step) {
  if (typeof step === "string") return node.kind === "object" ? node.entries.filter(([key]) => unquoted(key) === step).map(([, value]) => value) : [];
  if (node.kind === "array") return step === null ? node.items : node.items.slice(step, step + 1);
  return step === null && node.kind === "object" ? node.entries.map(([, value]) => value) : [];
}

function comparison(sign, typed) {
  const wanted = literal(typed);
  if (sign === "~") {
    const part = String(wanted.text).toLowerCase();
    return (node) => textOf(node).toLowerCase().includes(part);
  }
  if (sign === "=" || sign === "==") return (node) => order(node, wanted) === 0;
  if (sign === "!=") return (node) => order(node, wanted) !== 0;
  const isRight = { "<": (sort) => sort < 0, "<=": (sort) => sort <= 0, ">": (sort) => sort > 0, ">=": (sort) => sort >= 0 }[sign];
  return (node) => {
    const sort = order(node, wanted);
    return sort !== null && isRight(sort);
  };
}

/** Return a typed value: text in quotes is a text alone; anything else is a text or, if it looks so, a number or a word. */
function literal(typed) {
  if (/^".*"$/s.test(typed)) return { text: nameOf(typed.slice(1, -1)), isText: true };
  if (/^'.*'$/s.test(typed)) return { text: typed.slice(1, -1), isText: true };
  return { text: typed, isText: false };
}

/** Compare a node with a typed value: below 0, 0, above 0, or null if they have no order. */
function order(node, { text, isText }) {
  if (node.kind === "string") return compared(unquoted(node.source), text);
  if (isText) return null;
  if (node.kind === "word") return node.source === text ? 0 : null;
  if (node.kind !== "number" || !NUMBER.test(text)) return null;
  const exact = WHOLE.test(node.source) && WHOLE.test(text);
  return exact ? compared(BigInt(node.source), BigInt(text)) : compared(Number(node.source), Number(text));
}

function compared(one, other) {
  return one < other ? -1 : one > other ? 1 : 0;
}

function textOf(node) {
  return node.kind === "string" ? unquoted(node.source) : (node.source ?? "");
}
