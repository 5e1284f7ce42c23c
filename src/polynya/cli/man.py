"""`polynya man`: the man page, generated from the help texts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import click

import polynya

_FILES = (
    ("./polynya.toml", "The settings of a node, unless --config names another file."),
    ("./polynya-data", "A node's data, unless --data names another folder."),
    ("~/.config/polynya/contexts.toml", "The contexts; under XDG_CONFIG_HOME if that is set."),
)


@click.command("man")
def man_command() -> None:
    """Print the man page of polynya.

    \b
    polynya man | man -l -
    polynya man > ~/.local/share/man/man1/polynya.1
    """
    click.echo(man_page(), nl=False)


def man_page() -> str:
    """Return the page in roff (man(7))."""
    from polynya.cli.app import cli
    from polynya.config.setting import PREFIX
    from polynya.config.settings import CLIENT_VARIABLES

    lines = [f'.TH POLYNYA 1 "" "polynya {_text(polynya.__version__)}" "User Commands"', ".SH NAME"]
    lines += [r"polynya \- append and tail streams over HTTP, and query every stream as a table"]
    lines += [
        ".SH SYNOPSIS",
        r".B polynya",
        r"\fICOMMAND\fR [\fIOPTIONS\fR] [\fIARGUMENTS\fR]",
        ".SH DESCRIPTION",
    ]
    lines += list(_body(inspect.cleandoc(cli.help or "")))
    lines += [".SH COMMANDS"]
    for command, context in all_commands():
        lines += _section(command, context)
    lines += [".SH EXIT STATUS", *_exits()]
    lines += [".SH ENVIRONMENT"]
    for name, doc in CLIENT_VARIABLES.items():
        lines += [".TP", rf"\fB{_text(name)}\fR", _text(doc.replace("`", "")).capitalize() + "."]
    lines += [
        ".TP",
        rf"\fB{PREFIX}\fR\fISETTING\fR",
        "Each setting of a node has a variable: 'polynya config show' lists the settings.",
    ]
    lines += [".SH FILES"]
    for name, doc in _FILES:
        lines += [".TP", rf"\fI{_text(name)}\fR", _text(doc)]
    return "\n".join(lines) + "\n"


def all_commands(**settings: Any) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield every leaf command in the order of the help, each in a context with these
    `settings`."""
    from polynya.cli.app import VERBS, cli

    with click.Context(cli, info_name="polynya", **cli.context_settings) as context:
        for name in VERBS:
            command = cli.get_command(context, name)
            assert command is not None
            yield from _commands_of(command, context, name, settings)


def _commands_of(
    command: click.Command, parent: click.Context, name: str, settings: Mapping[str, Any]
) -> Iterator[tuple[click.Command, click.Context]]:
    with click.Context(command, info_name=name, parent=parent, **settings) as context:
        if not isinstance(command, click.Group):
            yield command, context
            return
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from _commands_of(found, context, inner, settings)


def _section(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f'.SS "{_text(" ".join([context.command_path, *command.collect_usage_pieces(context)]))}"'
    yield from _body(inspect.cleandoc(command.help or ""))
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield from (".TP", rf"\fB{_text(record[0])}\fR", _text(record[1]))


def _body(text: str) -> Iterator[str]:
    """Yield paragraphs; click keeps the lines of those that start with a backspace."""
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield ".PP"
        lines = paragraph.splitlines()
        if lines and lines[0].strip() == "\b":
            yield from (".RS 4", ".nf", *(_text(line) for line in lines[1:]), ".fi", ".RE")
        else:
            yield from map(_text, lines)


def _exits() -> Iterator[str]:
    from polynya.cli.app import EXIT_MEANINGS

    for code, meaning in EXIT_MEANINGS.items():
        yield from (".TP", rf"\fB{code}\fR", _text(meaning))


def _text(text: str) -> str:
    """Escape plain text for roff."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq")
    return rf"\&{escaped}" if escaped[:1] in (".", "'") else escaped
