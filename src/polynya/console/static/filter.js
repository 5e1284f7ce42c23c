// The filter of a page of records: by key, or by text in key, headers and value. Pure.

const SEARCHED_BYTES_MAX = 1 << 20;
const texts = new WeakMap(); // of a record: {key, all}, in lower case

/** Return a function that tells whether a record matches: "key:abc" looks at the key, anything else at key, headers and value. */
export function matcher(typed) {
  const text = typed.trim().toLowerCase();
  if (!text) return () => true;
  const key = /^key:\s*(.*)$/s.exec(text);
  return key ? (record) => record.key !== null && textsOf(record).key.includes(key[1]) : (record) => textsOf(record).all.includes(text);
}

function textsOf(record) {
  let found = texts.get(record);
  if (!found) {
    const key = lower(record.key);
    const headers = record.headers.map(([name, value]) => `${name.toLowerCase()}: ${lower(value)}`);
    found = { key, all: [key, ...headers, lower(record.bytes)].join("\n") };
    texts.set(record, found);
  }
  return found;
}

function lower(bytes) {
  return bytes === null ? "" : new TextDecoder().decode(bytes.subarray(0, SEARCHED_BYTES_MAX)).toLowerCase();
}
