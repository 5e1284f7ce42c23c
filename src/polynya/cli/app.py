"""The `polynya` command: loads its commands lazily, and maps errors to exit codes."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from polynya.cli.terminal import exits
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.process_exit import ProcessExit
from polynya.files import keep_private

VERBS = {  # name: (module, help line), in the order of --help
    "serve": ("node.serve", "Start a node and serve until it is told to stop."),
    "cluster": ("cluster.commands", "Look at a cluster, change it while it works, and start one here for development."),
    "create": ("streams.lifecycle", "Create a stream."),
    "append": ("streams.append", "Append records to a stream, from arguments or stdin."),
    "import": ("streams.import_stream", "Copy a stream from another server."),
    "read": ("streams.read", "Read what a stream holds."),
    "tail": ("streams.read", "Follow a stream as it grows."),
    "info": ("streams.lifecycle", "Say what is known of a stream."),
    "ls": ("streams.lifecycle", "List streams."),
    "fork": ("streams.lifecycle", "Make a new stream that begins as another one."),
    "close": ("streams.lifecycle", "Close a stream: nothing can be appended any more."),
    "rm": ("streams.lifecycle", "Delete streams."),
    "sub": ("streams.subscriptions", "Have webhooks or workers woken by appends."),
    "trim": ("streams.retention", "Forget the oldest records of a stream."),
    "retention": ("streams.retention", "Say how much of a stream, or of a bucket's streams, is kept."),
    "table": ("tables", "Make and list tables."),
    "compact": ("tables", "Bring tables up to date now."),
    "lake": ("tables", "Keep tables up to date."),
    "sql": ("tables", "Ask a question of a table."),
    "token": ("node.tokens", "Make, list and revoke access tokens."),
    "config": ("node.config", "Show and check the settings of a node."),
    "context": ("remote.contexts", "Give servers names, and choose one of them."),
    "walrus": ("remote.walrus", "Speak the text protocol of Walrus."),
    "bench": ("streams.bench", "Measure a node, and check what it stored."),
    "doctor": ("diagnostics.doctor", "Check machine, settings and server; say what to do."),
    "debug": ("diagnostics.bundle", "Gather what is needed to look into a problem."),
    "man": ("man", "Print the man page."),
    "completion": ("completion", "Print the completion script of a shell."),
    "backup": ("storage.backup", "Copy a cluster, or a node by itself, while it runs."),
    "verify": ("storage.backup", "Look through a backup."),
    "restore": ("storage.backup", "Begin a node or a cluster from a backup, or from its object store."),
    "recover": ("storage.recover", "Bring single streams back out of a backup into a server that runs."),
    "store": ("storage.store", "Check and clean the object store."),
    "demo": ("demo.command", "Play the main job on real input, from streams to tables."),
}
EXIT_MEANINGS = {
    exits.OK: "done",
    exits.REFUSED: "refused: the message says why",
    exits.USAGE: "the command line or a setting is wrong",
    exits.UNREACHABLE: "the server cannot be reached, or cannot answer now: nothing was applied",
    exits.UNKNOWN: "the outcome is unknown: it may or may not have been applied",
    exits.INTERRUPTED: "interrupted",
    exits.BROKEN_PIPE: "the reader of the output went away",
}
_EXITS = "\n".join(f"  {code:<5}{meaning}" for code, meaning in EXIT_MEANINGS.items())
EPILOG = f"""
\b
Exit codes:
{_EXITS}

\b
The server is that of --server or --context, else of POLYNYA_SERVER or
POLYNYA_CONTEXT, else of the context in use ('polynya context'), else
http://127.0.0.1:4437. The access token is that of POLYNYA_TOKEN or
POLYNYA_TOKEN_FILE, else of the context.
Data goes to stdout, notices and errors to stderr.
"""


class Verbs(CommandGroup):
    """Loads the module of a command when that command is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(f"polynya.cli.{VERBS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete command names without loading their modules."""
        found = [CompletionItem(name, help=text) for name, (_, text) in VERBS.items() if name.startswith(incomplete)]
        return found if not incomplete.startswith("-") else super(click.Group, self).shell_complete(ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else " 'polynya --help' lists the commands."
            raise click.UsageError(f"No such command '{args[0]}'.{hint}", ctx)
        return super().resolve_command(ctx, args)


def _say_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        from polynya.observability.build import described

        click.echo(f"polynya {described()}")
        context.exit()


@click.group(cls=Verbs, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_say_version, help="Show the version and its commit, and exit."
)
def cli() -> None:
    """Append and tail streams over HTTP, and query every stream as a table.

    \b
    polynya serve                                    start a node here
    polynya create orders                            make a stream of JSON records
    echo '{"item": 7}' | polynya append orders       append to it
    polynya tail orders --offset start               follow it
    polynya table create orders --prefix orders      make it a table
    polynya compact && polynya sql "select * from orders"
    """


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    keep_private()
    leaving = ProcessExit()
    try:
        _run(arguments)
    except SystemExit as end:
        leaving.ended(end)
        raise


def _run(arguments: list[str] | None) -> NoReturn:
    try:
        code = cli.main(arguments, prog_name="polynya", standalone_mode=False)
        _leave(code if isinstance(code, int) else exits.OK)
    except click.ClickException as error:
        error.show()
        _leave(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _leave(exits.INTERRUPTED)
    except BrokenPipeError:
        _broken_pipe()
    except SystemExit:
        if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):  # click maps a broken pipe to 1
            sys.exit(exits.BROKEN_PIPE)
        raise


def _leave(code: int) -> NoReturn:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _broken_pipe()
    sys.exit(code)


def _broken_pipe() -> NoReturn:
    """Exit silently: the reader of stdout is gone, and the interpreter's flush must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(exits.BROKEN_PIPE)
