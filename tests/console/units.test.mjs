// The pure modules of the console: formats, places, events, JSON as it was written, rates, metrics.
import assert from "node:assert/strict";
import { test } from "node:test";

const from = (name) => import(new URL(`${name}.js`, `file://${process.env.CONSOLE}/`));
const { bytes, compact, duration, isSamePage, parsePlace, parseSeconds, parseSize, parseToken, quoted, spellSeconds, token, visible, visibleLines } = await from("format");
const { elements, Members, parse, plain } = await from("json");
const { bodyOf, checkJson, headersOf, templatesOf } = await from("drafts");
const { linePath } = await from("charts");
const { beginOf, byTime, merged } = await from("merge");
const { matcher } = await from("filter");
const { recordOf } = await from("whole");
const { SseParser } = await from("sse");
const { Book, Series } = await from("rates");
const { parseMetrics } = await from("metrics");
const { hourly, pathOf, spelled } = await from("money");
const { condition } = await from("jsonpath");
const { namesOf, patternOf, prefixOf } = await from("choose");
const { Scan } = await from("scan");
const { csvOf, jsonOf } = await from("export");
const { plotOf } = await from("plot");
const { completed, suggestions, tablesIn, wordBefore } = await from("complete");
const { QUERIES_MAX, withQuery } = await from("history");
const { differing } = await from("diff");

test("an address is of the same page in another state, or of another page", () => {
  assert.ok(isSamePage("#/stream/a/b", "#/stream/a/b?at=7") && isSamePage("#/stream/a%20b?at=1", "#/stream/a b"));
  for (const other of ["#/snapshots/a/b", "#/stream/a", "", "#/stream/a/%"]) assert.ok(!isSamePage(other, "#/stream/a/b?at=7"));
});

test("numbers, sizes and durations", () => {
  assert.deepEqual([0, 7, 0.5, 999, 1000, 1234567, 2e9].map(compact), ["0", "7", "0.5", "999", "1k", "1.23M", "2G"]);
  assert.deepEqual([0, 1023, 1024, 1536, 20 << 20].map(bytes), ["0 B", "1023 B", "1.00 KiB", "1.50 KiB", "20.0 MiB"]);
  assert.deepEqual([0.25, 7.28, 327.6304948382].map(bytes), ["0.3 B", "7.3 B", "328 B"], "rates are no whole numbers");
  assert.deepEqual([0.0004, 0.85, 12, 200, 9000, 400_000].map(duration), ["0 ms", "850 ms", "12 s", "3 min", "2.5 h", "5 d"]);
});

test("offsets", () => {
  assert.equal(token(3, 101), "0000000000000003_0000000000000101");
  assert.deepEqual(parseToken("0000000000000003_0000000000000101"), { record: 3, byte: 101 });
  for (const wrong of ["3_101", "", null, "now", "0000000000000003_0000000000000101 "]) assert.equal(parseToken(wrong), null);
});

test("places that people type", () => {
  const now = Date.parse("2026-11-01T12:00:00Z");
  const minute = 60_000;
  assert.deepEqual(parsePlace("", now), { end: true });
  assert.deepEqual(parsePlace("start", now), { start: true });
  assert.deepEqual(parsePlace("-1", now), { last: 1 }, "as polynya read --from -1");
  assert.deepEqual(parsePlace(" #1,200 ", now), { record: 1200 });
  assert.deepEqual(parsePlace("0000000000000003_0000000000000101", now), { record: 3 });
  assert.deepEqual(parsePlace("-20", now), { last: 20 });
  assert.deepEqual(parsePlace("10m", now), { time: now - 10 * minute });
  assert.deepEqual(parsePlace("1.5 h ago", now), { time: now - 90 * minute });
  assert.deepEqual(parsePlace("2026-11-01T00:00Z", now), { time: Date.parse("2026-11-01T00:00:00Z") });
  assert.deepEqual(parsePlace("0", now), { record: 0 }, "the first offset is 0");
  for (const wrong of ["nonsense", "10 parsecs", "2026-99-99", "1e5", "--3", "99999999999999999999"])
    assert.equal(parsePlace(wrong, now), null);
});

