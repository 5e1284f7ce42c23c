// The pure modules of the console: formats, places, events, JSON as it was written, rates, metrics.
import assert from "node:assert/strict";
import { test } from "node:test";

const from = (name) => import(new URL(`${name}.js`, `file://${process.env.CONSOLE}/`));
const { bytes, compact, duration, parsePlace, parseSeconds, parseSize, parseToken, quoted, spellSeconds, token, visible, visibleLines } = await from("format");
const { elements, Members, parse, plain } = await from("json");
const { bodyOf, checkJson, headersOf, templatesOf } = await from("drafts");
const { linePath } = await from("charts");
const { merged } = await from("merge");
const { matcher } = await from("filter");
const { recordOf } = await from("whole");
const { SseParser } = await from("sse");
const { Book, Series } = await from("rates");
const { parseMetrics } = await from("metrics");
const { hourly, pathOf, spelled } = await from("money");

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
