"""`polynya reduce`: bind reducers to streams, and run them."""

from __future__ import annotations

import click

from polynya.cli.terminal.command_group import CommandGroup


@click.group("reduce", cls=CommandGroup)
def reduce_command() -> None:
    """Bind reducers to streams, whose states they publish as snapshots, and run them."""
