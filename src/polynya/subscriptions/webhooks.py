"""Webhook requests to permitted addresses: no private networks, no redirects, bounded in time and
size."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from polynya.base.histogram import Histogram
from polynya.base.limits import WEBHOOK_RESPONSE_BYTES_MAX, WEBHOOK_URL_BYTES_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.subscriptions.addresses import Address, is_public

if TYPE_CHECKING:
    import httpx

CONCURRENCY_MAX = 256  # requests in flight per core: each holds a socket and a page of links
RESOLVE_SECONDS = 5.0


class Rejected(ValueError):
    """The URL may not be called."""


class DeliveryOutcome(msgspec.Struct, frozen=True):
    """The outcome of a request. `taken`: the receiver sent a 2xx status; `done`: its body reports
    that the work is done."""

    taken: bool
    done: bool = False
    reason: str = ""


class _Said(msgspec.Struct):
    done: bool = False


class Webhooks:
    """The webhook client of one core. `allow_loopback`: permit plain http to this machine, for
    development."""

    def __init__(self, *, allow_loopback: bool) -> None:
        self._allow_loopback = allow_loopback
        self._client: httpx.AsyncClient | None = None
        self.seconds = Histogram()  # from a free slot to the answer, or to the timeout
        self._slots = asyncio.Semaphore(CONCURRENCY_MAX)

    async def check(self, url: str) -> None:
        """Validate a URL. Raises `Rejected`. A name that does not resolve now passes: every
        delivery resolves it again."""
        parsed = self._parse(url)
        try:
            addresses = await _resolve(_host(parsed), _port(parsed))
        except OSError:
            return
        for address in addresses:
            self._check_address(parsed, address)

    async def post(
        self, url: str, body: bytes, headers: dict[str, str], seconds: float
    ) -> DeliveryOutcome:
        """Send a request and return its outcome; network and receiver errors never raise. The
        timeout starts after a slot is free."""
        import httpx

        async with self._slots:
            began = perf_counter()
            try:
                async with asyncio.timeout(seconds):
                    return await self._post(url, body, headers)
            except TimeoutError:
                return DeliveryOutcome(False, reason=f"no response within {seconds:g} s")
            except (httpx.HTTPError, httpx.InvalidURL, OSError, Rejected, ValueError) as fault:
                return DeliveryOutcome(False, reason=f"{type(fault).__name__}: {fault}")
            finally:
                self.seconds.observe(perf_counter() - began)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> DeliveryOutcome:
        """Send a request to the address that was checked: a second lookup of the name could return
        another address."""
        parsed = self._parse(url)
        addresses = await _resolve(_host(parsed), _port(parsed))
        for address in addresses:
            self._check_address(parsed, address)
        target = parsed.copy_with(host=str(addresses[0]))
        headers = {**headers, "host": parsed.netloc.decode("ascii"), "accept-encoding": "identity"}
        extensions = (
            {"sni_hostname": parsed.raw_host.decode("ascii")} if parsed.scheme == "https" else {}
        )
        client = self._open()
        async with client.stream(
            "POST", target, content=body, headers=headers, extensions=extensions
        ) as response:
            if not response.is_success:
                return DeliveryOutcome(
                    False, reason=f"the receiver returned status {response.status_code}"
                )
            return DeliveryOutcome(True, await _says_done(response))

    def _open(self) -> httpx.AsyncClient:
        """Return the client. It does not keep connections: the pool is keyed by address, and one
        certificate must not serve another name."""
        import httpx

        if self._client is None:
            limits = httpx.Limits(max_connections=CONCURRENCY_MAX, max_keepalive_connections=0)
            self._client = httpx.AsyncClient(
                follow_redirects=False,
                trust_env=False,
                timeout=None,  # noqa: S113
                limits=limits,
            )
        return self._client

    def _parse(self, url: str) -> httpx.URL:
        import httpx

        if len(url) > WEBHOOK_URL_BYTES_MAX:
            raise Rejected(f"webhook.url has at most {WEBHOOK_URL_BYTES_MAX} characters")
        try:
            parsed = httpx.URL(url)
            # as decoded, and as the resolver gets it
            host = parsed.host and _host(parsed).encode("idna")
        except (httpx.InvalidURL, ValueError, TypeError) as error:
            raise Rejected(f"webhook.url is not a valid URL: {error}") from None
        if parsed.port is not None and not 0 < parsed.port < 65_536:
            raise Rejected("webhook.url is not a valid URL: its port is not between 1 and 65535")
        if not host or parsed.userinfo:
            raise Rejected("webhook.url must name a host, and hold no user or password")
        if parsed.scheme == "https":
            return parsed
        if parsed.scheme != "http":
            raise Rejected("webhook.url must begin with https://")
        if not _is_local(parsed.host):
            raise Rejected(
                "webhook.url must begin with https://; plain http is allowed only for localhost "
                "and 127.0.0.x"
            )
        if not self._allow_loopback:
            raise Rejected(
                "webhook.url must begin with https://; this server is reachable from other "
                "machines, so it may not call local receivers"
            )
        return parsed

    def _check_address(self, parsed: httpx.URL, address: Address) -> None:
        if parsed.scheme == "http":
            if not address.is_loopback:
                raise Rejected("webhook.url must begin with https://: its host is not this machine")
            return
        if not is_public(address):
            raise Rejected("webhook.url must not resolve to a private, local or reserved address")


async def _says_done(response: httpx.Response) -> bool:
    """Report whether the body is JSON with `done` true. A body that is too long or not JSON counts
    as not done."""
    body = b""
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > WEBHOOK_RESPONSE_BYTES_MAX:
            return False
    try:
        return msgspec.json.decode(body, type=_Said).done
    except UNREADABLE:
        return False


def _host(url: httpx.URL) -> str:
    """Return the host with non-ASCII characters in Punycode (RFC 5891)."""
    return url.raw_host.decode("ascii")


def _port(url: httpx.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        return False


async def _resolve(host: str, port: int) -> list[Address]:
    """Return every address of the name; raises OSError."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(RESOLVE_SECONDS):
        found = await loop.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(entry[4][0]).split("%")[0]) for entry in found]
