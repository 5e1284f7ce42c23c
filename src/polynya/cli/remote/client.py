"""The commands' HTTP client: one connection pool, and errors converted to messages with a next
step."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from polynya.cli.remote.targets import SERVER_DEFAULT, Target, find_target
from polynya.cli.remote.urls import is_loopback, server_urls
from polynya.cli.terminal import exits, output
from polynya.cli.terminal.complete import complete_context

if TYPE_CHECKING:
    import ssl

    import httpx

    from polynya.client import ClientError
    from polynya.client.blocking.generated.wire import Wire

JSON_TYPE = "application/json"
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0  # an append waits for fsync, a read may wait for the object store
_ELSEWHERE = (
    "Check the address: --server, POLYNYA_SERVER or --context set it. 'polynya doctor' finds the "
    "cause."
)
NAMES_LOOKED_AT = 1000  # names to search for a suggestion


def server_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--server`, `--context` and `--token` to a command, and pass a `Client` as first
    argument."""

    @click.option(
        "--server",
        metavar="URL",
        help=(
            "The URL of a node, or of several nodes of a cluster: A,B,C. Default: the current "
            f"context, else {SERVER_DEFAULT}."
        ),
    )
    @click.option(
        "--context",
        metavar="NAME",
        shell_complete=complete_context,
        help="Use the server of this context.",
    )
    @click.option(
        "--token",
        metavar="TOKEN",
        help="The access token. Other users can see command lines, so prefer POLYNYA_TOKEN.",
    )
    @wraps(command)
    def with_client(
        *args: Any, server: str | None, context: str | None, token: str | None, **options: Any
    ) -> Any:
        import httpx

        with Client.of(find_target(server, context, os.environ, token=token or "")) as client:
            try:
                with client.understood():
                    return command(client, *args, **options)
            except httpx.TransportError as error:
                raise client.failed(error, applied=True) from None

    return with_client


def never_sent(error: httpx.TransportError) -> bool:
    """Return True if nothing reached the server, so that nothing can have been applied."""
    import httpx

    return isinstance(
        error,
        httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.UnsupportedProtocol,
    )