test("text in which nothing hides", () => {
  assert.equal(visible("a\nb\t\u0000\u001b[31m\u202eexe.png\u200b\ufeff"), "a\\nb\\t\\0\\u001b[31m\\u202eexe.png\\u200b\\ufeff");
  assert.equal(visibleLines("a\nb\r\u2066"), "a\nb\\r\\u2066");
  assert.equal(visible("<b>ä 木 🦭</b>"), "<b>ä 木 🦭</b>");
});

test("arguments of a shell", () => {
  assert.equal(quoted("it's $HOME `x` \\"), "'it'\\''s $HOME `x` \\'");
});

test("JSON keeps what it says", () => {
  const text = ' {"a": 1.50, "a": 12345678901234567890123, "__proto__": [true, null, "\\u00e9\\n"], "e": {}, "f": [ ]} ';
  const { kind, entries } = parse(text);
  assert.equal(kind, "object");
  assert.deepEqual(
    entries.map(([key]) => key),
    ['"a"', '"a"', '"__proto__"', '"e"', '"f"'],
  );
  assert.deepEqual(
    entries.slice(0, 2).map(([, value]) => value.source),
    ["1.50", "12345678901234567890123"],
  );
  assert.deepEqual(plain(entries[2][1]), [true, null, "é\n"]);
  assert.deepEqual(plain(parse("[1.50]")), [{ number: "1.50" }]);
});

test("what is no JSON is refused", () => {
  for (const wrong of [
    "",
    "{",
    "[1,]",
    '{"a"}',
    '{"a":1,}',
    "01",
    "nul",
    '"\n"',
    '"\\x"',
    "1 2",
    "+1",
    "[1 2]",
    "[".repeat(300) + "]".repeat(300),
  ]) {
    assert.throws(() => parse(wrong), SyntaxError, wrong);
  }
});

test("an array's elements by their source", () => {
  assert.deepEqual(elements('[{"a": [1, "],["]}, 2.0 ,"\\"]", []]'), ['{"a": [1, "],["]}', "2.0", '"\\"]"', "[]"]);
  assert.deepEqual(elements("[ ]"), []);
  assert.deepEqual(elements("[\n1\n]"), ["1"]);
  assert.throws(() => elements("[1, 2"), SyntaxError);
});

test("an array's elements as they arrive", () => {
  const text = ' [ {"a": "],[\\\\"}, "\\"]", 7 ,[1,{"b":2}]] ';
  for (const size of [1, 2, 3, 5, 1000]) {
    const members = new Members();
    const found = [];
    for (let at = 0; at < text.length; at += size) found.push(...members.feed(text.slice(at, at + size)));
    assert.deepEqual(found, ['{"a": "],[\\\\"}', '"\\"]"', "7", '[1,{"b":2}]'], `pieces of ${size}`);
    assert.ok(members.ended);
  }
});

const bytesOf = (text) => new TextEncoder().encode(text);
const SOURCE = '{"offset":7,"timestamp":5,"key":"k","headers":[["h",null],["r",{"$base64":"AP8="}]],"value":"a\\n"}';

test("whole records", () => {
  const text = recordOf(SOURCE, false);
  assert.deepEqual([text.offset, text.timestamp, text.appendTime, text.absent], [7, 5, null, false]);
  assert.deepEqual([text.key, text.bytes], [bytesOf("k"), bytesOf("a\n")]);
  assert.deepEqual(text.headers, [["h", null], ["r", Uint8Array.of(0, 255)]]);
  const json = recordOf('{"offset":0,"timestamp":-1,"append_time":9,"key":null,"headers":[],"value":{"x": 1.50}}', true);
  assert.deepEqual([json.timestamp, json.appendTime, json.key], [null, 9, null]);
  assert.deepEqual(json.bytes, bytesOf('{"x": 1.50}'));
  assert.ok(recordOf('{"offset":0,"timestamp":1,"key":null,"headers":[],"value":null}', false).absent);
});

