"""Requests that no client should send, and some that one might: everything of the protocol and of
the product's own API, malformed in all ways."""

from __future__ import annotations

import random
from urllib.parse import quote

import msgspec
from fuzz.bytes import anything, damaged, noise, number, text

METHODS = (
    "GET",
    "GET",
    "GET",
    "POST",
    "POST",
    "PUT",
    "PUT",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "CONNECT",
    "BREW",
    "get",
    "PRI",
)
PATHS = (
    "/v1/stream/{n}", "/v1/stream/{n}", "/v1/stream/{n}", "/v1/streams/{n}", "/{n}", "/v1/streams", "/v1/stream/{n}/retention", "/v1/stream/{n}/retention/{o}",
    "/", "/livez", "/readyz", "/health", "/metrics", "/v1/node", "/v1/cluster", "/v1/cluster/health", "/v1/cluster/nodes", "/v1/cluster/nodes/{i}/{w}",
    "/v1/cluster/groups/{i}/{w}", "/v1/buckets", "/v1/buckets/{w}", "/v1/buckets/{w}/retention", "/v1/buckets/{w}/profile", "/v1/tables", "/v1/tables/{w}", "/v1/tables/{w}/schema",
    "/v1/sql", "/v1/stream/__ds/subscriptions", "/v1/stream/__ds/subscriptions/{w}", "/v1/stream/__ds/subscriptions/{w}/streams",
    "/v1/stream/__ds/subscriptions/{w}/streams/{n}", "/v1/stream/__ds/subscriptions/{w}/claim", "/v1/stream/__ds/subscriptions/{w}/ack",
    "/v1/stream/__ds/subscriptions/{w}/callback", "/v1/stream/__ds/subscriptions/{w}/release", "/v1/stream/__ds/jwks.json", "/v1/stream/__ds/{w}",
    "/console", "/console/{w}", "/favicon.ico", "/v1/admin/tokens", "/v1/admin/{w}", "/{w}", "*", "http://x/v1/stream/{n}", "/v1/{w}/{w}",
)  # fmt: skip
ADMIN_PATHS = (
    "/v1/admin/tokens", "/v1/admin/tokens", "/v1/admin/tokens/{w}", "/v1/admin/jwts", "/v1/admin/flush", "/v1/admin/store/{w}", "/v1/admin/backup",
    "/v1/admin/backup/{w}", "/v1/admin/tables/{w}/plan", "/v1/admin/tables/{w}/lease", "/v1/admin/tables/{w}/commit", "/v1/admin/tables/{w}/fail",
    "/v1/admin/tables/{w}/abandon", "/v1/admin/tables/{w}/derive", "/v1/tables", "/v1/tables/{w}", "/v1/tables/{w}/alter", "/v1/cluster/nodes",
    "/v1/cluster/nodes/{i}/{w}", "/v1/cluster/groups/{i}/{w}", "/v1/cluster", "/v1/cost", "/v1/node", "/metrics", "/health", "/readyz", "/livez",
)  # fmt: skip
WORDS = (
    "cordon",
    "drain",
    "move",
    "x",
    "fuzz",
    "default",
    "..",
    "%2e",
    "%",
    "%00",
    "%ff",
    "snapshot",
    "a b",
    "%0d%0aX-Evil:1",
    "é",
    "_ds",
    "a" * 2000,
)
OFFSETS = (
    "-1", "now", "0", "1", "-2", "", "0000000000000000_0000000000000000", "0000000000000001_0000000000000001", "9999999999999999_9999999999999999",
    "0000000000000000_9999999999999999", "9999999999999999_0000000000000000", "00000000000000000_0", "1_1", "abc", "0x10", "NaN", "²",
    "0" * 5000, "-1,-1", "%00", "18446744073709551616", "0000000000000001_00000000000000010", "+1", " 1",
)  # fmt: skip
QUERIES = (
    "offset",
    "live",
    "cursor",
    "timeout_ms",
    "max_bytes",
    "from_time",
    "consistency",
    "prefix",
    "after",
    "limit",
    "access_token",
    "rows",
    "bucket",
    "x",
)
VALUES = (
    "sse",
    "long-poll",
    "true",
    "local",
    "leader",
    "json",
    "now",
    "start",
    "1h",
    "2020-01-01T00:00:00Z",
    "9" * 30,
    "-5",
    "1e9",
    "0.5",
    "%0d%0a",
)
HEADERS = (
    "Content-Type", "Accept", "Accept-Encoding", "If-Match", "If-None-Match", "If-Modified-Since", "Range", "Stream-TTL", "Stream-Expires-At",
    "Stream-Closed", "Stream-Seq", "Stream-Incarnation", "Stream-Forked-From", "Stream-Fork-Offset", "Stream-Fork-Sub-Offset", "Stream-Cursor",
    "Stream-Retention-Age", "Stream-Retention-Bytes", "Producer-Id", "Producer-Epoch", "Producer-Seq", "Last-Event-ID", "Origin",
    "Access-Control-Request-Method", "Access-Control-Request-Headers", "Authorization", "Content-Encoding", "Upgrade", "Connection", "Expect",
    "Transfer-Encoding", "Content-Length", "Cookie", "X-Request-Id", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Host", "TE",
    "Trailer", "Sec-WebSocket-Key", "Via", "Date", "Cache-Control", "X-A",
)  # fmt: skip
TYPES = (
    "application/json",
    "application/json; charset=utf-8",
    "text/plain",
    "application/octet-stream",
    "",
    ";",
    "json",
    "a/b" * 200,
    "text/event-stream",
)
JSONS = (
    b"[]", b"[[]]", b"[[1,2],3]", b"{}", b"null", b"1", b'""', b"[1,]", b"[1 2]", b'{"a":1,"a":2}', b"[" * 127 + b"]" * 127, b"[" * 129 + b"]" * 129,
    b"[" * 50_000, b"[" * 50_000 + b"]" * 50_000, b"[" + b"1," * 20_000 + b"1]", b'["\\ud800"]', b'["\xff"]', b"[1e999]", b"[-0]", b"\xef\xbb\xbf[1]",
    b"[NaN]", b" [1] ", b"[1]\x00", b'["' + b"x" * 100_000 + b'"]', b"[1][2]", b"[0123]", b'{"a":' * 200 + b"1" + b"}" * 200,
)  # fmt: skip