def stream_path(name: str) -> str:
    """Return the URL path of a stream; `name` is as shown in listings."""
    from polynya.client.calls import stream_target

    return stream_target(name)


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
        self,
        server: str,
        *,
        token: str = "",
        ca_file: str = "",
        origin: str = "--server",
        quiet: bool = False,
    ) -> None:
        """`quiet`: skip the warning about unencrypted tokens."""
        from polynya.client.routing import NodeRouter

        self.router = NodeRouter(server_urls(server, origin), with_token=bool(token))
        self.server = self.router.servers[0]
        self.token = token
        self.ca_file = ca_file
        self.origin = origin
        for url in self.router.servers if token and not quiet else ():
            if not is_loopback(url) and url.startswith("http://"):
                output.notice(
                    f"the token is sent to {url} unencrypted: anyone on the network path can read "
                    "and use it"
                )
        self._http = self.connections()
        self._wire: Wire | None = None

    def connections(self, seconds: float = ANSWER_SECONDS) -> httpx.Client:
        """Return a connection pool with this client's token and trust; relative URLs are the
        server's."""
        import httpx

        try:
            for server in self.router.servers:
                httpx.URL(server)
        except httpx.InvalidURL as error:
            raise exits.Misused(f"{self.origin} {server!r} is not a URL: {error}") from None
        return httpx.Client(
            base_url=self.server,
            headers={"authorization": f"Bearer {self.token}"} if self.token else {},
            verify=self.verify,
            timeout=httpx.Timeout(seconds, connect=CONNECT_SECONDS),
            # A proxy cannot reach this machine's loopback.
            trust_env=not (
                all(map(is_loopback, self.router.servers)) or os.environ.get("NO_PROXY") == "*"
            ),
        )

    def asynchronous(self, seconds: float, connect: float = CONNECT_SECONDS) -> httpx.AsyncClient:
        """Return an asyncio pool like `connections`, to the first server."""
        import httpx

        return httpx.AsyncClient(
            base_url=self.server,
            headers={"authorization": f"Bearer {self.token}"} if self.token else {},
            verify=self.verify,
            timeout=httpx.Timeout(seconds, connect=connect),
            trust_env=not (is_loopback(self.server) or os.environ.get("NO_PROXY") == "*"),
        )

    @property
    def verify(self) -> ssl.SSLContext | bool:
        """The trust store for the server's certificate. To HTTP on this machine none is loaded, which
        takes longer than a request: a certificate would be refused."""
        if self.ca_file:
            return _trusted(self.ca_file)
        if all(url.startswith("http://") and is_loopback(url) for url in self.router.servers):
            import ssl

            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return True

    @classmethod
    def of(cls, target: Target) -> Client:
        return cls(target.server, token=target.token, ca_file=target.ca_file, origin=target.origin)

    def another(self) -> Client:
        """Return a client of the same servers with its own connections, one per thread."""
        return Client(
            ",".join(self.router.servers),
            ca_file=self.ca_file,
            origin=self.origin,
            token=self.token,
            quiet=True,
        )

    def admin(self) -> Client:
        """Return a client of the node's admin port: on the same host, or on this machine if the
        port is local only. Raises `exits.Ended`."""
        from polynya.lakehouse.server.admin_port import far_refusal, near_admin
        from polynya.wire.hosts import is_this_machine

        answer = self.call("GET", "/v1/node")
        told, url = answer.json(), answer.request.url.copy_with(raw_path=b"/")
        admin = str(
            url.copy_with(
                scheme="https" if told.get("admin_tls") else "http", port=told["ports"]["admin"]
            )
        )
        if told.get("admin_near") and not is_this_machine(url.host):
            admin = near_admin(told["ports"]["admin"], told.get("start", ""))
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
        import httpx

        try:
            told = self._http.request(
                "GET", f"{self.server}/v1/node", timeout=CONNECT_SECONDS
            ).json()
        except (httpx.HTTPError, ValueError):
            return False
        return isinstance(told, dict) and {"version", "history", "ports"} <= told.keys()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        if self._wire is not None:
            self._wire.close()

    def send(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> httpx.Response:
        """Return the response with any status. Raises httpx.TransportError."""
        return self._tried(method, path, headers=headers, content=content)

    def get(self, url: str) -> httpx.Response:
        """Return the response of exactly this address, such as an admin port. Raises
        httpx.TransportError."""
        return self._http.get(url, timeout=ANSWER_SECONDS)

    def _tried(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send to the preferred node, and to the next one while nothing could be sent. Raises
        httpx.TransportError."""
        import httpx

        from polynya.client.routing import NEXT_SECONDS, OWNER_SECONDS

        wanted = options.pop("seconds", ANSWER_SECONDS)
        options["timeout"] = httpx.Timeout(wanted, connect=CONNECT_SECONDS)
        ways = self.router.ways(path, time.monotonic())
        for left, server in reversed(list(enumerate(reversed(ways)))):
            if len(ways) > 1:
                seconds = OWNER_SECONDS if self.router.owns(server, path) else ANSWER_SECONDS
                options = {
                    **options,
                    "timeout": httpx.Timeout(min(seconds, wanted), connect=NEXT_SECONDS),
                }
            try:
                answer = self._http.request(method, server + path, **options)
            except httpx.TransportError as error:
                self.router.on_answer(server, path, None, time.monotonic())
                if not left or not never_sent(error):
                    raise
                continue
            if self.router.on_answer(
                server, path, (answer.status_code, answer.headers), time.monotonic()
            ):
                self._meet(server)
                self.router.on_answer(
                    server, path, (answer.status_code, answer.headers), time.monotonic()
                )
            return answer
        raise AssertionError("unreachable: at least one route exists")

    def _meet(self, server: str) -> None:
        """Fetch the node list from a server."""
        import httpx

        try:
            told = self._http.request("GET", f"{server}/v1/node", timeout=CONNECT_SECONDS)
            self.router.met(told.json().get("nodes", {}).values() if told.is_success else ())
        except (httpx.TransportError, ValueError):
            return

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
        """Return a successful response. A missing `stream` is reported with similar names. Raises
        `exits.Ended`."""
        import httpx

        try:
            answer = self._tried(
                method, path, headers=headers, content=content, params=params, seconds=seconds
            )
        except httpx.TransportError as error:
            raise self.failed(error, applied=method not in ("GET", "HEAD")) from None
        if answer.is_success:
            return answer
        if method == "HEAD":
            answer = self.with_reason(answer, path, headers)
        raise self.refused(answer, stream=stream)

    def with_reason(
        self, refused: httpx.Response, path: str, headers: Mapping[str, str] | None
    ) -> httpx.Response:
        """Return the same refusal with the server's reason: a response to HEAD has no body."""
        import httpx

        if refused.status_code >= 500 or refused.status_code == 429:  # it says enough
            return refused
        try:
            told = self._tried(
                "GET",
                path,
                headers=headers,
                content=None,
                params={"offset": "now"},
                seconds=ANSWER_SECONDS,
            )
        except httpx.TransportError:
            return refused
        return refused if told.is_success else told

    def act(self, path: str, *, headers: Mapping[str, str], content: bytes) -> httpx.Response:
        """Send a cluster operation to the given port, or to the admin port if only that accepts it.
        Raises `exits.Ended`."""
        try:
            return self.call("POST", path, headers=headers, content=content)
        except exits.Refused as refused:
            if refused.code != "ADMIN_PORT_ONLY":
                raise
        with self.admin() as admin:
            return admin.call("POST", path, headers=headers, content=content)

    @property
    def wire(self) -> Wire:
        """The transport of the client library to the same server."""
        if self._wire is None:
            from polynya.client.blocking.generated.wire import Wire
            from polynya.client.http import Options

            self._wire = Wire(
                Options(servers=self.router.servers, token=self.token, verify=self.verify)
            )
        return self._wire

    def ended(self, error: ClientError, what: str, *, stream: str = "") -> exits.Ended:
        """Convert a read error of the client library; `what` starts its message."""
        import httpx

        said = error.message.removeprefix(f"{what}: ")
        if not error.status:
            why = (said.partition(": ")[2] or said).removesuffix(f" ({self.server})")
            return self.failed(httpx.TransportError(why), applied=False)
        told = {"code": error.code, "message": said, "request_id": error.request_id}
        headers = {"retry-after": f"{error.retry_after:.0f}"} if error.retry_after else {}
        request = httpx.Request("GET", self.server)
        return self.refused(
            httpx.Response(error.status, json={"error": told}, headers=headers, request=request),
            stream=stream,
        )

    def failed(self, error: httpx.TransportError, *, applied: bool) -> exits.Ended:
        """Convert a missing response to an error. `applied`: the request may have changed
        something."""
        why = str(error) or type(error).__name__
        if never_sent(error) or not applied:
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
        code, message, request_id = _told(answer)
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
            if answer.status_code == 404 and stream and code != "NO_ROUTE"
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
    ) -> dict[str, Any]:
        """Return one page of the listing."""
        params: dict[str, str | int] = {"prefix": prefix, "after": after, "limit": limit}
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


def _trusted(ca_file: str) -> ssl.SSLContext:
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise exits.Misused(f"the CA file {ca_file} cannot be used: {error}") from None


def _told(answer: httpx.Response) -> tuple[str, str, str]:
    """Return (code, message, request id) of an error response of any form. The body has been
    read."""
    try:
        error = answer.json()["error"]
        return str(error.get("code", "")), str(error["message"]), str(error.get("request_id", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        text = answer.text.strip()[:300]
        return (
            "",
            f"the server responded {answer.status_code} {answer.reason_phrase}"
            + (f": {text}" if text else ""),
            "",
        )
