"""`polynya cost`: the use of the object store and of the network between zones, and the money."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from polynya.base.errors import ConfigError
from polynya.cli.remote.client import Client, server_option
from polynya.cli.terminal import exits, options, output

if TYPE_CHECKING:
    from polynya.cost import Bill, CostReport, Prices

HOURS_MAX = 720  # a node keeps 30 days
_CAUSES = (
    ("requests", "requests to the store"),
    ("store_transfer", "bytes to and from the store"),
    ("zone_payload", "payload between zones"),
    ("zone_catalog", "catalog between zones"),
    ("disks", "disks"),
)


@click.command("cost")
@options.value(
    "--hours",
    type=click.IntRange(1, HOURS_MAX),
    default=24,
    help="The present hour and those before it, this many in all.",
)
@options.value(
    "--prices FILE",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A price file (TOML). Default: list prices of Amazon S3 and EC2 in us-east-1.",
)
@options.flag("--show-prices", help="Print the default price file, to be changed.")
@options.as_json
@server_option
def cost_command(
    client: Client, hours: int, file: Path | None, show_prices: bool, as_json: bool
) -> None:
    """Show the requests to the object store and the bytes between zones of all nodes, the money for
    them, and estimates of the same appends on each profile.

    \b
    polynya cost
    polynya cost --hours 168 --prices ours.toml
    polynya cost --show-prices > ours.toml
    polynya cost --json | jq .bill.totals
    """
    import msgspec

    from polynya.cost import bill_of
    from polynya.cost.prices import default_text

    if show_prices:
        click.echo(default_text(), nl=False)
        return
    prices = _prices(file)
    report = _report(client, hours)
    bill = bill_of(report, prices)
    if as_json:
        shown = msgspec.to_builtins(report)
        output.json_line({**shown, "bill": msgspec.to_builtins(bill)})
    else:
        _show(report, bill)
    for node in report.missing:
        output.notice(f"! node {node} did not answer: its use is missing")
    for each in report.nodes:
        for core in each.missing_cores:
            output.notice(f"! core {core} of node {each.node} did not answer: its use is missing")


def show_cost(client: Client, hours: int) -> None:
    """Print the use and its money at the default prices."""
    from polynya.cost import bill_of, default_prices

    report = _report(client, hours)
    _show(report, bill_of(report, default_prices()))


def _report(client: Client, hours: int) -> CostReport:
    import msgspec

    from polynya.cost import CostReport

    content = client.call("GET", "/v1/cost", params={"hours": str(hours)}).content
    return msgspec.json.decode(content, type=CostReport)


def _prices(file: Path | None) -> Prices:
    """Return the prices. Raises Misused."""
    from polynya.cost import default_prices, read_prices

    if file is None:
        return default_prices()
    try:
        return read_prices(file.read_text("utf-8"), str(file))
    except ConfigError as error:
        raise exits.Misused(str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise exits.Misused(f"{file} cannot be read: {error}") from None


def _show(report: CostReport, bill: Bill) -> None:
    shape = report.shape
    click.echo(
        f"{output.counted(report.hours, 'hour')} from {report.since} to {report.until}: "
        f"{output.counted(shape.nodes, 'node')} with {output.counted(shape.cores, 'core')} in "
        f"{output.counted(shape.zones, 'zone')}"
    )
    _show_store(report)
    _show_packed(report)
    _show_zones(report)
    click.echo()
    _show_money(report, bill)


def _show_store(report: CostReport) -> None:
    rows = [
        (
            node.node,
            node.zone,
            work,
            *(calls.get(name, 0) for name in ("put", "get", "head", "list", "delete")),
            output.size(calls.get("up", 0)),
            output.size(calls.get("down", 0)),
        )
        for node in report.nodes
        for work, calls in sorted(node.usage.store.items())
    ]
    if rows:
        click.echo()
        heads = ("node", "zone", "work", "PUT", "GET", "HEAD", "LIST", "DELETE", "up", "down")
        output.table(heads, rows)
    else:
        output.notice("no request to the object store in this time")


def _show_packed(report: CostReport) -> None:
    """Print the bytes of slices before and after their compression, of all nodes."""
    total: dict[str, dict[str, int]] = {}
    for node in report.nodes:
        for work, sizes in node.usage.packed.items():
            for name, size in sizes.items():
                total.setdefault(work, {}).setdefault(name, 0)
                total[work][name] += size
    rows = [
        (
            work,
            output.size(sizes["payload"]),
            output.size(sizes.get("stored", 0)),
            f"{sizes.get('stored', 0) / sizes['payload']:.2f}",
        )
        for work, sizes in sorted(total.items())
        if sizes.get("payload")
    ]
    if rows:
        click.echo()
        output.table(("packs of", "payload", "stored", "ratio"), rows)


def _show_zones(report: CostReport) -> None:
    total: dict[tuple[str, str, str], int] = {}
    for node in report.nodes:
        for each in node.usage.zones:
            key = (each.source, each.target, each.kind)
            total[key] = total.get(key, 0) + each.bytes
    if total:
        click.echo()
        rows = [
            (source or "-", target or "-", kind, output.size(count))
            for (source, target, kind), count in sorted(total.items())
        ]
        output.table(("from zone", "to zone", "kind", "bytes"), rows)


def _show_money(report: CostReport, bill: Bill) -> None:
    columns = (bill.measured, bill.replicated, bill.diskless)
    rows = [
        (label, *(f"{getattr(money, name):,.6f}" for money in columns)) for name, label in _CAUSES
    ]
    rows.append(("total", *(f"{money.total:,.6f}" for money in columns)))
    heads = (bill.currency, "measured", "if replicated", "if diskless")
    output.table(heads, rows)
    appends = sum(node.usage.appends for node in report.nodes)
    size = sum(node.usage.append_bytes for node in report.nodes)
    output.notice(
        "the last two columns are estimates for the same appends: "
        f"{output.counted(appends, 'request')}, {output.size(size)}"
    )