test("a filter looks at the key, or at everything", () => {
  const record = recordOf(SOURCE.replace('"k"', '"Key 9"'), false);
  for (const text of ["", "key 9", "key: 9", "KEY:", "h: ", "A"]) assert.ok(matcher(text)(record), text);
  for (const text of ["key: a", "nowhere"]) assert.ok(!matcher(text)(record), text);
  assert.ok(!matcher("key:")(recordOf('{"offset":0,"timestamp":1,"key":null,"headers":[],"value":"key:"}', false)));
});

test("events, however they are cut", () => {
  const text = ':\n\nid:7~a\nevent: data\ndata:[1,\ndata:2]\n\nid:7~a\r\nevent: control\r\ndata: {"x":1}\r\n\r\ndata\r\revent: none\n\n';
  const wanted = [
    { event: "data", data: "[1,\n2]", id: "7~a" },
    { event: "control", data: '{"x":1}', id: "7~a" },
    { event: "message", data: "", id: "7~a" },
  ];
  for (const size of [1, 2, 3, 5, 1000]) {
    const parser = new SseParser();
    const events = [];
    for (let at = 0; at < text.length; at += size) events.push(...parser.feed(text.slice(at, at + size)));
    assert.deepEqual(events, wanted, `pieces of ${size}`);
    assert.equal(parser.pending, 0);
  }
});

test("a long event is taken in a time that grows with its length alone", () => {
  const parser = new SseParser();
  const piece = "x".repeat(1 << 14);
  parser.feed("data:");
  for (let count = 0; count < 1024; count += 1) parser.feed(piece);
  assert.ok(parser.pending > 16 << 20);
  const [event] = parser.feed("\n\n");
  assert.equal(event.data.length, 16 << 20);
});

test("rates of counters, over a restart too", () => {
  const series = new Series(4);
  assert.equal(series.rate(), null);
  series.add(0, 100);
  assert.equal(series.rate(), null);
  series.add(2000, 120);
  series.add(4000, 160);
  assert.equal(series.rate(), 15);
  assert.equal(series.rate(2), 20);
  assert.deepEqual(series.rates, [10, 20]);
  series.add(6000, 5);
  assert.equal(series.rate(), null);
  series.add(8000, 25);
  assert.equal(series.rate(), 10);
  assert.deepEqual(series.rates, [20, 0, 10]);
  assert.equal(series.length, 4);
});

test("only the series of rows that are shown are kept", () => {
  const book = new Book();
  for (let number = 0; number < 1000; number += 1) book.get(`row ${number}`).add(0, number);
  book.keep(["row 1", "row 2"]);
  assert.equal(book.count, 2);
  assert.equal(book.get("row 2").last, 2);
});

test("metrics as they are scraped", () => {
  const text =
    '# HELP a_total What it is.\n# TYPE a_total counter\na_total{class="2xx"} 12\na_total{class="5xx"} 0\n# TYPE b gauge\nb 0.25\n';
  assert.deepEqual(parseMetrics(text), [
    { name: "a_total", labels: '{class="2xx"}', value: 12, kind: "counter", help: "What it is." },
    { name: "a_total", labels: '{class="5xx"}', value: 0, kind: "counter", help: "What it is." },
    { name: "b", labels: "", value: 0.25, kind: "gauge", help: "" },
  ]);
});

test("money by hour", () => {
  const hour = (time, measured) => ({ time, measured, replicated: 2 * measured, diskless: 0 });
  const by_hour = [hour("2026-11-01T11:00:00Z", 9), hour("2026-11-01T12:00:00Z", 1), hour("2026-11-01T14:00:00Z", 3)];
  const series = hourly({ hours: 3, since: "2026-11-01T12:00:00Z", bill: { by_hour } });
  assert.deepEqual(series, { measured: [1, 0, 3], replicated: [2, 0, 6], diskless: [0, 0, 0] });
  assert.equal(pathOf([0, 5, 10], 10, 100, 40), "M0.0 40.0 L50.0 20.0 L100.0 0.0");
  assert.equal(pathOf([0, 0], 0, 100, 40), "M0.0 40.0 L100.0 40.0", "without money the lines lie at the bottom");
  assert.equal(pathOf([5], 10, 100, 40), "M0.0 20.0 H100");
  assert.deepEqual([0, 12.345, 1234.5, 0.0123456, 0.00000123].map((amount) => spelled(amount, "USD")), [
    "0.00 USD",
    "12.35 USD",
    "1,234.50 USD",
    "0.01235 USD",
    "0.000001 USD",
  ]);
});

