"""Read the settings: defaults < TOML file < environment < flags. Every problem names its origin."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from polynya.base.errors import ConfigError
from polynya.config.cluster_settings import ClusterConfig, nodes_text
from polynya.config.contradictions import contradictions
from polynya.config.model import Config
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

DEFAULT_FILE = "polynya.toml"
REDACTED = "***"


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
        together = contradictions(loaded.config, origins)
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
