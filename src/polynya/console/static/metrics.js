// Parse Prometheus' text format. Pure.

const SAMPLE = /^([A-Za-z_:][\w:]*)(\{[^}]*\})?\s+(\S+)/;

/** Return [{name, labels, value, kind, help}] in the order of the text; `labels` keep their text, "" without any. */
export function parseMetrics(text) {
  const kinds = new Map();
  const helps = new Map();
  const samples = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("# TYPE ")) {
      const [, , name, kind] = line.split(" ");
      kinds.set(name, kind);
    } else if (line.startsWith("# HELP ")) {
      const name = line.split(" ", 3)[2];
      helps.set(name, line.slice(`# HELP ${name} `.length));
    } else if (!line.startsWith("#")) {
      const found = SAMPLE.exec(line);
      if (found) samples.push({ name: found[1], labels: found[2] ?? "", value: Number(found[3]) });
    }
  }
  return samples.map((sample) => ({ ...sample, kind: kinds.get(sample.name) ?? "", help: helps.get(sample.name) ?? "" }));
}