test("spans and sizes that people type", () => {
  assert.deepEqual(["90s", "15min", "7d", "1.5h", "90", " 2w "].map(parseSeconds), [90, 900, 604_800, 5400, 90, 1_209_600]);
  assert.deepEqual(["10GiB", "64 MB", "1000", "1.5kib"].map(parseSize), [10 * 2 ** 30, 64e6, 1000, 1536]);
  for (const wrong of ["", "x", "-1d", "5 parsecs", "100ms"]) assert.equal(parseSeconds(wrong), null, wrong);
  for (const wrong of ["", "x", "-1", "5 parsecs"]) assert.equal(parseSize(wrong), null, wrong);
  assert.deepEqual([604_800, 5400, 90].map(spellSeconds), ["7d", "90min", "90s"]);
});

test("drafts of records are checked, and keep their text", () => {
  assert.deepEqual(checkJson('{"big": 12345678901234567890123}'), { count: 1, fault: "" });
  assert.deepEqual(checkJson("[1, [2]]"), { count: 2, fault: "" });
  assert.match(checkJson('{"a": 1,\n "b": }').fault, /^No valid JSON/);
  assert.match(checkJson("[]").fault, /appends nothing/);
  assert.match(checkJson(" ").fault, /is empty/);
  assert.deepEqual(headersOf("source=web\n\ntrace = a=b"), [["source", "web"], ["trace", "a=b"]]);
  assert.equal(headersOf("no header"), null);
  const draft = { text: "[1.50, 2]", asJson: true, contentType: "application/json" };
  assert.deepEqual(bodyOf(draft), { contentType: "application/json", body: "[1.50, 2]" });
  assert.equal(bodyOf({ ...draft, key: "a", headers: [["b", "c"]] }).body, '[{"key":"a","headers":[["b","c"]],"value":1.50},{"key":"a","headers":[["b","c"]],"value":2}]');
  assert.equal(bodyOf({ ...draft, text: 'say "x"', asJson: false, key: "" }).body, '[{"key":"","headers":[],"value":"say \\"x\\""}]');
  for (const asJson of [true, false]) for (const [, , text] of templatesOf(asJson, null)) assert.equal(asJson ? checkJson(text).fault : "", "");
  assert.deepEqual(templatesOf(true, "7")[0], ["newest", "Like the newest record", "7"]);
});

test("records of several partitions are merged by time", () => {
  const record = (partition, offset, appendTime) => ({ partition, offset, appendTime, timestamp: 0 });
  const one = [record(0, 0, 10), record(0, 1, 30)];
  const other = [record(1, 0, 20), record(1, 1, 30)];
  assert.deepEqual(merged([one, other], 3).map((each) => `${each.partition}:${each.offset}`), ["1:0", "0:1", "1:1"]);
  assert.deepEqual(merged([[], []], 3), []);
});

test("lines of a chart have gaps where nothing was measured", () => {
  const box = { begin: 0, end: 100, top: 10, gap: 25, width: 100, height: 10 };
  assert.equal(linePath([0, 10, 20, 30], [0, 10, null, 5], box), "M0.0 10.0 L10.0 0.0 M30.0 5.0");
  assert.equal(linePath([0, 50, 100], [10, 10, 10], box), "M0.0 0.0 M50.0 0.0 M100.0 0.0", "long pauses");
  assert.equal(linePath([0, 10], [0, 0], { ...box, top: 0 }), "M0.0 10.0 L10.0 10.0");
});