def header_value(chance: random.Random, name: str) -> str:
    known = {
        "Content-Type": TYPES,
        "Stream-Closed": ("true", "TRUE", "false", "1", ""),
        "Connection": (
            "close",
            "keep-alive",
            "Upgrade",
            "close, keep-alive",
            "x",
            "HTTP2-Settings, Upgrade",
        ),
        "Upgrade": ("websocket", "h2c", "TLS/1.0"),
        "Expect": ("100-continue", "100-Continue", "coffee", ""),
        "Transfer-Encoding": (
            "chunked",
            "Chunked",
            "gzip, chunked",
            "identity",
            "chunked, chunked",
            "xchunked",
        ),
        "Last-Event-ID": OFFSETS,
        "Stream-Fork-Offset": OFFSETS,
        "Stream-Cursor": OFFSETS,
        "Stream-Forked-From": (
            "/v1/stream/fuzz/a",
            "fuzz/a",
            "/",
            "/v1/streams",
            "/v1/stream/fuzz/a?x",
            "/v1/stream/%ff",
            "http://x/v1/stream/a",
        ),
        "Stream-Expires-At": (
            "2030-01-01T00:00:00Z",
            "0000-00-00T00:00:00Z",
            "9999-12-31T23:59:60Z",
            "2030-01-01T00:00:00+99:99",
            "soon",
            "1",
        ),
        "Authorization": (
            "Bearer x",
            "Basic eDp5",
            "Bearer",
            "Bearer " + "x" * 9000,
            "Bearer a.b.c",
        ),
        "Host": (
            "x",
            "x:1",
            "localhost:1",
            "LOCALHOST.",
            "a.localhost",
            "[::1]",
            "a b",
            "",
            "x" * 300,
            "evil.example",
        ),
        "Accept": (
            "application/x-ndjson",
            "text/event-stream",
            "*/*",
            "application/json;q=0",
            ",,,",
        ),
    }
    if name in known and chance.random() < 0.8:
        return chance.choice(known[name])
    drawn = chance.random()
    if drawn < 0.5:
        return str(number(chance))
    return text(chance) if drawn < 0.9 else "x" * chance.choice((256, 257, 1024, 8192, 65_000))


def target(chance: random.Random, names: list[str], paths: tuple[str, ...] = PATHS) -> str:
    path = chance.choice(paths)
    while "{" in path:
        for mark, made in (
            ("{n}", lambda: chance.choice([*names, *WORDS, "fuzz/" + chance.choice(WORDS)])),
            ("{o}", lambda: chance.choice(OFFSETS)),
            ("{i}", lambda: str(chance.choice((0, 1, 9, 99, -1, 2**70)))),
            ("{w}", lambda: chance.choice(WORDS)),
        ):
            path = path.replace(mark, made(), 1)
    if chance.random() < 0.6:
        pairs = []
        for _ in range(chance.randrange(1, 5)):
            name = chance.choice(QUERIES)
            value = chance.choice(
                OFFSETS
                if name in ("offset", "cursor", "after") and chance.random() < 0.8
                else VALUES
            )
            pairs.append(f"{name}={value if chance.random() < 0.5 else quote(value)}")
        path += "?" + "&".join(pairs)
    return path.replace(" ", "%20") if chance.random() < 0.9 else path


def body(chance: random.Random) -> bytes:
    drawn = chance.random()
    if drawn < 0.3:
        return b""
    if drawn < 0.6:
        return chance.choice(JSONS)
    if drawn < 0.8:
        return msgspec.json.encode(anything(chance))
    return (
        damaged(
            chance,
            b'{"type":"pull-wake","pattern":"**","webhook":{"url":"http://x/"},"lease_ttl_ms":1000}',
        )
        if drawn < 0.9
        else noise(chance, 3000)
    )


