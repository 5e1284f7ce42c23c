"""The node's configuration: defaults < TOML file < environment < flags; every problem is named with its origin."""

from __future__ import annotations

import difflib
import ipaddress
import os
import socket
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from polynya.base import limits
from polynya.base.errors import ConfigError
from polynya.node.settings import BY_ENV, BY_FLAG, BY_KEY, CLIENT_VARIABLES, PREFIX, SETTINGS, Setting
from polynya.node.toml_lines import lines_of_keys
from polynya.objectstore.settings import StoreSettings

DEFAULT_FILE = "polynya.toml"
GROUPS_DEFAULT = 16
REDACTED = "***"


class ColdConfig(StoreSettings, frozen=True, kw_only=True):
    """The object tier: which store, and when it is written to. Sizes in bytes."""

    flush_interval_ms: int = limits.FLUSH_INTERVAL_MS
    flush_bytes: int = limits.FLUSH_BYTES
    flush_min_hot_bytes: int | None = None
    flush_max_bytes: int | None = None
    flush_max_age_ms: int = limits.FLUSH_MAX_AGE_MS
    flush_max_concurrency: int = limits.FLUSH_MAX_CONCURRENCY
    delete_grace_ms: int = limits.DELETE_GRACE_MS
    max_hot_bytes_per_group: int = limits.HOT_BYTES_PER_GROUP

    @property
    def flush_from_bytes(self) -> int:
        """Hot bytes of a core from which on it flushes."""
        return self.flush_bytes if self.flush_min_hot_bytes is None else self.flush_min_hot_bytes

    @property
    def pack_bytes_max(self) -> int:
        """Payload of one pack at most."""
        return self.flush_bytes if self.flush_max_bytes is None else self.flush_max_bytes


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    level: str = "info"
    format: str = "logfmt"


class LakeConfig(msgspec.Struct, frozen=True, kw_only=True):
    interval: float = 0.0  # seconds; 0 is never
    master: str = "local[*]"