test("conditions on JSON values", () => {
  const value = bytesOf('{"a": {"b": 7, "b c": "Tea"}, "list": [{"n": 1.50}, {"n": 12345678901234567890123}], "ok": true, "none": null}');
  for (const met of ["", "$", "$.a.b=7", "$.a.b == 7.0", "$.a.b>6", "$.a.b<=7", "$.a.b!=8", '$.a["b c"]=Tea', "$.a['b c']~eA", "$.list[0].n=1.5", "$.list[*].n=12345678901234567890123", "$.ok=true", "$.none", "$.none=null", '$.a["b c"]="Tea"'])
    assert.ok(condition(met)(value), met);
  for (const unmet of ["$.a.b=8", '$.a.b="7"', "$.a.b>x", "$.b", "$.a.b.c", "$.list[2]", "$.list[*].n=12345678901234567890124", "$.ok=1", "$.a.b!=7"]) assert.ok(!condition(unmet)(value), unmet);
  for (const wrong of ["a=1", "$.a.b 7", "$..a", "$.a[x]=1"]) assert.equal(condition(wrong), null, wrong);
  assert.ok(!condition("$.a")(bytesOf("no JSON")));
  assert.ok(!condition("$.a")(new Uint8Array(2 << 20).fill(32)), "long values are not parsed");
});

test("lists of names and patterns", () => {
  assert.deepEqual(namesOf(" a/b, c%20d\na/b %E0"), ["a/b", "c d", "%E0"]);
  const fits = (pattern, name) => patternOf(pattern)(name);
  for (const [pattern, name] of [["runs/*", "runs/1"], ["runs/**", "runs"], ["runs/**/log", "runs/a/b/log"], ["**", "a/b"], ["a/%2a", "a/*"], ["a/%41", "a/%41"]]) assert.ok(fits(pattern, name), `${pattern} ${name}`);
  for (const [pattern, name] of [["runs/*", "runs"], ["runs/*", "runs/1/2"], ["runs/**/log", "runs/a"], ["a/%2a", "a/b"], ["A", "a"]]) assert.ok(!fits(pattern, name), `${pattern} ${name}`);
  assert.equal(patternOf("run*"), null);
  assert.deepEqual(["runs/*/log", "**", "a/%2Ab", "a/b/**"].map(prefixOf), ["runs/", "", "a/*b", "a/b/"]);
});

test("streams are read backward, merged by time, in bounded steps", async () => {
  const record = (offset, appendTime) => ({ offset, appendTime, timestamp: null, bytes: bytesOf(`${offset}`) });
  const held = { even: (offset) => record(offset, offset * 2), odd: (offset) => record(offset, offset * 2 + 1) };
  let asked = 0;
  const read = async ({ name }, begin, most) => {
    asked += 1;
    if (name === "gone") throw Object.assign(new Error("it was deleted"), { status: 404 });
    if (begin < 5) throw Object.assign(new Error("trimmed"), { status: 410, headers: new Headers({ "stream-retained-offset": token(5) }) });
    const size = Math.min(most, 7); // larger records: a page has seven
    return { records: Array.from({ length: size }, (_, index) => held[name](begin + index)), next: begin + size };
  };
  const streams = ["even", "odd", "gone"].map((name) => ({ name, first: 0, end: 40, asJson: true }));
  const scan = new Scan(streams, read);
  const first = await scan.older(10, () => true);
  assert.deepEqual(first.map(({ stream, offset }) => `${stream} ${offset}`).slice(0, 3), ["odd 39", "even 39", "odd 38"]);
  const rest = await scan.older(1000, () => true);
  assert.deepEqual([first, rest].flat().map(({ appendTime }) => appendTime), Array.from({ length: 70 }, (_, index) => 79 - index));
  assert.ok(scan.isOver);
  assert.deepEqual(scan.faults, [{ name: "gone", fault: "it was deleted" }]);
  const late = new Scan(streams.slice(0, 2), read, { since: 70 });
  assert.equal((await late.older(1000, ({ offset }) => offset % 2 === 0)).length, 4, "35 to 39, of both");
  assert.ok(late.isOver);
  asked = 0;
  const long = new Scan([{ name: "even", first: 10, end: 1_000_000, asJson: true }], read);
  assert.deepEqual(await long.older(10, () => false), []);
  assert.ok(!long.isOver && asked < 10_000, "a search without a match ends too");
  const failing = new Scan(streams.slice(0, 1), async (...place) => { if (place[1] < 33) throw new TypeError("down"); return read(...place); });
  await assert.rejects(failing.older(100, () => true), TypeError);
  assert.ok(!failing.isOver, "it can go on");
});

