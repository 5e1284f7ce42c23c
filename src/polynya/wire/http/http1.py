"""A strict HTTP/1.1 request parser (RFC 9112). It is the only parser, so no two readers disagree
about the same bytes.

Ambiguous input is rejected, not repaired: both length headers, repeated or signed lengths, bare LF
or CR, folded lines, space before a colon, unknown transfer codings. Request and header lines repeat
across requests, so parsed ones are kept in bounded caches.
"""

from __future__ import annotations

import re

import msgspec

from polynya.base.limits import HEADER_BLOCK_BYTES_MAX, HEADERS_MAX

CHUNKED = -1  # `Head.length` of a chunked body

_CACHE_LINES_MAX = 8192
_CACHED_LINE_BYTES_MAX = 256
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_FIELD_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
# RFC 3986: a name, or an address in brackets, and a port
_HOST = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=%:\[\]]*")
_ABSOLUTE = re.compile(r"https?://([^/?#]*)", re.ASCII | re.IGNORECASE)
_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_BARE_LF = re.compile(rb"(?<!\r)\n")
_LENGTH_DIGITS_MAX = 15
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_CHUNK_LINE_MAX = 1024
_LISTS = frozenset(
    b"accept accept-charset accept-encoding accept-language cache-control connection forwarded "
    b"if-match if-none-match pragma record-header te trailer "
    b"upgrade via x-forwarded-for x-forwarded-host x-forwarded-proto cookie".decode().split()
)


