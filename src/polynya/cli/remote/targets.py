"""The server and token of a command: flags, then environment, then context, then default; and the
URLs of servers.

Contexts are stored in a TOML file with mode 0600. It holds the paths of token files, never tokens.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from polynya.cli.terminal import exits
from polynya.cli.terminal.values import toml_text
from polynya.files import make_folder, write_whole

SERVER_DEFAULT = "http://127.0.0.1:4437"
SERVER_VARIABLE = "POLYNYA_SERVER"
CONTEXT_VARIABLE = "POLYNYA_CONTEXT"
TOKEN_VARIABLE = "POLYNYA_TOKEN"  # noqa: S105 (the name of a variable)
TOKEN_FILE_VARIABLE = "POLYNYA_TOKEN_FILE"  # noqa: S105
CA_VARIABLE = "POLYNYA_CA_FILE"
TOKEN_BYTES_MAX = 16_384
CONTEXTS_MAX = 1000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_FIELDS = ("server", "token_file", "ca_file")
_HOST = re.compile(r"[\w.-]+|[0-9a-f:.]+(%[\w.-]+)?")  # a name, or an address with its zone


@dataclass(frozen=True)
class Context:
    """A named server. `token_file` and `ca_file` are absolute paths, or empty."""

    server: str
    token_file: str = ""
    ca_file: str = ""


@dataclass(frozen=True)
class Contexts:
    """The contents of the file. `current` is empty if no context is in use."""

    current: str
    known: dict[str, Context]

    def get(self, name: str, origin: str) -> Context:
        """Return a context. Raises `exits.Misused` if it does not exist."""
        if name in self.known:
            return self.known[name]
        near = difflib.get_close_matches(name, self.known, n=1)
        hint = (
            f"Did you mean {near[0]}?"
            if near
            else "'polynya context ls' lists the contexts, 'polynya context add' creates one."
        )
        raise exits.Misused(f"{origin}: there is no context '{name}'", hint=hint)


@dataclass(frozen=True)
class Target:
    """The server of a command. `origin` says which source chose it; `token` may be empty."""

    server: str
    origin: str
    token: str = ""
    ca_file: str = ""


def contexts_path(environ: Mapping[str, str]) -> Path:
    """Return the contexts file, by the XDG base directories."""
    base = environ.get("XDG_CONFIG_HOME", "")
    folder = (
        Path(base)
        if base.startswith("/")
        else Path(environ.get("HOME") or os.path.expanduser("~")) / ".config"
    )
    return folder / "polynya" / "contexts.toml"


def load_contexts(path: Path) -> Contexts:
    """Return the contexts; none if the file is missing. Raises `exits.Misused` if it is invalid."""
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return Contexts("", {})
    except OSError as error:
        raise exits.Misused(
            f"{path}: {error.strerror}",
            hint="With --server or POLYNYA_SERVER the file is not read.",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise exits.Misused(
            f"{path}: invalid TOML: {error}",
            hint="Fix the file, or move it away and add the contexts again.",
        ) from None
    known = tree.get("contexts", {})
    current = tree.get("current", "")
    if not isinstance(known, dict) or not isinstance(current, str):
        raise exits.Misused(f'{path}: expected current = "NAME" and tables [contexts.NAME]')
    return Contexts(current, {name: _context(path, name, fields) for name, fields in known.items()})


def save_contexts(path: Path, contexts: Contexts) -> None:
    """Replace the file atomically, with mode 0600; a new folder gets 0700. Raises
    `exits.Refused`."""
    lines = [f"current = {toml_text(contexts.current)}"]
    for name, context in sorted(contexts.known.items()):
        lines += ["", f"[contexts.{toml_text(name)}]"]
        lines += [
            f"{field} = {toml_text(value)}"
            for field in _FIELDS
            if (value := getattr(context, field))
        ]
    try:
        make_folder(path.parent, mode=0o700)
        write_whole(path, ("\n".join(lines) + "\n").encode())
    except OSError as error:
        raise exits.Refused(f"{path} cannot be written: {error.strerror}") from None


def find_target(
    server: str | None, context: str | None, environ: Mapping[str, str], *, token: str = ""
) -> Target:
    """Return the server of the flags, else of the environment, else of the current context, else
    the default.

    `token` comes from `--token`. A context's token is sent only to its server. Raises
    `exits.Misused`.
    """
    if server and context:
        raise exits.Misused("--server and --context both set the server; pass one of them")
    token = checked_token(token, "--token") if token else _token_of_environment(environ)
    ca_file = environ.get(CA_VARIABLE, "")
    if server:
        return Target(server, "--server", token, ca_file)
    if not context and environ.get(SERVER_VARIABLE):
        return Target(environ[SERVER_VARIABLE], SERVER_VARIABLE, token, ca_file)
    path = contexts_path(environ)
    contexts = load_contexts(path)
    wanted = [
        (context, "--context"),
        (environ.get(CONTEXT_VARIABLE), CONTEXT_VARIABLE),
        (contexts.current, str(path)),
    ]
    for name, origin in wanted:
        if name:
            found = contexts.get(name, origin)
            token = token or (read_token(found.token_file) if found.token_file else "")
            return Target(
                found.server, f"context {name} ({origin})", token, found.ca_file or ca_file
            )
    return Target(SERVER_DEFAULT, "default", token, ca_file)


def read_token(file: str) -> str:
    """Return the token in a file. Raises `exits.Misused` if it holds none."""
    try:
        with Path(file).expanduser().open("rb") as opened:
            raw = opened.read(TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise exits.Misused(f"the token file {file} cannot be read: {error.strerror}") from None
    return checked_token(raw.decode("ascii", "replace"), file)


def checked_token(text: str, origin: str) -> str:
    """Return a token that is valid in a header. Raises `exits.Misused`."""
    token = text.strip()
    if (
        not token
        or len(token) > TOKEN_BYTES_MAX
        or not token.isascii()
        or not token.isprintable()
        or " " in token
    ):
        raise exits.Misused(f"{origin} holds no token: expected one word of printable ASCII")
    return token


def _token_of_environment(environ: Mapping[str, str]) -> str:
    if environ.get(TOKEN_VARIABLE):
        return checked_token(environ[TOKEN_VARIABLE], TOKEN_VARIABLE)
    return read_token(environ[TOKEN_FILE_VARIABLE]) if environ.get(TOKEN_FILE_VARIABLE) else ""


def _context(path: Path, name: str, fields: Any) -> Context:
    if (
        not NAME.fullmatch(name)
        or not isinstance(fields, dict)
        or not isinstance(fields.get("server"), str)
    ):
        raise exits.Misused(
            f"{path}: [contexts.{name}] is invalid: a context needs a name of letters and digits, "
            "and a server"
        )
    odd = [key for key, value in fields.items() if key not in _FIELDS or not isinstance(value, str)]
    if odd:
        raise exits.Misused(
            f"{path}: contexts.{name}.{odd[0]}: a context has {', '.join(_FIELDS)}, all strings"
        )
    return Context(**fields)


def server_url(server: str, origin: str = "--server") -> str:
    """Return the URL without a trailing slash; completes `HOST:PORT`. Raises click.UsageError."""
    url = server if "://" in server else f"http://{server}"
    try:
        parsed = urlsplit(url)
        good = (
            parsed.scheme in ("http", "https")
            and _HOST.fullmatch(parsed.hostname or "") is not None
            and not parsed.query
            and not parsed.fragment
        )
        _ = parsed.port  # raises ValueError for an invalid port
    except ValueError:
        good = False
    if not good or not url.isprintable() or " " in url:
        raise click.UsageError(
            f"{origin} {server!r} is not a URL; expected a form like {SERVER_DEFAULT}"
        )
    return url.rstrip("/")


def server_urls(servers: str, origin: str = "--server") -> list[str]:
    """Parse one or several URLs separated by commas. Raises click.UsageError."""
    found = list(
        dict.fromkeys(
            server_url(part.strip(), origin) for part in servers.split(",") if part.strip()
        )
    )
    if not found:
        raise click.UsageError(
            f"{origin} contains no server; expected a form like {SERVER_DEFAULT}"
        )
    if len({urlsplit(url).scheme for url in found}) > 1:
        raise click.UsageError(f"{origin}: the nodes of a cluster are all https or all http")
    return found


def is_loopback(url: str) -> bool:
    """Return True if the URL names this machine."""
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
