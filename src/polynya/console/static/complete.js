// Completion of the names of tables and columns in an SQL query. Pure.

const WORD = /[\p{L}\p{N}_]+$/u;
const PLAIN = /^[a-z_][a-z0-9_]*$/;
const SUGGESTIONS_MAX = 8;
const NEEDS_QUOTES = new Set(["offset", "at", "select", "from", "where", "group", "order", "limit", "table", "end"]);

/** Return the word before the caret. */
export function wordBefore(text, caret) {
  return WORD.exec(text.slice(0, caret))?.[0] ?? "";
}

/** Return the tables that a query names. */
export function tablesIn(text, tables) {
  const words = new Set(text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? []);
  return tables.filter((name) => words.has(name.toLowerCase()));
}

/** Return the names that begin with a word of at least one letter, without the word itself, those that the query's tables have first. */
export function suggestions(word, columns, tables) {
  if (!word) return [];
  const begun = word.toLowerCase();
  const fits = (name) => name.toLowerCase().startsWith(begun) && name.toLowerCase() !== begun;
  return [...new Set([...columns, ...tables].filter(fits))].slice(0, SUGGESTIONS_MAX);
}

/** Replace the word before the caret by a name, quoted where SQL needs it: {text, caret}. */
export function completed(text, caret, name) {
  const begin = caret - wordBefore(text, caret).length;
  const isPlain = PLAIN.test(name.toLowerCase()) && !NEEDS_QUOTES.has(name.toLowerCase());
  const inside = name.replaceAll('"', '""');
  const spelled = text[begin - 1] === '"' ? inside : isPlain ? name : `"${inside}"`;
  return { text: text.slice(0, begin) + spelled + text.slice(caret), caret: begin + spelled.length };
}