class BadRequest(Exception):
    """An invalid request. The connection cannot continue after it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class Head(msgspec.Struct, gc=False):
    """A request line and its headers. Names are in lower case, values are Latin-1 text, and
    repeated list fields are joined by commas."""

    method: str
    target: str
    headers: dict[str, str]
    length: int  # bytes of the body, or CHUNKED
    keep_alive: bool
    minor: int  # the x of HTTP/1.x


class HeadParser:
    """The parser of request heads, with its caches. One instance per process."""

    def __init__(self) -> None:
        self._lines: dict[bytes, tuple[str, str]] = {}
        self._firsts: dict[bytes, tuple[str, str, int, str]] = {}

    def parse(self, block: bytes) -> Head:
        """Parse a head. `block` is everything before the empty line, without the preceding line
        end. Raises `BadRequest`."""
        lines = block.split(b"\r\n")
        if len(lines) > HEADERS_MAX + 1:
            raise BadRequest(
                431, "HEADERS_TOO_LARGE", f"a request has at most {HEADERS_MAX} header lines"
            )
        known = self._firsts.get(lines[0])
        method, target, minor, authority = known if known is not None else self._first(lines[0])
        headers: dict[str, str] = {}
        cache = self._lines
        del lines[0]
        for line in lines:
            pair = cache.get(line)
            if pair is None:
                pair = self._line(line)
            name, value = pair
            if name in headers:
                value = _join(name, headers[name], value)
            headers[name] = value
        length = _body_length(headers, minor)
        if authority:
            headers["host"] = authority  # RFC 9112 3.2.2: the received Host is ignored
        return Head(method, target, headers, length, _keeps_alive(headers, minor), minor)

    def _first(self, line: bytes) -> tuple[str, str, int, str]:
        parts = line.split(b" ")
        if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
            raise BadRequest(
                400,
                "BAD_REQUEST_LINE",
                "the request line must be: METHOD, one space, target, one space, HTTP/1.1",
            )
        if parts[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
            if parts[2].startswith(b"HTTP/"):
                raise BadRequest(
                    505, "HTTP_VERSION", "this server speaks HTTP/1.1, and HTTP/2 where it is on"
                )
            raise BadRequest(400, "BAD_REQUEST_LINE", "the request line must end in HTTP/1.1")
        target = parts[1].decode("latin-1")
        parsed = (parts[0].decode(), target, parts[2][-1] - 48, _authority(target))
        if len(line) <= _CACHED_LINE_BYTES_MAX and b"?" not in line:  # queries rarely repeat
            if len(self._firsts) >= _CACHE_LINES_MAX:
                self._firsts.clear()
            self._firsts[line] = parsed
        return parsed

    def _line(self, line: bytes) -> tuple[str, str]:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name):
            raise BadRequest(
                400,
                "BAD_HEADER",
                "a header line must be a name, a colon without space before it, and a value",
            )
        if not _FIELD_VALUE.fullmatch(value):
            raise BadRequest(
                400, "BAD_HEADER", f"the value of {name.decode()} holds a control character"
            )
        pair = (name.lower().decode(), value.strip(b" \t").decode("latin-1"))
        if pair[0] == "host" and not _HOST.fullmatch(pair[1]):  # the value is echoed in Location
            raise BadRequest(400, "BAD_HEADER", "the value of Host is no host and port")
        if len(line) <= _CACHED_LINE_BYTES_MAX:
            if len(self._lines) >= _CACHE_LINES_MAX:
                self._lines.clear()
            self._lines[line] = pair
        return pair


def _authority(target: str) -> str:
    """Return HOST:PORT of a target in absolute form; empty for other forms."""
    match = _ABSOLUTE.match(target)
    if match is None:
        return ""
    if not match[1] or not _HOST.fullmatch(match[1]):
        raise BadRequest(400, "BAD_TARGET", "the request target names no host and port")
    return match[1]


def _join(name: str, known: str, value: str) -> str:
    if name not in _LISTS:
        raise BadRequest(400, "DUPLICATE_HEADER", f"the header {name} is given more than once")
    return f"{known}, {value}"


def _body_length(headers: dict[str, str], minor: int) -> int:
    length = headers.get("content-length")
    coding = headers.get("transfer-encoding")
    if minor and "host" not in headers:
        raise BadRequest(400, "HOST_MISSING", "an HTTP/1.1 request needs a Host header")
    if coding is not None:
        if length is not None:
            raise BadRequest(
                400,
                "BOTH_LENGTHS",
                "a request has either Content-Length or Transfer-Encoding, not both",
            )
        if coding.lower() != "chunked" or not minor:
            raise BadRequest(
                400, "TRANSFER_CODING", "the only transfer coding taken is chunked, on HTTP/1.1"
            )
        return CHUNKED
    if length is None:
        return 0
    if not (length.isascii() and length.isdecimal() and len(length) <= _LENGTH_DIGITS_MAX):
        raise BadRequest(
            400, "BAD_LENGTH", "Content-Length must be a number of bytes, digits alone"
        )
    return int(length)


def _keeps_alive(headers: dict[str, str], minor: int) -> bool:
    connection = headers.get("connection")
    if connection is None:
        return minor == 1
    options = connection.lower()
    if "close" in options:
        return False
    return minor == 1 or "keep-alive" in options


def find_head(buffer: bytes, position: int) -> int:
    """Return the end of the head that begins at `position` (the index of its empty line), or -1 if
    it is incomplete.

    Raises `BadRequest` if it is too large or cannot become a valid head.
    """
    end = buffer.find(b"\r\n\r\n", position)
    size = (end if end >= 0 else len(buffer)) - position
    if size > HEADER_BLOCK_BYTES_MAX:
        raise BadRequest(
            431,
            "HEADERS_TOO_LARGE",
            f"request line and headers have at most {HEADER_BLOCK_BYTES_MAX} bytes",
        )
    if end < 0:
        _refuse_hopeless(buffer, position)
    return end


def _refuse_hopeless(buffer: bytes, position: int) -> None:
    """Reject a bare LF, which would never complete a head."""
    if _BARE_LF.search(buffer, position):
        raise BadRequest(400, "BARE_LF", "lines end in CR LF")


class ChunkedBody:
    """Decodes one chunked body, fed in pieces of any size. With `keep` False, the data is counted
    and dropped."""

    __slots__ = ("_buffer", "_left", "_state", "_trailer_bytes", "data", "done", "keep", "size")

    def __init__(self) -> None:
        self.data = bytearray()
        self.size = 0
        self.done = False
        self.keep = True
        self._buffer = b""
        self._state = "size"
        self._left = 0
        self._trailer_bytes = 0

    def feed(self, piece: bytes) -> bytes:
        """Decode a piece. Return the bytes after the body once `done`. Raises `BadRequest`."""
        buffer = self._buffer + piece if self._buffer else piece
        position = 0
        while not self.done:
            if self._state == "data":
                position = self._take(buffer, position)
                if self._left:
                    break
                self._state = "end"
            if self._state == "end":
                if len(buffer) - position < 2:
                    break
                if buffer[position : position + 2] != b"\r\n":
                    raise BadRequest(400, "BAD_CHUNK", "a chunk must end in CR LF")
                position += 2
                self._state = "size"
            line_end = buffer.find(b"\r\n", position)
            if line_end < 0:
                if len(buffer) - position > _CHUNK_LINE_MAX or b"\n" in buffer[position:]:
                    raise BadRequest(
                        400,
                        "BAD_CHUNK",
                        "a chunk begins with its size in hexadecimal, on a line of its own",
                    )
                break
            self._line(buffer[position:line_end])
            position = line_end + 2
        self._buffer = b"" if self.done else buffer[position:]
        return buffer[position:] if self.done else b""

    def _take(self, buffer: bytes, position: int) -> int:
        end = min(len(buffer), position + self._left)
        if self.keep:
            self.data += memoryview(buffer)[position:end]
        self._left -= end - position
        return end

    def _line(self, line: bytes) -> None:
        if self._state == "trailer":
            self._trailer_bytes += len(line)
            if self._trailer_bytes > HEADER_BLOCK_BYTES_MAX:
                raise BadRequest(431, "HEADERS_TOO_LARGE", "the trailers are too large")
            if not line:
                self.done = True
            elif b":" not in line or not _FIELD_VALUE.fullmatch(line):
                raise BadRequest(
                    400, "BAD_HEADER", "a trailer line must be a name, a colon and a value"
                )
            return
        match = _CHUNK_SIZE.fullmatch(line)
        if match is None:
            raise BadRequest(400, "BAD_CHUNK", "a chunk begins with its size in hexadecimal")
        self._left = int(match[1], 16)
        self.size += self._left
        self._state = "data" if self._left else "trailer"
