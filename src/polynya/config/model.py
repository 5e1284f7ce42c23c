"""The node's configuration, and what follows from its settings."""

from __future__ import annotations

import ipaddress
import os
import socket
from importlib.util import find_spec
from pathlib import Path

import msgspec

from polynya.base import limits
from polynya.base.names import REPLICATED
from polynya.config.cluster_settings import ClusterConfig
from polynya.config.sections import (
    AuthConfig,
    CatalogConfig,
    ColdConfig,
    ConsoleConfig,
    DisklessConfig,
    KafkaConfig,
    LakeConfig,
    LogConfig,
    ReduceConfig,
    SegmentsConfig,
    SqlConfig,
    TlsConfig,
    TracesConfig,
)
from polynya.objectstore.settings import StoreSettings

GROUPS_DEFAULT = 16


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All settings. `cores` and `groups` are None until the data folder is read
    (`polynya.config.node_identity`); a core process always gets numbers. `load` makes `data` an
    absolute path."""

    listen: str = "127.0.0.1:4437"
    data: str = "./polynya-data"
    cores: int | None = None
    groups: int | None = None
    scheduling: str = "batch"
    long_poll_timeout: float = limits.LONG_POLL_SECONDS_DEFAULT
    immutable_max_age: float = limits.IMMUTABLE_SECONDS_DEFAULT
    http2: str = "auto"
    strict_parameters: bool = True
    unsafe_no_auth: bool = False
    admin_listen: str = ""
    text_listen: str = ""
    text_profile: str = REPLICATED
    allowed_hosts: str = ""
    cors_origins: str = "local"
    tls: TlsConfig = TlsConfig()
    auth: AuthConfig = AuthConfig()
    cluster: ClusterConfig = ClusterConfig()
    kafka: KafkaConfig = KafkaConfig()
    log: LogConfig = LogConfig()
    traces: TracesConfig = TracesConfig()
    lake: LakeConfig = LakeConfig()
    reduce: ReduceConfig = ReduceConfig()
    sql: SqlConfig = SqlConfig()
    default_profile: str = REPLICATED
    diskless: DisklessConfig = DisklessConfig()
    segments: SegmentsConfig = SegmentsConfig()
    catalog: CatalogConfig = CatalogConfig()
    console: ConsoleConfig = ConsoleConfig()
    cold: ColdConfig = ColdConfig()

    @property
    def objects_path(self) -> Path:
        """Return the folder of the embedded object store."""
        return Path(self.data) / (self.cold.root or "objects")

    @property
    def has_own_objects(self) -> bool:
        """Return True if the embedded object store is outside the data folder."""
        return self.cold.backend == "local" and not self.objects_path.resolve().is_relative_to(
            Path(self.data).resolve()
        )

    @property
    def store(self) -> StoreSettings:
        """Return the store settings for `polynya.objectstore.settings.open_store`."""
        cold = self.cold
        root = str(self.objects_path) if cold.backend == "local" else cold.root
        shared = {
            name: getattr(cold, name) for name in StoreSettings.__struct_fields__ if name != "root"
        }
        return StoreSettings(root=root, **shared)

    @property
    def is_local(self) -> bool:
        """Return True if the base port listens on loopback only."""
        return is_loopback(split_listen(self.listen)[0])

    @property
    def needs_token(self) -> bool:
        """Return True if requests on the base port need a token."""
        return (
            not (self.is_local or self.unsafe_no_auth)
            if self.auth.required is None
            else self.auth.required
        )

    @property
    def text_address(self) -> tuple[str, int] | None:
        """Return host and port of the text protocol; None if it is off. Raise ValueError with the
        expected form."""
        if self.text_listen != "on":
            return split_listen(self.text_listen) if self.text_listen else None
        host, port = split_listen(self.listen)
        if port > 65_531:
            raise ValueError(
                "the text port is that of listen plus 4, so 'on' needs a port up to 65531; name one"
            )
        return host, port and port + 4

    @property
    def text_needs_token(self) -> bool:
        """Return True if commands of the text protocol need a token."""
        address = self.text_address
        if address is None:
            return False
        return self.needs_token or not (is_loopback(address[0]) or self.unsafe_no_auth)

    @property
    def kafka_needs_token(self) -> bool:
        """Return True if Kafka clients need a token."""
        if self.kafka.listen == "off":
            return False
        is_local = self.kafka.listen is None or is_loopback(split_listen(self.kafka.listen)[0])
        return self.needs_token or not (is_local or self.unsafe_no_auth)

    @property
    def serves_http2(self) -> bool:
        """Return True if the base port speaks HTTP/2 too."""
        return self.http2 != "off" and find_spec("h2") is not None

    @property
    def has_tokens(self) -> bool:
        """Return True if a port of this node asks for tokens."""
        fronts = self.needs_token or self.text_needs_token or self.kafka_needs_token
        return fronts or bool(self.admin_listen)

    @property
    def hosts(self) -> list[str]:
        """Return the host names that the node answers to without access control, beside those of
        the cluster."""
        return _words(self.allowed_hosts)

    @property
    def origins(self) -> list[str]:
        """Return the origins of pages that may read and write."""
        return [] if self.cors_origins.strip() == "none" else _words(self.cors_origins)

    @property
    def unsafe(self) -> list[str]:
        """Return the unsafe settings, shown by `/readyz` and `/v1/node`."""
        found = []
        if not self.is_local and not self.needs_token:
            found.append(
                f"unsafe-no-auth: anybody who reaches {self.listen} may read, write and delete"
            )
        if not self.is_local and not self.tls.is_on:
            found.append(
                f"unsafe-no-tls: traffic of {self.listen} can be read and changed in transit, "
                "tokens too"
            )
        if (
            self.admin_listen
            and not self.tls.is_on
            and not is_loopback(split_listen(self.admin_listen)[0])
        ):
            found.append(
                f"unsafe-no-tls: traffic of {self.admin_listen}, the admin port, can be read and "
                "changed in transit"
            )
        if self.kafka.listen not in (None, "off") and not is_loopback(
            split_listen(self.kafka.listen)[0]
        ):
            if not self.kafka_needs_token:
                found.append(
                    f"unsafe-no-auth: Kafka clients that reach {self.kafka.listen} may read, write "
                    "and delete topics"
                )
            if not self.tls.is_on:
                found.append(
                    f"unsafe-no-tls: traffic of {self.kafka.listen}, the Kafka port, can be read "
                    "and changed in transit, tokens too"
                )
        if (address := self.text_address) is not None and not is_loopback(address[0]):
            if not self.text_needs_token:
                found.append(
                    f"unsafe-no-auth: anybody who reaches port {address[1]}, the text protocol, may "
                    "read and write"
                )
            if not self.tls.is_on:
                found.append(
                    f"unsafe-no-tls: traffic of port {address[1]}, the text protocol, can be read "
                    "and changed in transit"
                )
        if (
            self.cluster.is_on
            and not self.cluster.ca
            and not is_loopback(self.cluster.listen_address[0])
        ):
            found.append(
                "unsafe-no-tls: anybody who reaches the peer port "
                f"{self.cluster.listen or self.cluster.own.peer} may read and write all"
            )
        return found


def _words(text: str) -> list[str]:
    """Return the comma-separated items in lower case, as browsers send hosts and origins."""
    return [word.strip().lower() for word in text.split(",") if word.strip()]


def split_listen(listen: str) -> tuple[str, int]:
    """Return host and port of `127.0.0.1:4437`, `[::1]:4437`, `:4437` (loopback) or `4437`. Raise
    ValueError with the expected form."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("expected HOST:PORT with a port from 0 to 65535")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return True if `host` (an address, or a name that resolves) reaches this machine only."""
    return all(ipaddress.ip_address(address).is_loopback for address in resolve(host))


def resolve(host: str) -> list[str]:
    """Return the numeric addresses of a host. Raise ValueError if it has none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"the host {host!r} does not resolve: {error}") from None
    return [str(entry[4][0]).split("%")[0] for entry in found]


def cores_default() -> int:
    """Return half of the CPUs available to this process, at least one."""
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, usable // 2)