const RESULT = {
  columns: [{ name: "day", type: "DATE" }, { name: "n", type: "BIGINT" }, { name: "n", type: "DECIMAL(4,2)" }, { name: "t", type: "VARCHAR" }],
  rows: parse('[["2026-11-02", 9007199254740993, "1.50", "a,\\"b\\""], ["2026-11-01", null, "-2", ""]]').items,
};

test("results as CSV and JSON", () => {
  assert.equal(csvOf(RESULT), 'day,n,n,t\r\n2026-11-02,9007199254740993,1.50,"a,""b"""\r\n2026-11-01,,-2,""\r\n');
  assert.deepEqual(JSON.parse(jsonOf(RESULT))[1], { day: "2026-11-01", n: null, n_2: "-2", t: "" });
  assert.ok(jsonOf(RESULT).includes("9007199254740993"), "numbers keep their digits");
  assert.equal(jsonOf({ ...RESULT, rows: [] }), "[]\n");
});

test("what a result has to draw", () => {
  const plot = plotOf(RESULT);
  assert.equal(plot.kind, "lines");
  assert.deepEqual(plot.times, [Date.parse("2026-11-01"), Date.parse("2026-11-02")], "by time, whatever the order of the rows");
  assert.deepEqual(plot.series, [["n", [null, 9007199254740993]], ["n", [-2, 1.5]]]);
  const { columns, rows } = RESULT;
  const bars = plotOf({ columns: columns.slice(2), rows: Array(60).fill({ ...rows[0], items: rows[0].items.slice(2) }) });
  assert.deepEqual([bars.kind, bars.labels.length, bars.labels[0], bars.left], ["bars", 50, 'a,"b"', 10]);
  assert.equal(plotOf({ columns: columns.slice(3), rows }), null, "no numbers");
  assert.equal(plotOf({ columns, rows: [] }), null);
});

test("completion, and the history of queries", () => {
  assert.equal(wordBefore("select str from orders", 10), "str");
  assert.deepEqual(tablesIn("select * from Orders__x, orders", ["orders", "x"]), ["orders"]);
  assert.deepEqual(suggestions("o", ["offset"], ["orders", "o", "offset"]), ["offset", "orders"]);
  assert.deepEqual(suggestions("", ["offset"], ["orders"]), []);
  assert.deepEqual(completed("select o from orders", 8, "offset"), { text: 'select "offset" from orders', caret: 15 });
  assert.deepEqual(completed('select "o', 9, "offset"), { text: 'select "offset', caret: 14 });
  let kept = [];
  for (let number = 0; number < 60; number += 1) kept = withQuery(kept, `select ${number}`);
  assert.equal(kept.length, QUERIES_MAX);
  assert.deepEqual(withQuery(kept, "select 57").slice(0, 3), ["select 57", "select 59", "select 58"]);
  assert.equal(withQuery(kept, "x".repeat(20_000)), kept);
});

