// The difference of two texts by lines.

const CELLS_MAX = 1_000_000; // of the table that compares them: more would stop the page

/**
 * Return the lines of both texts in order, each with its mark: " " of both, "-" of the old text alone, "+" of the new one alone. Texts that are
 * too long to compare are given one after the other.
 */
export function differing(old, now) {
  const [before, after] = [old.split("\n"), now.split("\n")];
  let begin = 0;
  while (begin < before.length && begin < after.length && before[begin] === after[begin]) begin++;
  let end = 0;
  while (end < before.length - begin && end < after.length - begin && before.at(-1 - end) === after.at(-1 - end)) end++;
  const inside = between(before.slice(begin, before.length - end), after.slice(begin, after.length - end));
  const same = (lines) => lines.map((text) => ({ mark: " ", text }));
  return [...same(before.slice(0, begin)), ...inside, ...same(end ? before.slice(-end) : [])];
}

function between(before, after) {
  const marked = (mark, lines) => lines.map((text) => ({ mark, text }));
  if (before.length * after.length > CELLS_MAX) return [...marked("-", before), ...marked("+", after)];
  const width = after.length + 1;
  const longest = new Uint32Array((before.length + 1) * width); // common subsequence of what is left of both
  for (let at = before.length - 1; at >= 0; at--)
    for (let to = after.length - 1; to >= 0; to--)
      longest[at * width + to] = before[at] === after[to] ? longest[(at + 1) * width + to + 1] + 1 : Math.max(longest[(at + 1) * width + to], longest[at * width + to + 1]);
  const found = [];
  let [at, to] = [0, 0];
  while (at < before.length && to < after.length) {
    if (before[at] === after[to]) {
      found.push({ mark: " ", text: before[at] });
      at++;
      to++;
    } else if (longest[(at + 1) * width + to] >= longest[at * width + to + 1]) found.push({ mark: "-", text: before[at++] });
    else found.push({ mark: "+", text: after[to++] });
  }
  return [...found, ...marked("-", before.slice(at)), ...marked("+", after.slice(to))];
}
