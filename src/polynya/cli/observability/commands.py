"""`polynya observability`: print the Grafana dashboard, or the alert rules for Prometheus."""

from __future__ import annotations

import click

from polynya.cli.terminal.command_group import CommandGroup


@click.group("observability", cls=CommandGroup)
def observability_command() -> None:
    """Print what monitors a node, made of the table of its metrics.

    \b
    polynya observability dashboard > polynya.json
    polynya observability alerts > polynya.rules.yaml
    """


@observability_command.command("dashboard")
def dashboard_command() -> None:
    """Print a dashboard for Grafana 10.1 or newer, as JSON to import: a panel for each metric.

    \b
    polynya observability dashboard > polynya.json
    """
    from polynya.observability.dashboard import dashboard

    click.echo(dashboard(), nl=False)


@observability_command.command("alerts")
def alerts_command() -> None:
    """Print alert rules for Prometheus, as YAML for `rule_files`.

    \b
    polynya observability alerts > polynya.rules.yaml
    promtool check rules polynya.rules.yaml
    """
    from polynya.observability.alerts import rules

    click.echo(rules(), nl=False)