test("the records of partitions from a place on", () => {
  const found = (typed, first, end) => beginOf(parsePlace(typed), first, end);
  assert.deepEqual([found("7", 0, 9), found("7", 8, 9), found("9", 0, 9)], [{ record: 7 }, { record: 8 }, null]);
  assert.deepEqual([found("-2", 0, 9), found("-20", 3, 9), found("start", 3, 9)], [{ record: 7 }, { record: 3 }, { record: 3 }]);
  assert.deepEqual(found("2026-11-01T00:00Z", 0, 9), { time: Date.UTC(2026, 10, 1) });
  assert.equal(found("start", 4, 4), null, "an empty partition has none");
  const record = (partition, offset, timestamp) => ({ partition, offset, timestamp });
  const order = byTime([[record(1, 0, 5), record(1, 1, 7)], [record(0, 4, 5)]]);
  assert.deepEqual(order.map(({ partition, offset }) => `${partition}:${offset}`), ["0:4", "1:0", "1:1"]);
});

test("the difference of two texts", () => {
  const shown = (old, now) => differing(old, now).map(({ mark, text }) => mark + text);
  assert.deepEqual(shown("a\nb\nc", "a\nx\nc"), [" a", "-b", "+x", " c"]);
  assert.deepEqual(shown("a\nb", "a\nb"), [" a", " b"]);
  assert.deepEqual(shown("a\nc\ne", "a\nb\nc\nd\ne"), [" a", "+b", " c", "+d", " e"]);
  assert.deepEqual(shown("a\na", "a"), [" a", "-a"]);
  const many = (mark) => Array.from({ length: 2000 }, (_, number) => `${mark}${number}`).join("\n");
  const long = differing(many("a"), many("b"));
  assert.deepEqual([long.length, long[0].text, long[2000].text], [4000, "a0", "b0"]);
});

test("many streams are followed on from where each was, without the zeros of its offset", async () => {
  globalThis.document = { baseURI: "http://node:4437/console/" };
  const { ManyStreams, OneStream } = await from("tail");
  const source = new ManyStreams({ match: "runs/**" }, (record) => record.offset > 0);
  assert.equal(source.target().href, "http://node:4437/v1/live?offset=now&match=runs%2F**");
  const control = (fields) => source.read({ event: "control", data: JSON.stringify(fields) });
  const at = (record, byte) => `${String(record).padStart(16, "0")}_${String(byte).padStart(16, "0")}`;
  control({ stream: "runs/a", contentType: "application/json", streamNextOffset: at(0, 0) });
  control({ stream: "runs/b", contentType: "text/plain", streamNextOffset: at(7, 40) });
  const record = (offset, value) => `{"offset": ${offset}, "timestamp": null, "append_time": 5, "key": null, "headers": [], "value": ${value}}`;
  const { records } = source.read({ event: "data", data: `{"stream":"runs/a","streamNextOffset":"${at(2, 12)}","upToDate":true,"data":[${record(0, "1")}, ${record(1, "1.50")}]}` });
  assert.deepEqual(records.map((each) => [each.stream, each.offset, new TextDecoder().decode(each.bytes), each.asJson]), [["runs/a", 1, "1.50", true]]);
  assert.equal(source.looked, 2);
  assert.equal(source.target("cursor").search, "?offset=now&match=runs%2F**", "a cursor is of the address that it came from");
  assert.deepEqual(source.target().searchParams.getAll("stream"), ["runs/a@2_12", "runs/b@7_40"]);
  control({ stream: "runs/b", streamDeleted: true });
  control({ stream: "runs/a", error: { code: "CORRUPT", message: "broken" } });
  assert.deepEqual([source.streams, [...source.faults]], [1, [["runs/a", "broken"]]]);
  assert.deepEqual(source.read({ event: "control", data: '{"allUpToDate":true,"streams":1}' }), { records: [] });
  const list = new ManyStreams({ names: ["a", "b"] }, () => true);
  list.read({ event: "control", data: JSON.stringify({ stream: "a", streamNextOffset: at(1, 2) }) });
  assert.deepEqual(list.target().searchParams.getAll("stream"), ["a@1_2", "b"]);
  const one = new OneStream("a", true, 3);
  assert.equal(one.read({ event: "data", data: `[${record(3, "{}")}]` }), null);
  const read = one.read({ event: "control", data: `{"streamNextOffset":"${at(4, 9)}","streamClosed":true}` });
  assert.deepEqual([read.records.length, read.closed, one.next], [1, true, 4]);
});
