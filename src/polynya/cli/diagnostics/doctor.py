"""`polynya doctor`: check for common problems, and suggest fixes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict

import click

from polynya.cli.diagnostics.findings import FAIL, OK, WARN, Finding
from polynya.cli.node.setting_flags import config_option, loaded_config, with_hidden_settings
from polynya.cli.remote.client import Client
from polynya.cli.remote.targets import SERVER_DEFAULT, find_target
from polynya.cli.terminal import exits, options, output

COLOURS = {OK: "green", WARN: "yellow", FAIL: "red"}


@click.command("doctor")
@options.server(f"The node to check. Default: the current context, else {SERVER_DEFAULT}.")
@config_option
@options.json_flag("Print one JSON object per check: name, status, said, step.")
@with_hidden_settings
def doctor_command(
    server: str | None, context: str | None, file: str | None, as_json: bool, **values: str | None
) -> None:
    """Check this machine, the settings, the data folder, the object store and the server, and
    suggest a fix for each problem. Accepts the flags of 'polynya serve'.

    It can run before the first start, and beside a running node. Exit code 1 means that a check
    failed; warnings do not count.

    \b
    polynya doctor
    polynya doctor --config /etc/polynya.toml
    polynya doctor --json | jq -r 'select(.status == "FAIL") | .step'
    """
    counts = {OK: 0, WARN: 0, FAIL: 0}
    for finding in findings(server, context, file, values):
        counts[finding.status] += 1
        if as_json:
            output.json_line(asdict(finding))
        else:
            _show(finding)
    if not as_json:
        output.notice(
            f"{counts[OK]} ok, {output.counted(counts[WARN], 'warning')}, "
            f"{output.counted(counts[FAIL], 'failure')}"
        )
    if counts[FAIL]:
        raise click.exceptions.Exit(exits.REFUSED)


def findings(
    server: str | None, context: str | None, file: str | None, values: Mapping[str, str | None]
) -> Iterator[Finding]:
    """Yield the result of every check; `values` are the flags of settings by variable."""
    from polynya.cli.diagnostics import machine

    yield machine.check_python()
    yield from machine.check_packages()
    yield machine.check_java()
    yield machine.check_clock()
    found = list(_server(server, context))
    running = any(finding.name == "server" and finding.status == OK for finding in found)
    yield from _settings(file, values, running=running)
    yield from found


def _settings(
    file: str | None, values: Mapping[str, str | None], *, running: bool
) -> Iterator[Finding]:
    """Check the settings and what they name; invalid settings end the checks."""
    from polynya.cli.diagnostics.data_dir import check_data, check_ports
    from polynya.cli.diagnostics.machine import check_open_files, check_worker
    from polynya.cli.diagnostics.store import check_store

    try:
        loaded = loaded_config(file, values)
    except exits.Misused as wrong:
        yield Finding(
            "settings",
            FAIL,
            "; ".join(wrong.message.splitlines()),
            "'polynya config check' lists the problems; fix them first.",
        )
        return
    changed = sum(origin != "default" for origin in loaded.origins.values())
    yield Finding(
        "settings", OK, f"{output.counted(changed, 'setting')} of {len(loaded.origins)} changed"
    )
    for line in loaded.config.unsafe:
        yield Finding("settings", WARN, line, "Not for production: see docs/access.md.")
    yield check_open_files(loaded.config)
    yield from check_worker(loaded.config)
    yield from _caught("data folder", check_data(loaded.config))
    yield from _caught(
        "port", check_ports(loaded.config, running=running and _holds_ports(loaded.config.listen))
    )
    yield from _caught("object store", check_store(loaded.config))


def _caught(name: str, checks: Iterator[Finding]) -> Iterator[Finding]:
    """Turn an error of a check into a finding."""
    try:
        yield from checks
    except (OSError, ValueError) as error:
        yield Finding(
            name,
            FAIL,
            f"cannot be checked: {error}",
            "Check the permissions of this user, and the settings.",
        )


def _server(server: str | None, context: str | None) -> Iterator[Finding]:
    from polynya.cli.diagnostics.server import check_server

    try:
        target = find_target(server, context, os.environ)
        with Client.of(target) as client:
            yield from check_server(client)
    except click.ClickException as wrong:
        yield Finding("server", FAIL, wrong.message, getattr(wrong, "hint", ""))


def _holds_ports(listen: str) -> bool:
    """Return True if a node responds where these settings would listen."""
    from polynya.config.model import split_listen

    host, port = split_listen(listen)
    try:
        with Client(
            f"http://{host}:{port}" if ":" not in host else f"http://[{host}]:{port}"
        ) as client:
            return bool(client.call("GET", "/v1/node", seconds=2.0).json()["ports"]["http"] == port)
    except (click.ClickException, ValueError, KeyError, TypeError):
        return False


def _show(finding: Finding) -> None:
    status = click.style(
        f"{finding.status:<5}", fg=COLOURS[finding.status], bold=finding.status != OK
    )
    click.echo(f"{status} {finding.name:<15} {finding.said}")
    if finding.step:
        click.echo(f"      {'':<15} → {finding.step}")
