"""A reader of a schema registry with Confluent's REST API, and of the schemas of a table.

`GET /schemas/ids/ID` has a schema; `GET /subjects/SUBJECT/versions/VERSION` has each that it refers
to. Both never change, so they are kept.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from polynya.base.errors import Unavailable
from polynya.base.msgpack import UNREADABLE
from polynya.base.payloads import AVRO, REGISTRY, BadPayload, Payload, payload_of
from polynya.lakehouse.jobs.plan import UNFRAMED, Writer
from polynya.lakehouse.payloads.logins import (
    VARIABLE,
    RegistryAuth,
    RegistryRefused,
    login_for,
)

NODE_PATH = "/registry"  # of a node's own registry
REFERENCES_MAX = 100  # of one schema, at all levels
_SECONDS = 30.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

Registry = Callable[[str], Any]
"""Returns the `SchemaReader` of the registry at a URL; "": the node's own."""


class _Reference(msgspec.Struct):
    name: str
    subject: str
    version: int


class _Schema(msgspec.Struct, rename="camel"):
    schema: str
    schema_type: str | None = None
    references: list[_Reference] | None = None


class SchemaReader:
    """The schemas of one registry by id. Threads may share it."""

    def __init__(self, url: str, client: httpx.Client | None = None) -> None:
        self.url = url.rstrip("/")
        self._is_own = client is not None
        self._client = client or _client_of(self.url)
        self._known: dict[int, Writer] = {}
        self._lock = threading.Lock()

    def writer(self, number: int) -> Writer:
        """Return the schema of an id, or a writer with the reason why it is unknown. Raises
        Unavailable, RegistryRefused."""
        with self._lock:
            if number not in self._known:
                found = self._fetch(f"/schemas/ids/{number}") if number >= 0 else None
                if found is None:  # it may be registered later
                    return Writer(unknown=f"schema {number} is unknown to the registry {self.url}")
                references = self._references(found, {})
                kind = found.schema_type or "AVRO"
                self._known[number] = Writer(kind, found.schema, references)
            return self._known[number]

    def _references(self, schema: _Schema, found: dict[str, str]) -> list[tuple[str, str]]:
        """Return the schemas that one refers to, each after those that it refers to itself."""
        for each in schema.references or ():
            if each.name in found:
                continue
            if len(found) >= REFERENCES_MAX:
                raise RegistryRefused(f"a schema refers to more than {REFERENCES_MAX} others")
            found[each.name] = ""  # a circle ends here
            path = f"/subjects/{quote(each.subject, safe='')}/versions/{each.version}"
            inner = self._fetch(path)
            if inner is None:
                raise RegistryRefused(
                    f"the registry {self.url} has no version {each.version} of the subject "
                    f"'{each.subject}', to which a schema refers"
                )
            self._references(inner, found)
            found[each.name] = found.pop(each.name) or inner.schema
        return list(found.items())

    def _fetch(self, path: str) -> _Schema | None:
        """Return a schema, or None if the registry does not have it."""
        try:
            answer = self._client.get(f"{self.url}{path}", timeout=_SECONDS)
        except httpx.HTTPError as fault:
            raise Unavailable(
                f"no response from the schema registry {self.url}: {fault}. Is it running there?"
            ) from fault
        status = answer.status_code
        if status == 404 and _is_registry(answer):
            return None
        if status >= 500 or status in (408, 429):
            raise Unavailable(f"the schema registry {self.url} answered {status}")
        if status in (401, 403) and not self._is_own:
            raise RegistryRefused(self._login_refusal(status))
        if status != 200:
            raise RegistryRefused(
                f"the schema registry {self.url} answered {status} to GET {path}. Check the URL and "
                "the permissions"
            )
        try:
            return msgspec.json.decode(answer.content, type=_Schema)
        except UNREADABLE as fault:
            raise RegistryRefused(
                f"the schema registry {self.url} answered no schema to GET {path}: {fault}"
            ) from None

    def _login_refusal(self, status: int) -> str:
        """Return the message for a registry that asks for a login or refuses one."""
        if login_for(self.url).header:
            return (
                f"the schema registry {self.url} answered {status} to the login of the file that "
                f"{VARIABLE} names. Check it, and the rights of its user"
            )
        return (
            f"the schema registry {self.url} answered {status}: it wants a login. Put it into a file, "
            f"whose name the driver has in {VARIABLE}: see docs/table-payloads.md"
        )


def _client_of(url: str) -> httpx.Client:
    """Return a client of a foreign registry, with its login. Raises RegistryRefused."""
    ca = login_for(url).ca
    try:
        verify = ssl.create_default_context(cafile=ca) if ca else True
    except OSError as fault:
        raise RegistryRefused(
            f"the CA file {ca} of the registry {url} cannot be used: {fault}"
        ) from None
    near = httpx.URL(url).host in _LOOPBACK
    return httpx.Client(timeout=_SECONDS, trust_env=not near, verify=verify, auth=RegistryAuth(url))


def _is_registry(answer: httpx.Response) -> bool:
    """Report whether a 404 is the registry's own, and not that of another server or a wrong path."""
    try:
        return "error_code" in answer.json()
    except (ValueError, TypeError):
        return False


class Writers:
    """The schemas of a table's records, from its registry or from its definition."""

    def __init__(self, declared: Iterable[tuple[str, str]], registry: Registry | None) -> None:
        try:
            self._payload: Payload | None = payload_of(declared)
        except BadPayload as bad:
            raise RegistryRefused(f"{bad}: run the driver of the server's release") from None
        self._registry = registry

    def first(self) -> dict[int, Writer] | None:
        """Return the schemas before any record is read; None for a table without a payload."""
        payload = self._payload
        if payload is None or payload.format == REGISTRY:
            return None if payload is None else {}
        kind = "AVRO" if payload.format == AVRO else "PROTOBUF"
        return {UNFRAMED: Writer(kind, payload.schema, message=payload.message)}

    def of(self, numbers: Iterable[int]) -> dict[int, Writer]:
        """Return the schemas of ids. Raises Unavailable, RegistryRefused."""
        assert self._payload is not None
        if self._registry is None:
            raise RegistryRefused("this driver has no schema registry for the table")
        reader = self._registry(self._payload.url)
        return {number: reader.writer(number) for number in sorted(set(numbers))}
