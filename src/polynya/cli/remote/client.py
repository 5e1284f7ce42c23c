"""The commands' HTTP client: one connection pool, and errors converted to messages with a next
step."""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

from polynya.cli.remote.targets import SERVER_DEFAULT, Target, find_target, is_loopback, server_urls
from polynya.cli.terminal import exits, options, output

if TYPE_CHECKING:
    import ssl

    import httpx

    from polynya.client import ClientError
    from polynya.client.aio.wire import AsyncWire
    from polynya.client.messages import Broken, HttpRequest, HttpResponse

JSON_TYPE = "application/json"
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0  # an append waits for fsync, a read may wait for the object store
_ELSEWHERE = (
    "Check the address: --server, POLYNYA_SERVER or --context set it. 'polynya doctor' finds the "
    "cause."
)
NAMES_LOOKED_AT = 1000  # names to search for a suggestion
REASON = {"offset": "now"}  # parameters of a GET for the reason of a refused HEAD
RETRY_PAUSE_SECONDS = 0.1
RETRY_PAUSE_SECONDS_MAX = 2.0
_ADDRESS = re.compile(r" \(https?://\S*\)$")  # of the server, which the message names already
T = TypeVar("T")


class _WithStatus(Protocol):
    @property
    def status_code(self) -> int: ...


_Answer = TypeVar("_Answer", bound=_WithStatus)


class Parts(TypedDict, total=False):
    """The parts of a request beside method and path. `body` is sent as JSON, `content` as it is."""

    headers: Mapping[str, str] | None
    content: bytes | None
    body: object
    params: Mapping[str, str | int] | None
    seconds: float


