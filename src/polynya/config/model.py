"""The node's configuration: defaults < TOML file < environment < flags. Every problem names its
origin."""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import os
import re
import socket
import tomllib
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from polynya.base import limits
from polynya.base.errors import ConfigError
from polynya.base.limits import PARTITIONS_MAX
from polynya.base.names import DISKLESS, REPLICATED
from polynya.config.cluster_settings import ClusterConfig, cluster_problems, nodes_text
from polynya.config.ports import port_problems
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
from polynya.config.setting import PREFIX, Setting
from polynya.config.settings import BY_ENV, BY_FLAG, BY_KEY, CLIENT_VARIABLES, SETTINGS
from polynya.config.toml_lines import lines_of_keys
from polynya.config.ursula import aliases_in, conflicts_in, warnings_in
from polynya.objectstore.settings import StoreSettings

DEFAULT_FILE = "polynya.toml"
GROUPS_DEFAULT = 16
REDACTED = "***"
_HOST = re.compile(r"[\w.-]+|\[[0-9a-f:.]+\]", re.ASCII)
_COOKIE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#,@]+", re.ASCII)


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
    def text_place(self) -> tuple[str, int] | None:
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
        place = self.text_place
        if place is None:
            return False
        return self.needs_token or not (is_loopback(place[0]) or self.unsafe_no_auth)

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
        if (place := self.text_place) is not None and not is_loopback(place[0]):
            if not self.text_needs_token:
                found.append(
                    f"unsafe-no-auth: anybody who reaches port {place[1]}, the text protocol, may "
                    "read and write"
                )
            if not self.tls.is_on:
                found.append(
                    f"unsafe-no-tls: traffic of port {place[1]}, the text protocol, can be read "
                    "and changed in transit"
                )
        if (
            self.cluster.is_on
            and not self.cluster.ca
            and not is_loopback(self.cluster.listen_place[0])
        ):
            found.append(
                "unsafe-no-tls: anybody who reaches the peer port "
                f"{self.cluster.listen or self.cluster.own.peer} may read and write all"
            )
        return found


def _words(text: str) -> list[str]:
    """Return the comma-separated items in lower case, as browsers send hosts and origins."""
    return [word.strip().lower() for word in text.split(",") if word.strip()]


class Loaded(msgspec.Struct, frozen=True):
    """A configuration and the origin of each value: key -> "default", a file, a variable or a
    flag."""

    config: Config
    origins: dict[str, str]
    warnings: list[str] = []  # about variables of the environment


def load(
    flags: Mapping[str, str],
    *,
    environ: Mapping[str, str],
    path: str | None = None,
    folder: str = ".",
) -> Loaded:
    """Read all sources. `flags` maps flag (`--listen`) to text; `path` is the TOML file, by default
    `folder/polynya.toml` if it exists.

    Raise `ConfigError` that lists every problem with its origin.
    """
    loaded, problems = inspect(flags, environ=environ, path=path, folder=folder)
    if problems:
        raise ConfigError("\n".join(problems))
    return loaded


def inspect(
    flags: Mapping[str, str],
    *,
    environ: Mapping[str, str],
    path: str | None = None,
    folder: str = ".",
) -> tuple[Loaded, list[str]]:
    """Read all sources as `load` does, and return the problems. An unreadable setting keeps its
    default."""
    problems: list[str] = []
    found: dict[str, tuple[str, str]] = {}  # key -> text, origin
    for key, text, origin in _from_file(path, folder, problems):
        found[key] = (text, origin)
    file_is_unread = bool(problems) and not found
    for variable, text in environ.items():
        if variable.startswith(PREFIX) and variable not in CLIENT_VARIABLES:
            _note(found, BY_ENV.get(variable), text, variable, problems, BY_ENV)
    problems += conflicts_in(environ)
    for alias, variable in aliases_in(environ).items():
        _note(found, BY_ENV[variable], environ[alias], alias, problems, BY_ENV)
    for flag, text in flags.items():
        _note(found, BY_FLAG.get(flag), text, flag, problems, BY_FLAG)
    values = _values(found, problems)
    origins = {
        setting.key: found[setting.key][1] if setting.key in found else "default"
        for setting in SETTINGS
    }
    loaded = Loaded(_build(values), origins, warnings_in(environ))
    if not file_is_unread:  # else the combination of settings is unknown
        unknown = [
            setting
            for setting in SETTINGS
            if setting.key not in values and _names(setting, problems)
        ]
        together = _cross_problems(loaded.config, origins)
        problems += [
            problem
            for problem in together
            if not any(_names(setting, [problem]) for setting in unknown)
        ]
    return loaded, problems


