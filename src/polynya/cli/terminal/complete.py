"""Shell completion of names: streams, tables, topics, groups, subscriptions, contexts.

It gives up if the server does not respond quickly."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import quote_plus, urlsplit

import click
from click.shell_completion import CompletionItem, get_completion_class

from polynya.cli.remote.targets import (
    Target,
    contexts_path,
    find_target,
    load_contexts,
    server_urls,
)

VARIABLE = "_POLYNYA_COMPLETE"
PROGRAM = "polynya"
SHELLS = ("bash", "zsh", "fish")
ANSWER_SECONDS = 0.7  # timeout of one completion
NAMES_MAX = 100
ANSWER_BYTES_MAX = 1 << 20
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _of_server(path: str, rows: str, key: str = "name") -> Complete:
    """Return the completion of names in the server's answer to `path`; long lists are cut."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        found = _asked(ctx, path.format(prefix=quote_plus(incomplete), most=NAMES_MAX))
        return _items([row[key] for row in found[rows]] if found else [], incomplete)

    return complete


complete_stream = _of_server("/v1/streams?prefix={prefix}&limit={most}", "streams")
complete_table = _of_server("/v1/tables", "tables")
complete_topic = _of_server("/v1/topics", "topics")
complete_group = _of_server("/v1/groups?prefix={prefix}", "groups", "group")
complete_transaction = _of_server("/v1/transactions?prefix={prefix}", "transactions", "id")
complete_subscription = _of_server(
    "/v1/stream/__ds/subscriptions?limit={most}", "subscriptions", "id"
)


def complete_subject(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete subjects of the schema registry."""
    path = f"/registry/subjects?subjectPrefix={quote_plus(incomplete)}&limit={NAMES_MAX}"
    return _items(_asked(ctx, path) or [], incomplete)


def complete_context(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete context names."""
    return _items(
        _quietly(lambda: sorted(load_contexts(contexts_path(os.environ)).known)) or [], incomplete
    )


def _items(names: list[str], incomplete: str) -> list[CompletionItem]:
    """Keep names that are one plain word in every shell: others need shell-specific quoting."""
    plain = [
        name
        for name in names
        if name.startswith(incomplete)
        and name.isprintable()
        and not set(name) & set(" \t:,'\"`$\\()<>|&;*?[]{}!#~")
    ]
    return [CompletionItem(name) for name in plain[:NAMES_MAX]]


def _asked(ctx: click.Context, path: str) -> Any:
    """Return the server's response as JSON, or None: a completion must not fail or print."""

    def ask() -> Any:
        target = find_target(ctx.params.get("server"), ctx.params.get("context"), os.environ)
        return _got(target, path)

    return _quietly(ask)


def _got(target: Target, path: str) -> Any:
    import http.client
    import ssl

    url = urlsplit(server_urls(target.server)[0])
    host = url.hostname or ""
    connection = http.client.HTTPConnection(host, url.port or 80, timeout=ANSWER_SECONDS)
    if url.scheme == "https":
        trusted = ssl.create_default_context(cafile=target.ca_file or None)
        connection = http.client.HTTPSConnection(
            host, url.port or 443, timeout=ANSWER_SECONDS, context=trusted
        )
    try:
        headers = {"Authorization": f"Bearer {target.token}"} if target.token else {}
        connection.request("GET", url.path + path, headers=headers)
        answer = connection.getresponse()
        return json.loads(answer.read(ANSWER_BYTES_MAX)) if answer.status == 200 else None
    finally:
        connection.close()


def _quietly(work: Callable[[], Any]) -> Any:
    import http.client

    try:
        return work()
    except (
        OSError,
        http.client.HTTPException,
        ValueError,
        KeyError,
        TypeError,
        click.ClickException,
    ):
        return None


@click.command("completion")
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(SHELLS))
def completion_command(shell: str) -> None:
    """Print the completion script of SHELL. Stream names are fetched from the server while you
    type.

    \b
    polynya completion bash > ~/.local/share/bash-completion/completions/polynya
    polynya completion zsh > ~/.zfunc/_polynya       (and fpath+=~/.zfunc before compinit in ~/.zshrc)
    polynya completion fish > ~/.config/fish/completions/polynya.fish
    source <(polynya completion bash)                (for this shell alone)
    """
    from polynya.cli.app import cli

    found = get_completion_class(shell)
    assert found is not None
    # Click's script for fish splits a help text at every comma and shows only the first part.
    click.echo(
        found(cli, {}, PROGRAM, VARIABLE)
        .source()
        .replace('(string split "," $', '(string split --max 1 "," $')
    )
