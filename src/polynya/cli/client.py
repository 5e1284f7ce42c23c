"""The HTTP client of the verbs: one connection pool, and every failure turned into what the user should know."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any
from urllib.parse import quote

import click
import httpx

from polynya.cli import exits

SERVER_DEFAULT = "http://127.0.0.1:4437"
SERVER_VARIABLE = "POLYNYA_SERVER"
JSON_TYPE = "application/json"
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0  # an append waits for the disk, a read perhaps for the object store
NAMES_LOOKED_AT = 1000  # for a suggestion

# Raised before anything reached the server, so that nothing can have been applied.
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


def server_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command `--server`, and in its place a `Client` as first argument."""

    @click.option("--server", metavar="URL", envvar=SERVER_VARIABLE, default=SERVER_DEFAULT, show_default=True, help="The node to talk to.")
    @wraps(command)
    def with_client(*args: Any, server: str, **options: Any) -> Any:
        with Client(server) as client:
            try:
                return command(client, *args, **options)
            except httpx.TransportError as error:
                raise client.failed(error, applied=True) from None

    return with_client


def stream_path(name: str) -> str:
    """The path of a stream's URL; `name` is as it is written in listings."""
    return f"/v1/stream/{quote(name, safe='/')}"


def is_json(content_type: str) -> bool:
    """Whether streams of this type hold JSON records."""
    return content_type.split(";", maxsplit=1)[0].strip().lower() == JSON_TYPE


class Client:
    """One server. Calls block; failures are `exits.Ended`."""

    def __init__(self, server: str) -> None:
        self.server = _url(server)
        self._http = httpx.Client(
            base_url=self.server,
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            trust_env=not _is_loopback(self.server),  # a proxy of the environment cannot reach this machine's loopback
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def send(self, method: str, path: str, *, headers: Mapping[str, str] | None = None, content: bytes | None = None) -> httpx.Response:
        """The answer, whatever its status. Raises httpx.TransportError."""
        return self._http.request(method, path, headers=headers, content=content)

    def call(
        self,
        method: str,
        path: str,
        *,
        stream: str = "",
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        params: Mapping[str, str | int] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> httpx.Response:
        """A successful answer; `stream` is the name to look for others like it when there is none. Raises `exits.Ended`."""
        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
        try:
            answer = self._http.request(method, path, headers=headers, content=content, params=params, timeout=timeout)
        except httpx.TransportError as error:
            raise self.failed(error, applied=method not in ("GET", "HEAD")) from None
        if answer.is_success:
            return answer
        raise self.refused(answer, stream=stream)

    @contextlib.contextmanager
    def streamed(self, path: str, *, params: Mapping[str, str], headers: Mapping[str, str], seconds: float) -> Iterator[httpx.Response]:
        """An answer whose body is still to come; `seconds` is how long it may be silent. Raises httpx.TransportError."""
        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
        with self._http.stream("GET", path, params=params, headers=headers, timeout=timeout) as answer:
            yield answer

    def failed(self, error: httpx.TransportError, *, applied: bool) -> exits.Ended:
        """What no answer means; `applied`: the request changes something, and may have done so."""
        why = str(error) or type(error).__name__
        if isinstance(error, NOT_SENT) or not applied:
            hint = "Start one with 'polynya serve', or name another with --server or POLYNYA_SERVER."
            return exits.Unreachable(f"no answer from {self.server}: {why}", hint=hint)
        return exits.Unknown(f"the connection to {self.server} broke before the answer came ({why}): it may or may not have been applied")

    def refused(self, answer: httpx.Response, *, stream: str = "") -> exits.Ended:
        """The error that an answer carries."""
        code, message, request_id = _told(answer)
        if answer.request.method == "HEAD" and stream:
            message = {404: f"there is no stream '{stream}'", 410: f"the stream '{stream}' is deleted"}.get(answer.status_code, message)
        if answer.headers.get("stream-outcome") == "unknown" or answer.status_code in (500, 502, 504):
            return exits.Unknown(message, code=code, request_id=request_id)
        if answer.status_code in (408, 429, 503, 507):
            after = answer.headers.get("retry-after")
            hint = f"Nothing was applied; try again in {after} s." if after else "Nothing was applied; try again."
            return exits.Unreachable(message, code=code, hint=hint, request_id=request_id)
        hint = self._nearest(stream) if answer.status_code == 404 and stream else ""
        return exits.Refused(message, status=answer.status_code, code=code, hint=hint, request_id=request_id)

    def names(self, prefix: str, *, after: str = "", limit: int = NAMES_LOOKED_AT) -> dict[str, Any]:
        """One page of the listing, as the server gives it."""
        page: dict[str, Any] = self.call("GET", "/v1/streams", params={"prefix": prefix, "after": after, "limit": limit}).json()
        return page

    def _nearest(self, stream: str) -> str:
        """Streams whose names are like this one."""
        with contextlib.suppress(exits.Ended, ValueError, KeyError, TypeError):
            folder = stream.rpartition("/")[0]
            known = [row["name"] for row in self.names(folder)["streams"]]
            if near := difflib.get_close_matches(stream, known, n=3, cutoff=0.6):
                return f"Did you mean {' or '.join(near)}?"
        return "'polynya ls' lists the streams, 'polynya create' makes one."


def _url(server: str) -> str:
    url = server if "://" in server else f"http://{server}"
    try:
        parsed = httpx.URL(url)
        good = parsed.scheme in ("http", "https") and bool(parsed.host)
    except httpx.InvalidURL:
        good = False
    if not good:
        raise click.UsageError(f"--server {server!r} is no URL; it looks like {SERVER_DEFAULT}")
    return url.rstrip("/")


def _is_loopback(url: str) -> bool:
    return httpx.URL(url).host in ("127.0.0.1", "localhost", "::1") or os.environ.get("NO_PROXY") == "*"


def _told(answer: httpx.Response) -> tuple[str, str, str]:
    """(code, message, request id) of an error's body, whatever it is. The body has been read."""
    try:
        error = answer.json()["error"]
        return str(error.get("code", "")), str(error["message"]), str(error.get("request_id", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        text = answer.text.strip()[:300]
        return "", f"the server answered {answer.status_code} {answer.reason_phrase}" + (f": {text}" if text else ""), ""
