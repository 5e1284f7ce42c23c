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
from polynya.cli.terminal.exits import ProcessExit
from polynya.files import keep_private

VERBS = {  # name: (module, help line), in the order of --help
    "serve": ("node.serve", "Start a node and serve until SIGTERM or Ctrl-C."),
    "cluster": (
        "cluster.commands",
        "Operate a cluster, or start one on this machine for development.",
    ),
    "create": ("streams.lifecycle", "Create a stream."),
    "append": ("streams.append", "Append records to a stream, from arguments or stdin."),
    "import": ("streams.import_stream", "Copy a stream from another server."),
    "read": ("streams.read", "Read the records of a stream."),
    "tail": ("streams.read", "Follow a stream: print new records as they arrive."),
    "produce": ("kafka.produce", "Write records to a Kafka topic, from arguments or stdin."),
    "consume": ("kafka.consume", "Print the records of a Kafka topic, and follow it."),
    "mirror": (
        "mirror.command",
        "Copy topics of another Kafka cluster with their offsets, and take them over.",
    ),
    "info": ("streams.lifecycle", "Show the properties of a stream."),
    "ls": ("streams.lifecycle", "List streams."),
    "fork": (
        "streams.lifecycle",
        "Fork a stream: create one that begins with the records of another.",
    ),
    "close": ("streams.lifecycle", "Close a stream: it accepts no more appends."),
    "rm": ("streams.lifecycle", "Delete streams."),
    "rollover": ("streams.lifecycle", "Close the open segment of a leased stream."),
    "sub": ("streams.subscriptions", "Manage subscriptions: appends wake webhooks or workers."),
    "group": ("streams.groups", "List and manage the consumer groups of Kafka clients."),
    "txn": ("streams.transactions", "List and abort the transactions of Kafka clients."),
    "trim": ("streams.retention", "Delete the oldest records of a stream."),
    "stream": ("streams.lifecycle", "Show or change the profile of a stream."),
    "bucket": ("streams.buckets", "List buckets, and set the profile of their new streams."),
    "retention": ("streams.retention", "Set, show or clear the retention of a stream or a bucket."),
    "attrs": ("streams.attributes", "Show, set and remove the attributes of a stream."),
    "snapshot": (
        "streams.snapshots",
        "Publish, list, read and delete the snapshots of a stream.",
    ),
    "bootstrap": (
        "streams.snapshots",
        "Print the newest snapshot of a stream and the records behind it.",
    ),
    "reduce": ("reducers.commands", "Bind reducers to streams, and run them."),
    "topic": ("streams.topics", "Manage Kafka topics: partitions and configs."),
    "schema": ("streams.schemas", "Manage the schemas of the schema registry."),
    "table": ("tables.commands", "Create, list, sync and change tables."),
    "compact": ("tables.commands", "Sync tables now: a second name of 'table sync'."),
    "lake": ("tables.commands", "Sync tables continuously."),
    "sql": ("tables.commands", "Run an SQL query over tables."),
    "token": ("node.tokens", "Create, list and revoke access tokens."),
    "config": ("node.config", "Show and check the settings of a node."),
    "context": ("remote.contexts", "Save servers under names, and choose the default server."),
    "walrus": ("remote.walrus", "Send commands of the Walrus text protocol."),
    "bench": ("streams.bench", "Measure a node, and verify the records that it stored."),
    "doctor": (
        "diagnostics.doctor",
        "Check the machine, the settings and the server, and suggest fixes.",
    ),
    "debug": ("diagnostics.bundle", "Collect diagnostics for support."),
    "top": ("observability.top", "Show the nodes and their figures live."),
    "observability": (
        "observability.commands",
        "Print the Grafana dashboard and the Prometheus alert rules.",
    ),
    "man": ("man", "Print the man page."),
    "completion": ("terminal.complete", "Print the completion script of a shell."),
    "backup": ("storage.backup", "Back up a running cluster or single node."),
    "verify": ("storage.backup", "Verify a backup: checksums and references."),
    "restore": (
        "storage.backup",
        "Restore a node or a cluster from a backup or from the object store.",
    ),
    "recover": ("storage.recover", "Restore single streams from a backup into a running server."),
    "store": ("storage.store", "Verify and clean the object store."),
    "cost": ("storage.cost", "Show what the object store and traffic between zones cost."),
    "demo": ("demo.command", "Run an end-to-end demo on real data, from streams to tables."),
}
EXIT_MEANINGS = {
    exits.OK: "done",
    exits.REFUSED: "refused: the message gives the reason",
    exits.USAGE: "the command line or a setting is wrong",
    exits.UNREACHABLE: "the server is unreachable or unavailable: nothing was applied",
    exits.UNKNOWN: "the outcome is unknown: the request may have been applied",
    exits.INTERRUPTED: "interrupted",
    exits.BROKEN_PIPE: "broken pipe: the reader of stdout exited",
}
_EXITS = "\n".join(f"  {code:<5}{meaning}" for code, meaning in EXIT_MEANINGS.items())
EPILOG = f"""
\b
Exit codes:
{_EXITS}

\b
The server comes from --server or --context, else from POLYNYA_SERVER or
POLYNYA_CONTEXT, else from the current context ('polynya context'), else it is
http://127.0.0.1:4437. The access token comes from POLYNYA_TOKEN or
POLYNYA_TOKEN_FILE, else from the context.
Data goes to stdout, notices and errors to stderr.

\b
A node listens for HTTP on 127.0.0.1:4437, for Prometheus and health on the
next port, for Kafka clients on 127.0.0.1:9092, and with --text-listen on for
the text protocol of Walrus on 4441. 'polynya serve' prints the ports.
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
        found = [
            CompletionItem(name, help=text)
            for name, (_, text) in VERBS.items()
            if name.startswith(incomplete)
        ]
        return (
            found
            if not incomplete.startswith("-")
            else super(click.Group, self).shell_complete(ctx, incomplete)
        )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = (
                f" Did you mean '{near[0]}'?" if near else " 'polynya --help' lists the commands."
            )
            raise click.UsageError(f"No such command '{args[0]}'.{hint}", ctx)
        return super().resolve_command(ctx, args)


def _say_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        from polynya.observability.build import described

        click.echo(f"polynya {described()}")
        context.exit()


@click.group(
    cls=Verbs,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_say_version,
    help="Show the version and its commit, and exit.",
)
def cli() -> None:
    """Append and tail streams over HTTP, and query every stream as a table.

    \b
    polynya serve                                    start a node here
    polynya create orders                            create a stream of JSON records
    echo '{"item": 7}' | polynya append orders       append to it
    polynya tail orders --offset start               follow it
    polynya table create orders --prefix orders      create a table of it
    polynya table sync && polynya sql "select * from orders"
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
        # click maps a broken pipe to 1
        if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
            sys.exit(exits.BROKEN_PIPE)
        raise


def _leave(code: int) -> NoReturn:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _broken_pipe()
    sys.exit(code)


def _broken_pipe() -> NoReturn:
    """Exit silently: the reader of stdout is gone, and the interpreter's flush must not fail
    again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(exits.BROKEN_PIPE)
