"""`polynya token`: create, list and revoke access tokens, in a node's data folder or over its admin
port."""

from __future__ import annotations

import contextlib
import getpass
import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import click

from polynya.base.errors import ConfigError
from polynya.cli.node.setting_flags import config_option
from polynya.cli.remote.client import Client, server_option
from polynya.cli.remote.targets import find_target
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.values import SECONDS

_PATH = "/v1/admin/tokens"
_JWTS = "/v1/admin/jwts"
_LIMITS = {
    "requests": "requests_per_second",
    "bytes": "bytes_per_second",
    "streams": "streams",
    "connections": "connections",
}


class Tokens(Protocol):
    """A store of tokens, in the form that the admin port uses."""

    def create(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Create a token; the result includes `secret`."""
        ...

    def all(self) -> list[dict[str, Any]]: ...

    def revoke(self, which: str) -> dict[str, Any]: ...

    def revoke_jwts(self, unwanted: Mapping[str, Any]) -> dict[str, Any]:
        """Revoke by `jti` or `sub`, with an expiry; return the entry."""
        ...

    def revoked_jwts(self) -> list[dict[str, Any]]: ...


def tokens_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that locate a node's tokens, and pass a `Tokens` as first argument."""

    @options.value(
        "--data FOLDER", help="The node's data folder. Default: the one in its settings."
    )
    @config_option
    @options.server(
        "Use the API of this node, with an admin token, instead of writing to its data folder.",
        context="Use the API of the node of this context.",
    )
    @wraps(command)
    def with_tokens(
        *args: Any,
        data: str | None,
        file: str | None,
        server: str | None,
        context: str | None,
        **given: Any,
    ) -> Any:
        if (server or context) and (data or file):
            raise click.UsageError(
                "--server and --context use a node's API; --data and --config use its folder. "
                "Pass one of them."
            )
        if not (server or context):
            return command(_Folder(_data_folder(data, file)), *args, **given)
        with (
            Client.of(find_target(server, context, os.environ)) as client,
            client.understood(),
            client.admin() as admin,
        ):
            return command(_Node(admin), *args, **given)

    return with_tokens


@click.group("token", cls=CommandGroup)
def token_command() -> None:
    """Create, list and revoke access tokens.

    Without --server the command writes to the node's data folder, and a running node loads the
    change within a quarter of a second. With --server it uses the admin port. Access control is on
    when the node listens beyond loopback, or with auth.required.
    """


@token_command.command("create")
@click.argument("name")
@options.value(
    "--allow SCOPE",
    "scopes",
    multiple=True,
    required=True,
    help="VERB[,VERB][:PREFIX]. Repeatable.",
)
@options.value(
    "--expires", type=SECONDS, help="The lifetime of the token: 12h, 30d.  [default: never]"
)
@options.value(
    "--requests N", type=click.FloatRange(0), default=0, help="Limit of requests per second."
)
@options.value(
    "--bytes",
    type=options.Number(0),
    default=0,
    help="Limit of body bytes per second, in both directions.",
)
@options.value(
    "--streams",
    type=options.Number(0),
    default=0,
    help="Refuse creates when its prefixes have this many streams.",
)
@options.value(
    "--connections", type=options.Number(0), default=0, help="Limit of open connections."
)
@options.as_json
@tokens_option
def token_create_command(
    tokens: Tokens,
    name: str,
    scopes: tuple[str, ...],
    expires: float | None,
    as_json: bool,
    **limits: float,
) -> None:
    """Create a token and print it once: only its hash is stored.

    Verbs are read, append, create, delete, subscribe, table, metrics and admin; 'all' is those that
    can be limited to a prefix. The prefix 'orders/' is the bucket, 'orders' is every name in the
    default bucket that starts so; without a prefix it is all streams.

    \b
    polynya token create shop --allow read,append:orders/ --expires 30d
    polynya token create root --allow all,admin
    export POLYNYA_TOKEN=$(polynya token create reader --allow read)
    """
    wanted = {
        "name": name,
        "scopes": list(scopes),
        "expires_in_seconds": expires,
        "limits": {_LIMITS[key]: value for key, value in limits.items() if value},
    }
    token = tokens.create(wanted)
    if as_json:
        output.json_line(token)
        return
    click.echo(token["secret"])
    until = (
        f"until {_moment(token['expires_ms'])}" if token["expires_ms"] else "until it is revoked"
    )
    output.notice(
        f"token {token['id']} ({name}) is valid {until}; save it now, it is not shown again"
    )


@token_command.command("mint")
@options.value("--stream NAME", help="The one stream that the token is for.")
@options.value("--prefix PREFIX", help="All streams under this prefix, such as runs/7/.")
@options.value(
    "--allow VERB",
    "verbs",
    multiple=True,
    default=("read",),
    help="read, append or create. Repeatable.  [default: read]",
)
@options.value(
    "--expires", type=SECONDS, default="10min", help="The lifetime, up to 1h.  [default: 10min]"
)
@options.as_json
@server_option
def token_mint_command(
    client: Client,
    stream: str | None,
    prefix: str | None,
    verbs: tuple[str, ...],
    expires: float,
    as_json: bool,
) -> None:
    """Mint a short token for a web page and print it.

    Your own token signs it, so it allows no more than yours, and ends with it. Nothing is stored;
    a short token cannot be revoked alone.

    \b
    polynya token mint --prefix runs/7/ --allow read --expires 10min
    """
    if (stream is None) == (prefix is None):
        raise click.UsageError("Pass what the token is for: --stream NAME or --prefix PREFIX.")
    resource = {"prefix": prefix} if stream is None else {"stream": stream}
    wanted = resource | {"verbs": list(verbs), "expires_in_seconds": expires}
    minted: dict[str, Any] = client.call("POST", "/v1/tokens/short", body=wanted).json()
    if as_json:
        output.json_line(minted)
        return
    click.echo(minted["token"])
    output.notice(f"the token is valid until {_moment(minted['expires_ms'])}")


@token_command.command("ls")
@options.flag(
    "--all", "everything", help="Include tokens that were revoked or expired in the last 30 days."
)
@options.flag("--jwts", help="List revoked JWTs instead.")
@options.as_json
@tokens_option
def token_ls_command(tokens: Tokens, everything: bool, jwts: bool, as_json: bool) -> None:
    """List the tokens, without their secrets.

    \b
    polynya token ls
    polynya token ls --all --data /var/lib/polynya
    polynya token ls --jwts
    """
    if jwts:
        _show_jwts(tokens.revoked_jwts(), as_json=as_json)
        return
    found = [token for token in tokens.all() if everything or token["state"] == "active"]
    if as_json:
        output.json_line(found)
        return
    if not found:
        output.notice("no tokens yet: 'polynya token create NAME --allow read' creates one")
    rows = [
        (
            token["id"],
            token["name"],
            token["state"],
            " ".join(token["scopes"]) or "what Kafka's ACLs allow",
            _moment(token["created_ms"]),
            _moment(token["expires_ms"]),
        )
        for token in sorted(found, key=lambda token: str(token["name"]))
    ]
    output.table(("id", "name", "state", "allowed", "created", "expires"), rows)


@token_command.command("revoke")
@click.argument("token", required=False)
@options.value("--jti ID", help="Revoke the JWT with this id instead.")
@options.value("--sub SUBJECT", help="Revoke all JWTs issued to this subject so far instead.")
@options.value(
    "--keep",
    type=SECONDS,
    help="Keep JWTs revoked this long; must exceed their lifetime.  [default: 30d]",
)
@options.as_json
@tokens_option
def token_revoke_command(
    tokens: Tokens,
    token: str | None,
    jti: str | None,
    sub: str | None,
    keep: float | None,
    as_json: bool,
) -> None:
    """Revoke a token by its id or name, or JWTs.

    Requests are refused within a quarter of a second, and open streams with the token are cut off.
    A subject whose JWTs are revoked may return with a newer one from the issuer.

    \b
    polynya token revoke shop
    polynya token revoke 21e4a2ea9c2c --server https://streams.example.com:4437
    polynya token revoke --sub alice@example.com
    """
    if sum(value is not None for value in (token, jti, sub)) != 1:
        raise click.UsageError("pass one of: a TOKEN (id or name), --jti or --sub")
    if token is None:
        wanted = {"jti": jti, "sub": sub, "expires_in_seconds": keep}
        entry = tokens.revoke_jwts(
            {key: value for key, value in wanted.items() if value is not None}
        )
        what = f"the JWT {jti}" if jti is not None else f"every JWT issued to {sub} so far"
        output.outcome(
            entry, f"{what} is revoked until {_moment(entry['expires_ms'])}", as_json=as_json
        )
        return
    if keep is not None:
        raise click.UsageError("--keep needs --jti or --sub: a revoked token stays revoked")
    revoked = tokens.revoke(token)
    output.outcome(
        revoked, f"token {revoked['id']} ({revoked['name']}) is revoked", as_json=as_json
    )


def _show_jwts(found: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        output.json_line(found)
        return
    rows = [
        (
            "jti" if "jti" in entry else "sub",
            entry.get("jti") or entry["sub"],
            _moment(entry["revoked_ms"]),
            _moment(entry["expires_ms"]),
        )
        for entry in found
    ]
    output.table(("claim", "value", "revoked", "until"), rows)


class _Folder:
    """The token file in a data folder."""

    def __init__(self, data: Path) -> None:
        from polynya.access.token_file import TokenFile
        from polynya.admin.audit import AuditFile

        self._tokens = TokenFile(data)
        self._audit = AuditFile(data)

    def create(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        import msgspec

        from polynya.access.token_file import Wanted
        from polynya.front.http.api.tokens import shown

        with self._noted("token.create", str(wanted["name"])):
            record, text = self._tokens.add(
                msgspec.convert(wanted, Wanted), int(time.time() * 1000)
            )
        return {**shown(record), "secret": text}

    def all(self) -> list[dict[str, Any]]:
        from polynya.front.http.api.tokens import shown

        with _explained():
            return [shown(record) for record in self._tokens.read()]

    def revoke(self, which: str) -> dict[str, Any]:
        from polynya.front.http.api.tokens import shown

        with self._noted("token.revoke", which):
            return shown(self._tokens.revoke(which, int(time.time() * 1000)))

    def revoke_jwts(self, unwanted: Mapping[str, Any]) -> dict[str, Any]:
        import msgspec

        from polynya.access.revocations import UnwantedJwt

        with self._noted("jwt.revoke", str(unwanted.get("jti") or unwanted.get("sub"))):
            entry = self._tokens.revoke_jwt(
                msgspec.convert(unwanted, UnwantedJwt), int(time.time() * 1000)
            )
        found: dict[str, Any] = msgspec.to_builtins(entry)
        return found

    def revoked_jwts(self) -> list[dict[str, Any]]:
        import msgspec

        from polynya.front.http.api.tokens import shown_jwts

        with _explained():
            return [msgspec.to_builtins(entry) for entry in shown_jwts(self._tokens.load())]

    @contextlib.contextmanager
    def _noted(self, act_name: str, target: str) -> Iterator[None]:
        from polynya.admin.audit import act

        outcome = "failed"
        try:
            with _explained():
                yield
                outcome = "ok"
        finally:
            with contextlib.suppress(OSError):
                self._audit.write(
                    act(act_name, target, f"{getpass.getuser()} on this machine", outcome=outcome)
                )


class _Node:
    """The admin port of a node."""

    def __init__(self, admin: Client) -> None:
        self._admin = admin

    def create(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        return self._call("POST", _PATH, "token", wanted)

    def all(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._admin.call("GET", _PATH).json()["tokens"]
        return found

    def revoke(self, which: str) -> dict[str, Any]:
        return self._call("DELETE", f"{_PATH}/{quote(which, safe='')}", "token")

    def revoke_jwts(self, unwanted: Mapping[str, Any]) -> dict[str, Any]:
        return self._call("POST", _JWTS, "revoked", unwanted)

    def revoked_jwts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._admin.call("GET", _JWTS).json()["revoked"]
        return found

    def _call(
        self, method: str, path: str, key: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        found: dict[str, Any] = self._admin.call(method, path, body=body).json()[key]
        return found


def _data_folder(data: str | None, file: str | None) -> Path:
    """Return the data folder. Raises `exits.Misused` if it is not a node's, unless `--data` names
    it."""
    if data:
        return Path(data).expanduser().absolute()
    from polynya.config.loading import load

    try:
        folder = Path(load({}, environ=os.environ, path=file).config.data)
    except ConfigError as error:
        raise exits.Misused(str(error), hint="With --data the settings are not read.") from None
    if not (folder / "node.json").exists():
        hint = "Pass the data folder with --data (it may be new), or a node with --server."
        raise exits.Misused(f"{folder} contains no node's data", hint=hint)
    return folder


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    from polynya.access.grants import BadScope
    from polynya.access.token_file import NoToken

    try:
        yield
    except BadScope as bad:
        raise exits.Misused(str(bad)) from None
    except NoToken as none:
        raise exits.Refused(
            str(none), code="TOKEN_NOT_FOUND", hint="'polynya token ls' lists them."
        ) from None
    except ConfigError as error:
        raise exits.Refused(str(error)) from None


def _moment(ms: int | None) -> str:
    return (
        "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    )
