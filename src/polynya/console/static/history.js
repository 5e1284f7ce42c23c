// The SQL queries that were run in this browser: the newest first, each once, bounded.

const KEY = "polynya.queries";
export const QUERIES_MAX = 50;
const CHARACTERS_MAX = 10_000; // of a query that is kept

/** Return the kept queries with one more at the front; too long a query is not kept. Pure. */
export function withQuery(kept, statement) {
  if (!statement || statement.length > CHARACTERS_MAX) return kept;
  return [statement, ...kept.filter((other) => other !== statement)].slice(0, QUERIES_MAX);
}

/** Return the kept queries. Anything else in the browser's storage counts as none. */
export function queries() {
  try {
    const kept = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(kept) ? kept.filter((each) => typeof each === "string" && each).slice(0, QUERIES_MAX) : [];
  } catch {
    return [];
  }
}

export function keepQuery(statement) {
  store(withQuery(queries(), statement));
}

export function clearQueries() {
  store([]);
}

function store(kept) {
  try {
    if (kept.length) localStorage.setItem(KEY, JSON.stringify(kept));
    else localStorage.removeItem(KEY);
  } catch {
    // storage is off or full; the queries are not kept
  }
}