def chunked(chance: random.Random, data: bytes, *, broken: bool) -> bytes:
    """Encode a body in chunks of any size; `broken`: with one framing error."""
    found, at = b"", 0
    while at < len(data):
        size = chance.choice((1, 2, 7, 100, 70_000))
        piece = data[at : at + size]
        extension = chance.choice(("", ";a=b", " ;x")) if chance.random() < 0.1 else ""
        found += (
            f"{len(piece):{chance.choice(('x', 'X'))}}{extension}\r\n".encode() + piece + b"\r\n"
        )
        at += size
    found += b"0\r\n" + (b"Trailer: x\r\n" if chance.random() < 0.1 else b"") + b"\r\n"
    return damaged(chance, found) if broken else found


def near(chance: random.Random, names: list[str]) -> bytes:
    """Return a request that is right but for a thing or two, to a stream that may be there: it
    comes as far as what looks at that thing."""
    method, live = (
        chance.choice(("GET", "GET", "GET", "POST", "POST", "PUT", "HEAD")),
        chance.choice(("", "", "long-poll", "sse")),
    )
    query = (
        {"offset": chance.choice(OFFSETS[:2]), "live": live, "timeout_ms": "1"}
        if method == "GET"
        else {}
    )
    headers = {"Host": "localhost", "Content-Type": "application/json"}
    if method == "POST" and chance.random() < 0.5:
        headers |= {
            "Producer-Id": "v",
            "Producer-Epoch": "0",
            "Producer-Seq": str(chance.randrange(3)),
        }
    content = {"POST": b"[1]", "PUT": chance.choice((b"", b"[1]"))}.get(method, b"")
    for _ in range(chance.choice((1, 1, 2))):
        act = chance.randrange(4)
        if act == 0:
            query[chance.choice(("offset", "offset", *QUERIES))] = chance.choice(
                OFFSETS if chance.random() < 0.6 else VALUES
            )
        elif act == 1:
            name = chance.choice(HEADERS)
            headers[name] = header_value(chance, name)
        elif act == 2:
            name = chance.choice(sorted(headers))
            headers[name] = header_value(chance, name)
        elif method in ("POST", "PUT"):
            content = body(chance)
    path = chance.choice(names) + chance.choice(
        ("", "", "", "/retention", "/retention/" + chance.choice(OFFSETS))
    )
    spelled = "&".join(f"{name}={quote(value, safe='%')}" for name, value in query.items() if value)
    lines = [
        f"{method} /v1/stream/{quote(path)}{'?' + spelled if spelled else ''} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if content and "Transfer-Encoding" not in headers and "Content-Length" not in headers:
        lines.append(f"Content-Length: {len(content)}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "replace") + content


def request(chance: random.Random, names: list[str]) -> bytes:
    """Return a request that may be anything."""
    if chance.random() < 0.4:
        return near(chance, names)
    content = body(chance)
    method = chance.choice(METHODS)
    version = chance.choice(
        ("HTTP/1.1",) * 12
        + ("HTTP/1.0", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.10", "http/1.1", "")
    )
    lines = [f"{method} {target(chance, names)} {version}"]
    if chance.random() < 0.95:
        lines.append("Host: localhost")
    framing = chance.random()
    if framing < 0.2:
        lines.append("Transfer-Encoding: chunked")
        content = chunked(chance, content, broken=chance.random() < 0.5)
    elif content or framing < 0.5:
        wrong = chance.random() < 0.1
        lines.append(
            "Content-Length: "
            f"{chance.choice((0, len(content) + 1, -1, '', 2**40)) if wrong else len(content)}"
        )
    if chance.random() < 0.7:
        lines.append(
            f"Content-Type: {chance.choice(TYPES) if chance.random() < 0.3 else 'application/json'}"
        )
    for _ in range(chance.choice((0, 0, 1, 2, 4))):
        name = chance.choice(HEADERS)
        lines.append(f"{name}: {header_value(chance, name)}")
    if chance.random() < 0.01:
        lines += [f"X-{at}: {'y' * chance.choice((1, 900))}" for at in range(150)]
    head = "\r\n".join([*lines, "", ""]).encode("utf-8", "replace")
    if chance.random() < 0.1:
        head = damaged(chance, head)
    return head + content


def large(chance: random.Random, stream: str) -> bytes:
    """Make an append of one of the bodies that take longest to parse."""
    size = chance.choice((1, 4, 12)) << 20
    record = chance.choice((b"[[[[]]]]", b'"["', b"[]", b"1", b"{}", b'{"a":[1,2],"b":"c"}'))
    content = b"[" + record + (b"," + record) * (size // (len(record) + 1)) + b"]"
    content = content if chance.random() < 0.7 else b"[" + content + b"]"
    head = (
        f"POST /v1/stream/{stream} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
