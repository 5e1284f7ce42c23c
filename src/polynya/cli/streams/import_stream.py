"""`polynya import`: copy a stream from another server exactly once, across interruptions.

The copy records its own position. Each append carries `Stream-Seq: OFFSET+COUNT`: the source offset
where a page starts, and how much of that page is stored after the append. The server accepts only
increasing values, so nothing is stored twice. HEAD returns the last value, where the next import
resumes. Offsets of every server sort as text; so do these values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from struct import iter_unpack
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import click

from polynya.cli.remote.client import (
    JSON_TYPE,
    REASON,
    Client,
    error_of,
    is_json,
    new_stream_path,
    patiently,
    server_option,
    stream_path,
    with_reason,
)
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.complete import complete_stream

if TYPE_CHECKING:
    import httpx

PART_BYTES = 4 << 20  # bytes per append; a larger record goes alone
LONG_POLL_SECONDS = 90.0
COPIED = ("stream-ttl", "stream-expires-at")
LATER = frozenset((408, 429, 500, 502, 503, 504))  # statuses of transient failures


@click.command("import")
@click.argument("url")
@click.argument("stream", required=False, shell_complete=complete_stream)
@options.flag(
    "--follow", "-f", help="Keep copying new records until the source is closed or Ctrl-C."
)
@options.flag("--keep-open", help="Do not close the copy when the source is closed.")
@options.value(
    "--header NAME: VALUE",
    "headers",
    multiple=True,
    help="Send this header to the source, such as a token.",
)
@options.retry("1min", "Retry timeout, for both servers.")
@options.json_flag("Print the result as JSON.")
@server_option
def import_command(
    client: Client,
    url: str,
    stream: str | None,
    follow: bool,
    keep_open: bool,
    headers: tuple[str, ...],
    retry: float,
    as_json: bool,
) -> None:
    """Copy the stream at URL, on a Durable Streams or Ursula server, into STREAM (default: the same
    name).

    The copy gets the source's content type and lifetime, the same bytes per record, and new
    offsets. It is closed when the source is. A repeated command resumes where the copy ends.

    \b
    polynya import http://old:4437/v1/stream/orders
    polynya import http://ursula:4437/shop/orders shop/orders --follow
    polynya import https://old/v1/stream/orders --header "Authorization: Bearer $TOKEN"
    """
    source = ImportSource(url, dict(map(_header, headers)), retry)
    name = stream or _name_of(url)
    copy = ImportCopy(client, source, name)
    copy.prepare()
    try:
        closed = copy.run(follow=follow)
    except KeyboardInterrupt:
        closed = False
        if not follow:
            raise
    finally:
        source.close()
    if closed and not keep_open:
        client.call("POST", stream_path(name), headers={"stream-closed": "true"}, stream=name)
    if as_json:
        output.json_line(
            {
                "name": name,
                "source": url,
                "bytes": copy.bytes,
                "resumed": copy.resumed,
                "source_offset": copy.at,
                "closed": closed,
            }
        )
    else:
        state = "and is closed" if closed else f"up to offset {copy.at} of the source"
        output.notice(f"{name}: {output.size(copy.bytes)} copied, {state}")


class ImportSource:
    """The source stream. Failed reads are retried for `patience` seconds."""

    def __init__(self, url: str, headers: Mapping[str, str], patience: float) -> None:
        import httpx

        parts = urlsplit(url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.query
            or parts.fragment
        ):
            raise click.UsageError(
                f"{url!r} is not the URL of a stream; expected a form like "
                "http://host:4437/v1/stream/orders"
            )
        self.url = url
        self.patience = patience
        self._http = httpx.Client(
            headers=headers, timeout=httpx.Timeout(LONG_POLL_SECONDS, connect=5.0)
        )

    def ask(self, method: str, params: Mapping[str, str] | None = None) -> httpx.Response:
        """Return a successful response. Raises `exits.Ended`."""
        import httpx

        def attempt() -> httpx.Response:
            try:
                answer = self._http.request(method, self.url, params=params)
            except httpx.TransportError as error:
                raise exits.Unreachable(
                    f"no response from {self.url}: {error or type(error).__name__}",
                    hint="Check that the source is running.",
                ) from None
            if answer.is_success:
                return answer
            ask = partial(self._http.get, self.url, params=REASON)
            raise _no(self.url, with_reason(method, answer, ask))

        return patiently(attempt, self.patience, exits.Unreachable, says=True)

    def close(self) -> None:
        self._http.close()


class ImportCopy:
    """`at` is the source offset of the next or current page; `_here` is how many of its records or
    bytes are stored."""

    def __init__(self, client: Client, source: ImportSource, name: str) -> None:
        self._client = client
        self._source = source
        self._name = name
        self._type = ""
        self.at = "-1"
        self._here = 0
        self.bytes = 0
        self.resumed = False

    def prepare(self) -> None:
        """Create the copy, or find its end. Raises `exits.Refused` if the stream is unrelated."""
        path = new_stream_path(self._name)
        known = self._source.ask("HEAD").headers
        self._type = known.get("content-type", "application/octet-stream")
        wanted = {"content-type": self._type} | {key: known[key] for key in COPIED if key in known}
        answer = self._client.send("HEAD", path)
        if answer.status_code == 404:
            self._client.call("PUT", path, headers=wanted)
            return
        if answer.is_error:
            raise self._client.refused(answer, stream=self._name)
        held = answer.headers.get("stream-seq", "")
        if held:
            self._go_on_at(held)
        elif answer.headers.get("stream-next-offset", "").strip("0_"):
            raise exits.Refused(
                f"the stream {self._name} holds records that were not imported",
                hint="Pass another name as the second argument.",
            )
        if is_json(answer.headers.get("content-type", "")) != is_json(self._type):
            raise exits.Refused(
                f"the stream {self._name} has another content type than {self._source.url}"
            )

    def run(self, *, follow: bool) -> bool:
        """Copy up to the source's tail, or with `follow` until it is closed. Return True if the
        source is closed and fully copied."""
        cursor = ""
        while True:
            params = {"offset": self.at}
            answer = self._source.ask(
                "GET",
                params | ({"live": "long-poll", "cursor": cursor} if follow and cursor else {}),
            )
            headers = answer.headers
            following = headers.get("stream-next-offset", "")
            if not following:
                raise exits.Refused(
                    f"{self._source.url} responds without Stream-Next-Offset: it is not a Durable "
                    "Streams server"
                )
            self._copy(answer)
            moved = following != self.at
            self.at, self._here = following, 0
            if headers.get("stream-closed", "").lower() == "true":
                return True
            if headers.get("stream-up-to-date", "").lower() == "true" or not moved:
                if not follow:
                    return False
                cursor = headers.get("stream-cursor", "0")

    def _go_on_at(self, held: str) -> None:
        offset, plus, here = held.rpartition("+")
        if not plus or not here.isdigit():
            raise exits.Refused(
                f"the stream {self._name} is not an import: its writer sets Stream-Seq ({held!r})"
            )
        self.at, self._here, self.resumed = offset, int(here), True

    def _copy(self, answer: httpx.Response) -> None:
        kind = answer.headers.get("content-type", "")
        parts = (
            _json_parts(kind, answer.content, self._here)
            if is_json(self._type)
            else _byte_parts(answer.content, self._here)
        )
        for body, here in parts:
            self._append(body, f"{self.at}+{here:016d}")
            self.bytes += len(body)

    def _append(self, body: bytes, sequence: str) -> None:
        """Append, and retry until the data is known to be stored."""
        headers = {
            "content-type": JSON_TYPE if is_json(self._type) else self._type,
            "stream-seq": sequence,
        }

        def attempt() -> None:
            path = stream_path(self._name)
            try:
                self._client.call("POST", path, headers=headers, content=body, stream=self._name)
            except exits.Refused as refused:
                if refused.status != 409 or not self._is_here(sequence):
                    raise

        transient = (exits.Unknown, exits.Unreachable)
        patiently(attempt, self._source.patience, transient, says=True)

    def _is_here(self, sequence: str) -> bool:
        answer = self._client.call("HEAD", stream_path(self._name), stream=self._name)
        return bool(answer.headers.get("stream-seq", "") == sequence)


def _json_parts(content_type: str, body: bytes, skip: int) -> Iterator[tuple[bytes, int]]:
    """Yield (array, records of the page stored after it), without the first `skip` records.
    Elements keep their bytes."""
    from polynya.wire.json_records import BadJson, TooManyRecords, parse_records

    if "ndjson" in content_type or "jsonl" in content_type:  # Ursula's format
        body = b"[%b]" % b",".join(line for line in body.split(b"\n") if line.strip())
    try:
        count, payload, packed = parse_records(body or b"[]")
    except (BadJson, TooManyRecords) as error:
        raise exits.Refused(f"a page of the source is invalid: {error}") from None
    # each includes its comma
    lengths = (
        [length for (length,) in iter_unpack("<I", packed)] if packed else [len(payload)] * count
    )
    at = sum(lengths[:skip])
    begin = at
    for here in range(skip + 1, count + 1):
        at += lengths[here - 1]
        if here == count or at + lengths[here] - begin > PART_BYTES:
            # The server unpacks one level of arrays: a record that is an array keeps its brackets
            # inside these.
            yield b"[%b]" % payload[begin : at - 1], here
            begin = at


def _byte_parts(body: bytes, skip: int) -> Iterator[tuple[bytes, int]]:
    for begin in range(skip, len(body), PART_BYTES):
        part = body[begin : begin + PART_BYTES]
        yield part, begin + len(part)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not text.isprintable():
        raise click.UsageError(
            f"--header {text!r} is not a header; expected a form like 'Authorization: Bearer …'"
        )
    return name.strip(), value.strip()


def _name_of(url: str) -> str:
    path = unquote(urlsplit(url).path).strip("/")
    for prefix in ("v1/stream/", "v1/streams/"):
        path = path.removeprefix(prefix)
    if not path:
        raise click.UsageError(f"{url!r} names no stream")
    return path


def _no(url: str, answer: httpx.Response) -> exits.Ended:
    code, message, _ = error_of(answer)
    hint = "The source has no such stream." if answer.status_code in (404, 410) else ""
    kind = exits.Unreachable if answer.status_code in LATER else exits.Refused
    return kind(
        f"{url} responded {answer.status_code} {answer.reason_phrase}: {message}"
        if code
        else f"{url}: {message}",
        hint=hint,
    )