def _values(found: Mapping[str, tuple[str, str]], problems: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, (text, origin) in found.items():
        try:
            values[key] = BY_KEY[key].read(text)
        except ValueError as error:
            shown = REDACTED if BY_KEY[key].secret else repr(text)
            problems.append(f"{origin}: {shown}: {error}")
    return values


def _names(setting: Setting, problems: Iterable[str]) -> bool:
    """Return True if one of the problems names the setting by key, variable or flag."""
    names = "|".join(re.escape(name) for name in (setting.key, setting.env, setting.flag) if name)
    return any(re.search(rf"(?<![\w.-])(?:{names})(?![\w.-]\w)", problem) for problem in problems)


def show(loaded: Loaded) -> list[tuple[str, str, str]]:
    """Return (key, value, origin) of every setting, secrets redacted."""
    return [
        (
            each.key,
            _shown(value_of(loaded.config, each.key), secret=each.secret),
            loaded.origins[each.key],
        )
        for each in SETTINGS
    ]


def _shown(value: Any, *, secret: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return (
        REDACTED
        if secret and value
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )


def value_of(config: Config, key: str) -> Any:
    """Return the value of a setting by its dotted key."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


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


def _note(
    found: dict[str, tuple[str, str]],
    setting: Setting | None,
    text: str,
    origin: str,
    problems: list[str],
    known: Iterable[str],
) -> None:
    if setting is None:
        problems.append(f"{origin}: unknown{_nearest(origin, known)}")
    else:
        found[setting.key] = (text, origin)


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, [name for name in known if name], n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _from_file(path: str | None, folder: str, problems: list[str]) -> list[tuple[str, str, str]]:
    """Yield (key, text, origin) of each setting in the TOML file."""
    file = Path(folder) / DEFAULT_FILE if path is None else Path(path)
    if path is None and not file.exists():
        return []
    try:
        text = file.read_text("utf-8")
        tree = tomllib.loads(text)
    except OSError as error:
        problems.append(f"{file}: {error.strerror}")
        return []
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{file}: no valid TOML: {error}")
        return []
    if path is not None and not text.strip():
        problems.append(
            f"{file}: it is empty, as after a power cut, and defaults would start another node; "
            "restore it from a copy (that of a node of "
            "'polynya cluster dev' is written again when that starts), or leave --config out"
        )
    rows = []
    lines = lines_of_keys(text)
    for key, value in _flatten(tree, ""):
        origin = f"{file}:{lines[key]}: {key}" if key in lines else f"{file}: {key}"
        if key not in BY_KEY:
            problems.append(f"{origin}: unknown{_nearest(key, BY_KEY)}")
        elif isinstance(value, bool):
            rows.append((key, "true" if value else "false", origin))
        elif isinstance(value, str | int | float):
            rows.append((key, str(value), origin))
        elif key == "cluster.nodes":
            try:
                rows.append((key, nodes_text(value), origin))
            except ValueError as error:
                problems.append(f"{origin}: {error}")
        else:
            problems.append(f"{origin}: expected {BY_KEY[key].kind}, not a {type(value).__name__}")
    return rows


def _flatten(tree: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in tree.items():
        if isinstance(value, dict):
            rows.extend(_flatten(value, f"{prefix}{name}."))
        else:
            rows.append((prefix + name, value))
    return rows


def _build(values: dict[str, Any]) -> Config:
    shapes = {
        "tls": TlsConfig,
        "auth": AuthConfig,
        "cluster": ClusterConfig,
        "kafka": KafkaConfig,
        "log": LogConfig,
        "traces": TracesConfig,
        "lake": LakeConfig,
        "reduce": ReduceConfig,
        "sql": SqlConfig,
        "diskless": DisklessConfig,
        "segments": SegmentsConfig,
        "catalog": CatalogConfig,
        "console": ConsoleConfig,
        "cold": ColdConfig,
    }
    rooms: dict[str, dict[str, Any]] = {room: {} for room in ("", *shapes)}
    for key, value in values.items():
        room, _, name = key.rpartition(".")
        rooms[room][name] = value
    top = rooms[""]
    top["data"] = str(Path(top.get("data", BY_KEY["data"].default)).expanduser().absolute())
    return Config(**top, **{room: shape(**rooms[room]) for room, shape in shapes.items()})


def _reach_problems(config: Config, origins: Mapping[str, str]) -> Iterable[str]:
    """Yield the ports that other machines reach without access control or TLS, unless a setting
    allows that."""
    for key, listen, what in (
        ("listen", config.listen, "it"),
        ("admin_listen", config.admin_listen, "the admin port"),
        ("text_listen", config.text_listen, "the text protocol"),
        ("kafka.listen", _kafka_listen(config), "Kafka"),
    ):
        if key != "listen" and not listen:
            continue
        origin = f"{key} ({origins[key]})"
        try:
            place = config.text_place if key == "text_listen" else split_listen(listen)
            is_local = place is None or is_loopback(place[0])
        except ValueError as error:
            yield f"{origin}: {listen!r}: {error}"
            continue
        if is_local or config.unsafe_no_auth:
            continue
        if config.auth.required is False and key == "listen":
            yield (
                f"{origin}: {listen} is reachable from other machines, but auth.required is "
                "false; remove that, or add --unsafe-no-auth"
            )
        if not config.tls.is_on:
            yield (
                f"{origin}: {listen} is reachable from other machines, and {what} has no TLS; set "
                "tls.cert and tls.key, or --tls-self for "
                "a trial, or listen on 127.0.0.1 behind a proxy, or add --unsafe-no-auth"
            )


def _access_problems(config: Config, origins: Mapping[str, str]) -> Iterable[str]:
    tls, auth = config.tls, config.auth
    if config.http2 == "on" and not config.serves_http2:
        yield (
            f"http2 ({origins['http2']}): 'on' needs the library h2, which is not installed: "
            "install the extra polynya[h2], or choose auto or off"
        )
    if bool(tls.cert) != bool(tls.key):
        yield "tls.cert and tls.key go together; one of them is not set"
    if tls.self and tls.cert:
        yield "tls.self generates a certificate: remove it, or tls.cert and tls.key"
    if auth.cookie and not _COOKIE.fullmatch(auth.cookie):
        yield (
            f"auth.cookie ({origins['auth.cookie']}): {auth.cookie!r} is not the name of a cookie; "
            "expected one such as __Host-polynya"
        )
    jwt = (auth.jwt_issuer, auth.jwt_audience, auth.jwt_keys)
    if any(jwt) and not all(jwt):
        yield (
            "auth.jwt_issuer, auth.jwt_audience and auth.jwt_keys go together; one of them is not "
            "set"
        )
    if auth.jwt_keys.startswith("http://") and not _is_local_url(auth.jwt_keys):
        yield (
            f"auth.jwt_keys ({origins['auth.jwt_keys']}): unencrypted keys can be forged; use "
            "https://"
        )
    for host in config.hosts:
        if host != "*" and not _HOST.fullmatch(host):
            yield (
                f"allowed_hosts ({origins['allowed_hosts']}): {host!r} is not a host name; "
                "expected one such as polynya.internal, in ASCII (xn--…) and "
                "without a port"
            )
    for origin in config.origins:
        if origin not in ("*", "local") and not _ORIGIN.fullmatch(origin):
            yield (
                f"cors_origins ({origins['cors_origins']}): {origin!r} is not an origin; expected "
                "one such as https://app.example.com, without a path"
            )


def _cluster_problems(config: Config, origins: Mapping[str, str]) -> Iterable[str]:
    cluster = config.cluster
    yield from cluster_problems(cluster, origins)
    if not cluster.lists_itself:
        return
    host = cluster.listen_place[0]
    try:
        if not (is_loopback(host) or cluster.ca or cluster.unsafe_no_tls):
            yield (
                f"cluster.nodes ({origins['cluster.nodes']}): the peer port on {host} is "
                "reachable from other machines, and nodes do not "
                "authenticate each other; set cluster.ca, cluster.cert and cluster.key ('polynya "
                "cluster ca' makes some for a trial), or add "
                "--cluster-unsafe-no-tls"
            )
    except ValueError as error:
        yield f"cluster.nodes ({origins['cluster.nodes']}): {error}"
    if config.cold.backend == "memory" or (
        config.cold.backend == "local" and not config.cold.root and cluster.others
    ):
        yield (
            f"cold.backend ({origins['cold.backend']}): the nodes of a cluster share one object "
            "store; choose s3, or none, or local with "
            "cold.root set to a folder that all nodes see"
        )


def _kafka_problems(config: Config, origins: Mapping[str, str]) -> Iterable[str]:
    if not 1 <= config.kafka.partitions <= PARTITIONS_MAX:
        yield (
            f"kafka.partitions ({origins['kafka.partitions']}): {config.kafka.partitions}; "
            f"a topic has 1 to {PARTITIONS_MAX} partitions"
        )
    place = config.kafka.advertised
    if not place:
        return
    origin = f"kafka.advertised ({origins['kafka.advertised']})"
    try:
        port = split_listen(place)[1]
    except ValueError as error:
        yield f"{origin}: {place!r}: {error}"
        return
    if not port:
        yield f"{origin}: {place!r}: clients need a port from 1 to 65535"


def _kafka_listen(config: Config) -> str:
    """Return the address for Kafka clients, "" for the default one and for none."""
    return "" if config.kafka.listen in (None, "off") else str(config.kafka.listen)


def _other_places(config: Config) -> dict[str, tuple[str, int]]:
    """Return host and port of the settings beside `listen`. Raises ValueError: no address."""
    places = {}
    if config.admin_listen:
        places["admin_listen"] = split_listen(config.admin_listen)
    if config.text_place is not None:
        places["text_listen"] = config.text_place
    if _kafka_listen(config):
        places["kafka.listen"] = split_listen(_kafka_listen(config))
    return places


def _is_local_url(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return is_loopback(host)
    except ValueError:
        return False


def _cross_problems(config: Config, origins: Mapping[str, str]) -> Iterable[str]:
    """Yield the contradictions between settings that are each well-formed."""
    yield from _reach_problems(config, origins)
    yield from _access_problems(config, origins)
    yield from _cluster_problems(config, origins)
    yield from _kafka_problems(config, origins)
    with contextlib.suppress(ValueError):  # what is no address is named above
        yield from port_problems(split_listen(config.listen), _other_places(config), origins)
    cold = config.cold
    if config.lake.interval and cold.backend in ("none", "memory"):
        yield (
            f"lake.interval ({origins['lake.interval']}): tables need an object store that others "
            f"can read; cold.backend is {cold.backend}"
        )
    if config.reduce.workers and config.needs_token and not config.reduce.token_file:
        yield (
            f"reduce.workers ({origins['reduce.workers']}): requests need a token; set "
            "reduce.token_file to a file with one that has the verb 'admin'"
        )
    if cold.backend == "s3" and not cold.s3_bucket:
        yield (
            f"cold.backend ({origins['cold.backend']}): s3 needs a bucket; set cold.s3_bucket or "
            "POLYNYA_COLD_S3_BUCKET"
        )
    for key, profile in (
        ("default_profile", config.default_profile),
        ("text_profile", config.text_profile),
    ):
        if profile == DISKLESS and cold.backend == "none":
            yield (
                f"{key} ({origins[key]}): diskless streams need an object store, and cold.backend "
                "is none"
            )
    if cold.shared and not config.has_own_objects:
        yield (
            f"cold.shared ({origins['cold.shared']}): only a folder outside the data folder can "
            "be shared, as other users cannot enter that; set "
            "cold.backend = local and cold.root to one outside, or leave cold.shared out"
        )
    if bool(cold.s3_access_key_id) != bool(cold.s3_secret_access_key):
        have, miss = ("s3_access_key_id", "s3_secret_access_key")
        if not cold.s3_access_key_id:
            have, miss = miss, have
        yield (
            f"cold.{have} ({origins['cold.' + have]}): goes together with cold.{miss}, which is "
            "not set"
        )
    if config.cores is not None and config.cores > (config.groups or GROUPS_DEFAULT):
        yield (
            f"cores ({origins['cores']}): {config.cores} cores for "
            f"{config.groups or GROUPS_DEFAULT} groups leave some without work"
        )
