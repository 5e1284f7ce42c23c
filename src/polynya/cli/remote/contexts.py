"""`polynya context`: named servers."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from polynya.cli.remote import targets
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.complete import complete_context


@click.group("context", cls=CommandGroup)
def context_command() -> None:
    """Name servers, and choose the one that commands use."""


@context_command.command("add")
@click.argument("name")
@options.value("--server URL", required=True, help="The URL of the node.")
@options.value(
    "--token-file FILE",
    help="A file with the access token. The context stores its path, not the token.",
)
@options.value(
    "--ca-file FILE", help="A certificate authority (PEM) to trust for this server only."
)
@options.flag("--use", help="Make it the current context. The first one always is.")
@options.as_json
def context_add_command(
    name: str, server: str, token_file: str | None, ca_file: str | None, use: bool, as_json: bool
) -> None:
    """Save a server under NAME; an existing one is replaced.

    \b
    polynya context add prod --server https://streams.example.com --token-file ~/.polynya-token
    polynya context add dev --server http://127.0.0.1:4437 --use
    """
    if not targets.NAME.fullmatch(name):
        raise exits.Misused(
            f"'{name}' is not a context name: use up to 64 letters, digits, '_', '-' and '.'"
        )
    context = targets.Context(
        ",".join(targets.server_urls(server)), _file(token_file), _file(ca_file)
    )
    if context.token_file:
        targets.read_token(context.token_file)
        _warn_of_readers(context.token_file)
    if context.ca_file and not Path(context.ca_file).is_file():
        raise exits.Misused(f"--ca-file: there is no file {context.ca_file}")
    path, contexts = _loaded()
    if len(contexts.known) >= targets.CONTEXTS_MAX and name not in contexts.known:
        raise exits.Refused(
            f"the limit of {targets.CONTEXTS_MAX} contexts is reached",
            hint="'polynya context rm NAME' removes one.",
        )
    current = name if use or not contexts.known else contexts.current
    contexts = replace(contexts, current=current, known={**contexts.known, name: context})
    targets.save_contexts(path, contexts)
    if as_json:
        output.json_line(_row(contexts, name))
    else:
        used = (
            "is now current"
            if current == name
            else f"was saved; 'polynya context use {name}' makes it current"
        )
        output.notice(f"context {name} {used}: {context.server}")
        _warn_of_variables()


@context_command.command("use")
@click.argument("name", shell_complete=complete_context)
def context_use_command(name: str) -> None:
    """Use the server of NAME from now on.

    \b
    polynya context use prod
    """
    path, contexts = _loaded()
    context = contexts.get(name, str(path))
    targets.save_contexts(path, replace(contexts, current=name))
    output.notice(f"context {name} is now current: {context.server}")
    _warn_of_variables()


@context_command.command("ls")
@options.as_json
def context_ls_command(as_json: bool) -> None:
    """List the contexts; a star marks the current one.

    \b
    polynya context ls
    polynya context ls --json | jq -r '.[] | select(.current) | .server'
    """
    _, contexts = _loaded()
    rows = [_row(contexts, name) for name in sorted(contexts.known)]
    if as_json:
        output.json_line(rows)
    elif rows:
        columns = ("name", "server", "token_file", "ca_file")
        heads = ("", "name", "server", "token file", "ca file")
        output.table(
            heads,
            [["*" if row["current"] else "", *(row[column] for column in columns)] for row in rows],
        )
        _warn_of_variables()
    else:
        output.notice("no contexts yet: 'polynya context add NAME --server URL' creates one")


@context_command.command("rm")
@click.argument("names", nargs=-1, required=True, shell_complete=complete_context)
def context_rm_command(names: tuple[str, ...]) -> None:
    """Remove the contexts NAMES. Token files are kept.

    \b
    polynya context rm old
    """
    path, contexts = _loaded()
    for name in names:
        contexts.get(name, str(path))
    known = {name: context for name, context in contexts.known.items() if name not in names}
    targets.save_contexts(
        path, targets.Contexts("" if contexts.current in names else contexts.current, known)
    )
    for name in names:
        output.notice(f"context {name} was removed")
    if contexts.current in names:
        output.notice("there is no current context")


def _loaded() -> tuple[Path, targets.Contexts]:
    path = targets.contexts_path(os.environ)
    return path, targets.load_contexts(path)


def _row(contexts: targets.Contexts, name: str) -> dict[str, Any]:
    context = contexts.known[name]
    return {
        "name": name,
        "current": name == contexts.current,
        "server": context.server,
        "token_file": context.token_file or None,
        "ca_file": context.ca_file or None,
    }


def _file(path: str | None) -> str:
    return str(Path(path).expanduser().absolute()) if path else ""


def _warn_of_readers(token_file: str) -> None:
    if Path(token_file).stat().st_mode & 0o077:
        output.notice(f"other users can read {token_file}; run 'chmod 600 {token_file}'")


def _warn_of_variables() -> None:
    """Warn about variables that override the current context."""
    for variable in (targets.SERVER_VARIABLE, targets.CONTEXT_VARIABLE):
        if os.environ.get(variable):
            output.notice(
                f"{variable}={os.environ[variable]} is set and overrides the current context"
            )
