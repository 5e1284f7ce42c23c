"""`polynya completion`: shell completion scripts for commands, options and stream names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_POLYNYA_COMPLETE"
PROGRAM = "polynya"
SHELLS = ("bash", "zsh", "fish")


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