class SqlConfig(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = True
    timeout: float = 30.0  # seconds
    memory: int = 512 * limits.MIB


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All settings. `cores` and `groups` are None until the data folder has been consulted (`polynya.node.birth`); a core process
    always gets numbers. `data` is an absolute path when `load` made this."""

    listen: str = "127.0.0.1:4437"
    data: str = "./polynya-data"
    cores: int | None = None
    groups: int | None = None
    long_poll_timeout: float = limits.LONG_POLL_SECONDS_DEFAULT
    unsafe_no_auth: bool = False
    log: LogConfig = LogConfig()
    lake: LakeConfig = LakeConfig()
    sql: SqlConfig = SqlConfig()
    cold: ColdConfig = ColdConfig()

    @property
    def objects_path(self) -> Path:
        """The folder of the embedded object store."""
        return Path(self.data) / (self.cold.root or "objects")

    @property
    def store(self) -> StoreSettings:
        """The object store, as `polynya.objectstore.settings.open_store` wants it."""
        cold = self.cold
        root = str(self.objects_path) if cold.backend == "local" else cold.root
        shared = {name: getattr(cold, name) for name in StoreSettings.__struct_fields__ if name != "root"}
        return StoreSettings(root=root, **shared)

    @property
    def unsafe(self) -> list[str]:
        """What an operator must not forget: shown by `/readyz` and `/v1/node`."""
        host = split_listen(self.listen)[0]
        return [] if is_loopback(host) else [f"unsafe-no-auth: anybody who reaches {self.listen} may read, write and delete"]


class Loaded(msgspec.Struct, frozen=True):
    """A configuration, and where each value came from: key -> "default", a file, a variable or a flag."""

    config: Config
    origins: dict[str, str]


def load(flags: Mapping[str, str], *, environ: Mapping[str, str], path: str | None = None, folder: str = ".") -> Loaded:
    """Read all sources. `flags` maps flag (`--listen`) to text; `path` is the TOML file, else `folder/polynya.toml` if it is there.

    Raises `ConfigError` that lists every problem with its origin.
    """
    problems: list[str] = []
    found: dict[str, tuple[str, str]] = {}  # key -> text, origin
    for key, text, origin in _from_file(path, folder, problems):
        found[key] = (text, origin)
    for variable, text in environ.items():
        if variable.startswith(PREFIX) and variable not in CLIENT_VARIABLES:
            _note(found, BY_ENV.get(variable), text, variable, problems, BY_ENV)
    for flag, text in flags.items():
        _note(found, BY_FLAG.get(flag), text, flag, problems, BY_FLAG)
    values: dict[str, Any] = {}
    for key, (text, origin) in found.items():
        try:
            values[key] = BY_KEY[key].read(text)
        except ValueError as error:
            shown = REDACTED if BY_KEY[key].secret else repr(text)
            problems.append(f"{origin}: {shown}: {error}")
    origins = {setting.key: found[setting.key][1] if setting.key in found else "default" for setting in SETTINGS}
    if not problems:
        config = _build(values)
        problems = list(_cross_problems(config, origins))
        if not problems:
            return Loaded(config, origins)
    raise ConfigError("\n".join(problems))


def show(loaded: Loaded) -> list[tuple[str, str, str]]:
    """(key, value, origin) of every setting, secrets redacted."""
    rows = []
    for setting in SETTINGS:
        value: Any = loaded.config
        for part in setting.key.split("."):
            value = getattr(value, part)
        shown = REDACTED if setting.secret and value else "" if value is None else str(value)
        rows.append((setting.key, shown, loaded.origins[setting.key]))
    return rows


def split_listen(listen: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:4437`, `[::1]:4437`, `:4437` (loopback) or `4437`. Raises ValueError saying what was expected."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("expected HOST:PORT with a port from 0 to 65535")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether `host` (an address, or a name that resolves) reaches this machine only."""
    return all(ipaddress.ip_address(address).is_loopback for address in resolve(host))


def resolve(host: str) -> list[str]:
    """The numeric addresses of a host; raises ValueError when it has none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"the host {host!r} does not resolve: {error}") from None
    return [str(entry[4][0]).split("%")[0] for entry in found]


def cores_default() -> int:
    """Half of the CPUs that this process may use, at least one."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable // 2)


def _note(
    found: dict[str, tuple[str, str]], setting: Setting | None, text: str, origin: str, problems: list[str], known: Iterable[str]
) -> None:
    if setting is None:
        problems.append(f"{origin}: unknown{_nearest(origin, known)}")
    else:
        found[setting.key] = (text, origin)


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, [name for name in known if name], n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _from_file(path: str | None, folder: str, problems: list[str]) -> list[tuple[str, str, str]]:
    """(key, text, origin) of each setting in the TOML file."""
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
    rooms: dict[str, dict[str, Any]] = {"": {}, "log": {}, "lake": {}, "cold": {}}
    for key, value in values.items():
        room, _, name = key.rpartition(".")
        rooms[room][name] = value
    top = rooms[""]
    top["data"] = str(Path(top.get("data", BY_KEY["data"].default)).expanduser().absolute())
    return Config(**top, log=LogConfig(**rooms["log"]), lake=LakeConfig(**rooms["lake"]), cold=ColdConfig(**rooms["cold"]))


def _cross_problems(config: Config, origins: Mapping[str, str]) -> Iterable[str]:
    """What is wrong with settings that are each well-formed."""
    origin = f"listen ({origins['listen']})"
    try:
        host, _ = split_listen(config.listen)
        if not is_loopback(host) and not config.unsafe_no_auth:
            yield (
                f"{origin}: {config.listen} is reachable from other machines and this release has no access control; "
                "listen on 127.0.0.1 behind a proxy that authenticates, or add --unsafe-no-auth"
            )
    except ValueError as error:
        yield f"{origin}: {config.listen!r}: {error}"
    cold = config.cold
    if cold.backend == "s3" and not cold.s3_bucket:
        yield f"cold.backend ({origins['cold.backend']}): s3 needs a bucket; set cold.s3_bucket or POLYNYA_COLD_S3_BUCKET"
    if bool(cold.s3_access_key_id) != bool(cold.s3_secret_access_key):
        have, miss = ("s3_access_key_id", "s3_secret_access_key")
        if not cold.s3_access_key_id:
            have, miss = miss, have
        yield f"cold.{have} ({origins['cold.' + have]}): goes together with cold.{miss}, which is not set"
    if config.cores is not None and config.cores > (config.groups or GROUPS_DEFAULT):
        yield f"cores ({origins['cores']}): {config.cores} cores for {config.groups or GROUPS_DEFAULT} groups leave some without work"