def server_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--server`, `--context` and `--token` to a command, and pass a `Client` as first
    argument."""

    @options.server(
        "The URL of a node, or of several nodes of a cluster: A,B,C. Default: the current "
        f"context, else {SERVER_DEFAULT}."
    )
    @options.value(
        "--token TOKEN",
        help="The access token. Other users can see command lines, so prefer POLYNYA_TOKEN.",
    )
    @wraps(command)
    def with_client(
        *args: Any, server: str | None, context: str | None, token: str | None, **given: Any
    ) -> Any:
        target = find_target(server, context, os.environ, token=token or "")
        with Client.of(target) as client, client.understood():
            return command(client, *args, **given)

    return with_client


def patiently(
    ask: Callable[[], T],
    seconds: float,
    transient: type[exits.Ended] | tuple[type[exits.Ended], ...] = exits.Busy,
    *,
    says: bool = False,
) -> T:
    """Call `ask`, and again after a `transient` failure, for so many seconds. `says`: print once
    what is retried."""
    deadline = time.monotonic() + seconds
    pause = RETRY_PAUSE_SECONDS
    while True:
        try:
            return ask()
        except transient as failure:
            left = deadline - time.monotonic()
            if pause > left:
                raise
            if says:
                output.notice(f"{failure.message}: retrying for {left:.0f} s")
        says = False
        time.sleep(pause)
        pause = min(2 * pause, RETRY_PAUSE_SECONDS_MAX)


def stream_path(name: str) -> str:
    """Return the URL path of a stream; `name` is as shown in listings."""
    from polynya.client.calls import stream_target

    return stream_target(name)


def new_stream_path(name: str) -> str:
    """Return the URL path of a stream to create. The path of a reserved name may be another route,
    which would answer with an error of its own. Raises `exits.Refused`."""
    from polynya.base.names import BadName, canonical_name

    try:
        canonical_name(name)
    except BadName as error:
        raise exits.Refused(str(error), code="INVALID_NAME") from None
    return stream_path(name)


def bucket_path(bucket: str) -> str:
    """Return the URL path of a bucket; any text is one segment of it."""
    return f"/v1/buckets/{quote(bucket, safe='', errors='replace')}"


def is_json(content_type: str) -> bool:
    """Return True if streams of this type hold JSON records."""
    return content_type.split(";", maxsplit=1)[0].strip().lower() == JSON_TYPE


class Client:
    """A client of one server, or of the nodes of a cluster. Calls block; failures are
    `exits.Ended`."""

    def __init__(
        self, server: str, *, token: str = "", ca_file: str = "", origin: str = "--server"
    ) -> None:
        import httpx

        from polynya.client.blocking.generated.wire import Wire
        from polynya.client.http import Options

        servers = server_urls(server, origin)
        self.server = servers[0]
        self.token = token
        self.ca_file = ca_file
        self.origin = origin
        for url in servers if token else ():
            if not is_loopback(url) and url.startswith("http://"):
                output.notice(
                    f"the token is sent to {url} unencrypted: anyone on the network path can read "
                    "and use it"
                )
        self.options = Options(servers=tuple(servers), token=token, verify=_trust(servers, ca_file))
        try:
            self.wire = Wire(self.options)
        except (ValueError, httpx.InvalidURL) as error:
            raise exits.Misused(f"{origin} {server!r} is not a URL: {error}") from None

    @classmethod
    def of(cls, target: Target) -> Client:
        return cls(target.server, token=target.token, ca_file=target.ca_file, origin=target.origin)

    def admin(self) -> Client:
        """Return a client of the node's admin port: on the same host, or on this machine if the
        port is local only. Raises `exits.Ended`."""
        from polynya.lakehouse.server.admin_port import far_refusal, near_admin
        from polynya.wire.http.hosts import is_this_machine

        answer = self.call("GET", "/v1/node")
        received, url = answer.json(), answer.request.url.copy_with(raw_path=b"/")
        admin = str(
            url.copy_with(
                scheme="https" if received.get("admin_tls") else "http",
                port=received["ports"]["admin"],
            )
        )
        if received.get("admin_near") and not is_this_machine(url.host):
            admin = near_admin(received["ports"]["admin"], received.get("start", ""))
            if not admin:
                raise exits.Refused(far_refusal(str(url).rstrip("/")))
        return Client(admin, token=self.token, ca_file=self.ca_file, origin=self.origin)

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Convert malformed responses to an error, if the server is not a Polynya node. Raises
        `exits.Ended`."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError):
            if self.is_node():
                raise
            raise exits.Refused(
                f"the server at {self.server} is not a Polynya node", hint=_ELSEWHERE
            ) from None

    def is_node(self) -> bool:
        """Return True if a Polynya node responds there."""
        try:
            received = self.send("GET", "/v1/node", seconds=CONNECT_SECONDS).json()
        except (exits.Ended, ValueError):
            return False
        return isinstance(received, dict) and {"version", "history", "ports"} <= received.keys()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()

    def send(
        self, method: str, path: str, *, applies: bool | None = None, **parts: Unpack[Parts]
    ) -> httpx.Response:
        """Return the response with any status. `applies`: the request may change something; None:
        if its method is not GET or HEAD. Raises `exits.Ended` without a response."""
        request = _request(method, path, **parts)
        if applies is None:
            applies = method not in ("GET", "HEAD")
        return self._response(request, self.wire.send(request), applies=applies)

    async def send_on(
        self, wire: AsyncWire, method: str, path: str, **parts: Unpack[Parts]
    ) -> httpx.Response:
        """Send a request that applies nothing on an asyncio transport to the same server. Return
        the response with any status. Raises `exits.Ended` without one."""
        request = _request(method, path, **parts)
        return self._response(request, await wire.send(request), applies=False)

    def _response(
        self, request: HttpRequest, what: HttpResponse | Broken, *, applies: bool
    ) -> httpx.Response:
        import httpx

        from polynya.client.messages import Broken

        if isinstance(what, Broken):
            raise self.failed(what.why, applied=applies and what.sent)
        return httpx.Response(
            what.status,
            headers={  # the body is decoded
                key: text for key, text in what.headers.items() if key != "content-encoding"
            },
            content=what.body,
            request=httpx.Request(request.method, what.url),
        )

    def call(
        self, method: str, path: str, *, stream: str = "", **parts: Unpack[Parts]
    ) -> httpx.Response:
        """Return a successful response. A missing `stream` is reported with similar names. Raises
        `exits.Ended`."""
        answer = self.send(method, path, **parts)
        if answer.is_success:
            return answer
        raise self.refused(answer, stream=stream)

    def _with_reason(self, refused: httpx.Response) -> httpx.Response:
        """Return a refusal with the server's reason, if the server still responds."""
        path = refused.request.url.raw_path.decode().partition("?")[0]
        ask = partial(self.send, "GET", path, params=REASON)
        with suppress(exits.Ended):
            return with_reason(refused.request.method, refused, ask)
        return refused

    def act(self, path: str, body: object) -> httpx.Response:
        """Send a cluster operation to the given port, or to the admin port if only that accepts it.
        Raises `exits.Ended`."""
        try:
            return self.call("POST", path, body=body)
        except exits.Refused as refused:
            if refused.code != "ADMIN_PORT_ONLY":
                raise
        with self.admin() as admin:
            return admin.call("POST", path, body=body)

    def ended(self, error: ClientError, what: str, *, stream: str = "") -> exits.Ended:
        """Convert a read error of the client library; `what` starts its message."""
        said = error.message.removeprefix(f"{what}: ")
        if not error.status:
            return self.failed(said.partition(": ")[2] or said, applied=False)
        import httpx

        received = {"code": error.code, "message": said, "request_id": error.request_id}
        headers = {"retry-after": f"{error.retry_after:.0f}"} if error.retry_after else {}
        request = httpx.Request("GET", self.server)
        return self.refused(
            httpx.Response(
                error.status, json={"error": received}, headers=headers, request=request
            ),
            stream=stream,
        )

    def failed(self, why: str, *, applied: bool) -> exits.Ended:
        """Convert a missing response to an error. `applied`: the request may have changed
        something."""
        why = _ADDRESS.sub("", why)
        if not applied:
            chosen = "" if self.origin in ("default", "--server") else f" (of {self.origin})"
            return exits.Unreachable(
                f"no response from {self.server}{chosen}: {why}", hint=self._next_step(why)
            )
        return exits.Unknown(
            f"lost the connection to {self.server} before the response ({why}): the request may "
            "have been applied"
        )

    def _next_step(self, why: str) -> str:
        """Return the hint for a missing response."""
        if "WRONG_VERSION_NUMBER" in why or "RECORD_LAYER_FAILURE" in why:
            return (
                "The server does not use TLS on this port: try "
                f"{self.server.replace('https:', 'http:', 1)}."
            )
        if "CERTIFICATE_VERIFY_FAILED" in why:
            return (
                "To trust its certificate authority: polynya context add NAME --server "
                f"{self.server} --ca-file FILE --use"
            )
        if (
            "Name or service not known" in why
            or "nodename nor servname" in why
            or "name resolution" in why
        ):
            return "The host name does not resolve: check its spelling."
        if self.server.startswith("http:") and (
            "illegal status line" in why or "disconnected without" in why
        ):
            return f"The server may require TLS: try {self.server.replace('http:', 'https:', 1)}."
        if is_loopback(self.server):
            return (
                "Start a node with 'polynya serve', or pass another address with --server or "
                "POLYNYA_SERVER."
            )
        return (
            "Check that the node runs, and its address: --server, POLYNYA_SERVER or --context set "
            "it. 'polynya doctor' finds the cause."
        )

    def refused(self, answer: httpx.Response, *, stream: str = "") -> exits.Ended:
        """Convert an error response."""
        answer = self._with_reason(answer)
        code, message, request_id = error_of(answer)
        # the server's message does not name it
        if stream and (answer.request.method == "HEAD" or code == "NOT_FOUND"):
            message = {
                404: f"there is no stream '{stream}'",
                410: f"the stream '{stream}' was deleted",
            }.get(answer.status_code, message)
        if answer.status_code in (500, 502, 504) and answer.request.method in ("GET", "HEAD"):
            # reads have no side effects
            return exits.Unreachable(message, code=code, request_id=request_id)
        if answer.headers.get("stream-outcome") == "unknown" or answer.status_code in (
            500,
            502,
            504,
        ):
            return exits.Unknown(message, code=code, request_id=request_id)
        if answer.status_code in (408, 429, 503, 507):
            after = answer.headers.get("retry-after")
            hint = (
                f"Nothing was applied; retry in {after} s."
                if after
                else "Nothing was applied; retry."
            )
            # a response to HEAD has no message
            if answer.request.method == "HEAD" and answer.status_code == 503:
                message = "the server is unavailable (503)"
                hint += " In a cluster, 'polynya cluster health' shows the reason."
            return exits.Busy(message, code=code, hint=hint, request_id=request_id)
        hint = (
            self._nearest(stream)
            if answer.status_code == 404 and stream and code not in ("NO_ROUTE", "NO_SNAPSHOT")
            else self._whose(answer, code)
        )
        return exits.Refused(
            message, status=answer.status_code, code=code, hint=hint, request_id=request_id
        )

    def names(
        self,
        prefix: str,
        *,
        after: str = "",
        limit: int = NAMES_LOOKED_AT,
        consistency: str = "leader",
        attributes: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return one page of the listing: of the streams that have the attributes."""
        params: dict[str, str | int] = {"prefix": prefix, "after": after, "limit": limit}
        params |= {f"attr.{name}": text for name, text in (attributes or {}).items()}
        if consistency != "leader":
            params["consistency"] = consistency
        page: dict[str, Any] = self.call("GET", "/v1/streams", params=params).json()
        return page

    def _whose(self, answer: httpx.Response, code: str) -> str:
        """Return the hint for a refusal about credentials or routing."""
        if answer.status_code == 401:
            held = "was not accepted" if self.token else "is needed"
            return (
                f"A token {held}: POLYNYA_TOKEN, POLYNYA_TOKEN_FILE or 'polynya context add NAME "
                "--server URL --token-file FILE'."
            )
        if answer.status_code == 403:
            return (
                "The token does not allow this; use a token with that permission."
                if self.token
                else ""
            )
        if code == "NO_ROUTE":
            return "The server may be an older release without this command, or an admin port."
        if not code and answer.request.method != "HEAD":
            return (
                f"Check that {self.server} is a Polynya node: 'polynya doctor --server "
                f"{self.server}'."
            )
        return ""

    def _nearest(self, stream: str) -> str:
        """Return a hint with similar stream names."""
        try:
            for prefix in dict.fromkeys((stream.rpartition("/")[0], "")):
                known = [row["name"] for row in self.names(prefix)["streams"]]
                if near := difflib.get_close_matches(stream, known, n=3, cutoff=0.6):
                    return f"Did you mean {' or '.join(near)}?"
        except exits.Ended as failure:
            if isinstance(failure, exits.Refused) and not failure.code:
                return failure.hint  # that server has no listing either
        except (ValueError, KeyError, TypeError):
            return f"Check that {self.server} is a Polynya node."
        return "'polynya ls' lists the streams, 'polynya create' creates one."


def _request(method: str, path: str, **parts: Unpack[Parts]) -> HttpRequest:
    import msgspec

    from polynya.client.messages import HttpRequest

    params = parts.get("params")
    target = f"{path}?{urlencode(params)}" if params else path
    headers, content = dict(parts.get("headers") or {}), parts.get("content") or b""
    if parts.get("body") is not None:
        headers = {"content-type": JSON_TYPE, **headers}
        content = msgspec.json.encode(parts["body"])
    return HttpRequest(method, target, headers, content, parts.get("seconds", ANSWER_SECONDS))


def _trust(servers: list[str], ca_file: str) -> ssl.SSLContext | bool:
    """Return the trust store for the servers' certificates. To HTTP on this machine none is loaded,
    which takes longer than a request: a certificate would be refused."""
    import ssl

    if ca_file:
        try:
            return ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise exits.Misused(f"the CA file {ca_file} cannot be used: {error}") from None
    if all(url.startswith("http://") and is_loopback(url) for url in servers):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return True


def with_reason(method: str, refused: _Answer, get: Callable[[], _Answer]) -> _Answer:
    """Return a refusal with the server's reason. A response to HEAD has no body: the same refusal of
    GET, which `get` asks for with the parameters REASON, has it."""
    if method != "HEAD" or refused.status_code == 429 or refused.status_code >= 500:
        return refused
    again = get()
    return refused if again.status_code < 300 else again


def error_of(answer: httpx.Response) -> tuple[str, str, str]:
    """Return (code, message, request id) of an error response of any form. The body has been
    read."""
    try:
        body = answer.json()
        if "error" not in body:  # of the schema registry
            return str(body["error_code"]), str(body["message"]), ""
        error = body["error"]
        return str(error.get("code", "")), str(error["message"]), str(error.get("request_id", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        text = answer.text.strip()[:300]
        return (
            "",
            f"the server responded {answer.status_code} {answer.reason_phrase}"
            + (f": {text}" if text else ""),
            "",
        )
