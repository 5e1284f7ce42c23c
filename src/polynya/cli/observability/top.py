"""`polynya top`: the nodes of a cluster and their figures, live."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from polynya.cli.remote.client import Client, server_option
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.progress import is_terminal
from polynya.cli.terminal.values import Seconds

if TYPE_CHECKING:
    from polynya.cli.observability.figures import Latency, Scrape

SCRAPE_SECONDS = 2.0  # a node that takes longer is shown as down
LOOK_SECONDS_MIN = 0.1
_NODES_AT_ONCE = 32
_BAR = 10  # characters
_STATE_HEADS = (*("node", "cpu", "memory", "streams", "readers", "conns", "leads", "unflushed"),)
_WORK_HEADS = (*("node", "append/s", "in/s", "p50", "p99", "fsync p99", "store/s", "store B/s"),)
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the other screen, no cursor
clock, sleep = time.monotonic, time.sleep  # replaced by tests


@click.command("top")
@options.value(
    "--interval", type=Seconds(), default="2s", help="The time between two looks at the nodes."
)
@options.flag("--once", help="Look twice, print the figures of the time between, and exit.")
@options.json_flag("Print the figures of each look as one line of JSON.")
@server_option
def top_command(client: Client, interval: float, once: bool, as_json: bool) -> None:
    """Show the nodes of a cluster live: rates and latencies of appends, fsync, streams, readers,
    connections, memory, leaders and the object store. Ctrl-C ends it.

    The figures are those of /metrics, so a token needs 'metrics'. Rates and quantiles are of the
    time between two looks, and '-' if nothing happened. A stream counts on each node that has a
    replica of it.

    \b
    polynya top
    polynya top --interval 5s --server https://a:4437,https://b:4437
    polynya top --once --json | jq '.nodes[].append_p99_seconds'
    """
    if interval < LOOK_SECONDS_MIN:
        raise exits.Misused(f"--interval is {interval:g} s; the least is {LOOK_SECONDS_MIN:g} s")
    if not (once or as_json or is_terminal(sys.stdout)):
        raise exits.Misused(
            "the output is no terminal", hint="Pass --once, or --json for a line every interval."
        )
    with Nodes(client) as nodes:
        looks = _looks(nodes, interval)
        if once or as_json:
            for look in looks:
                if as_json:
                    output.json_line(look)
                else:
                    click.echo("\n".join(lines_of(look)))
                if once:
                    return
        with _screen() as draw:
            for look in looks:
                draw(lines_of(look))


class Nodes:
    """The nodes of the cluster, each with a client of its own. A node alone is the one given."""

    def __init__(self, client: Client) -> None:
        self._stack = ExitStack()
        status = client.call("GET", "/v1/node").json()
        self.cluster = str(status.get("cluster", ""))
        own, scheme = client.server, urlsplit(client.server).scheme
        listed = status["nodes"] or {"1": own}
        urls = {number: str(listed[number]) for number in sorted(listed, key=int)}
        # a token goes to the same scheme alone, as the client library has it
        self.skipped = [url for url in urls.values() if urlsplit(url).scheme != scheme]
        self._clients: dict[str, Client] = {}
        for number, url in urls.items():
            if url in self.skipped:
                continue
            is_given = url.rstrip("/") == own.rstrip("/")
            self._clients[number] = (
                client if is_given else Client(url, token=client.token, ca_file=client.ca_file)
            )
        if not self._clients:
            raise exits.Refused(f"the nodes are at {', '.join(urls.values())}, and not {scheme}")

    def __enter__(self) -> Nodes:
        self._pool = self._stack.enter_context(ThreadPoolExecutor(_NODES_AT_ONCE))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for client in self._clients.values():
            client.wire.close()

    def scrape(self) -> list[Scrape]:
        """Return the samples of all nodes. Raises `exits.Ended` if a node refuses, or none
        answers."""
        found = [*self._pool.map(_scrape, *zip(*self._clients.items(), strict=True))]
        failures = [each for each in found if isinstance(each, exits.Unreachable)]
        if len(failures) == len(found):
            raise failures[0]
        return [
            each if not isinstance(each, exits.Unreachable) else _absent(number, client, each)
            for (number, client), each in zip(self._clients.items(), found, strict=True)
        ]


def _scrape(number: str, client: Client) -> Scrape | exits.Unreachable:
    from polynya.cli.observability.figures import Scrape
    from polynya.observability.open_metrics import samples_of

    try:
        text = client.call("GET", "/metrics", seconds=SCRAPE_SECONDS).text
    except exits.Unreachable as failure:
        return failure
    samples = samples_of(text)
    if "polynya_cores" not in samples:
        raise ValueError("no metrics of a node")  # `Client.understood` says so
    return Scrape(number, client.server, clock(), samples)


def _absent(number: str, client: Client, failure: exits.Unreachable) -> Scrape:
    from polynya.cli.observability.figures import Scrape

    return Scrape(number, client.server, clock(), reason=failure.message)


def _looks(nodes: Nodes, interval: float) -> Iterator[dict[str, Any]]:
    """Yield the figures between each look and the next."""
    from polynya.cli.observability.figures import latencies, node_figures

    before = nodes.scrape()
    while True:
        sleep(interval)
        after = nodes.scrape()
        pairs = [*zip(before, after, strict=True)]
        yield {
            "cluster": nodes.cluster,
            "interval_seconds": interval,
            "nodes": [node_figures(*pair) for pair in pairs],
            "latencies": latencies(pairs),
            "skipped": nodes.skipped,
        }
        before = after


# --- drawing --------------------------------------------------------------------------------------


def lines_of(look: dict[str, Any]) -> list[str]:
    """Return a look as lines: the sums, the nodes, the latencies, and what needs attention."""
    nodes = look["nodes"]
    up = [node for node in nodes if node["up"]]
    sums = {
        name: sum(node[name] for node in up)
        for name in (
            *("appends_per_second", "append_bytes_per_second", "memory_bytes"),
            *("live_readers", "connections", "cpu", "cores"),
        )
    }
    lines = [
        f"polynya top  {len(up)} of {output.counted(len(nodes), 'node')} up, "
        f"{output.counted(int(sums['cores']), 'core')}, every {look['interval_seconds']:g} s",
        f"{sums['appends_per_second']:,.1f} appends/s, "
        f"{output.size(sums['append_bytes_per_second'])}/s in, "
        f"{output.counted(int(sums['live_readers']), 'live reader')}, "
        f"{output.counted(int(sums['connections']), 'connection')}, "
        f"{output.size(sums['memory_bytes'])} of memory",
        "",
        *output.columns(_STATE_HEADS, [_state_row(node) for node in nodes], figures=True),
        "",
        *output.columns(_WORK_HEADS, [_work_row(node) for node in up], figures=True),
    ]
    if look["latencies"]:
        rows = [_latency_row(each) for each in look["latencies"]]
        lines += ["", *output.columns(("latency", "/s", "p50", "p99"), rows, figures=True)]
    problems = [
        *_problems(nodes),
        *(f"! {url} is left out: https or http" for url in look["skipped"]),
    ]
    return [*lines, *(("", *problems) if problems else ())]


def _state_row(node: dict[str, Any]) -> list[object]:
    if not node["up"]:
        return [node["node"], "down", *[""] * (len(_STATE_HEADS) - 2)]
    leads = node["groups_led"]
    return [
        node["node"],
        bar(node["cpu"], node["cores"]),
        output.size(node["memory_bytes"]),
        *(f"{node[name]:,.0f}" for name in ("streams", "live_readers", "connections")),
        "-" if leads is None else f"{leads:,.0f}",
        output.size(node["unflushed_bytes"]),
    ]


def _work_row(node: dict[str, Any]) -> list[object]:
    return [
        node["node"],
        f"{node['appends_per_second']:,.1f}",
        output.size(node["append_bytes_per_second"]),
        *(_time(node[name]) for name in ("append_p50_seconds", "append_p99_seconds")),
        _time(node["fsync_p99_seconds"]),
        f"{node['store_requests_per_second']:,.1f}",
        output.size(node["store_bytes_per_second"]),
    ]


def _latency_row(latency: Latency) -> list[object]:
    return [latency.name, f"{latency.rate:,.1f}", _time(latency.p50), _time(latency.p99)]


def _problems(nodes: list[dict[str, Any]]) -> list[str]:
    found = [f"! node {each['node']}: {each['reason']}" for each in nodes if not each["up"]]
    return found + [
        f"! node {each['node']}: /readyz reports {', '.join(map(output.visible, each['failing']))}"
        for each in nodes
        if each["up"] and each["failing"]
    ]


def bar(cpu: float, cores: float) -> str:
    """Return the used part of the cores as a bar, in percent of a core, and their number."""
    part = cpu / cores if cores else 0.0
    filled = min(_BAR, round(part * _BAR))
    return f"[{'|' * filled}{' ' * (_BAR - filled)}] {100 * cpu:.0f} % of {cores:.0f}"


def _time(seconds: float | None) -> str:
    """Return a duration in its unit."""
    if seconds is None:
        return "-"
    if seconds < 0.001:
        return f"{1e6 * seconds:.0f} us"
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


@contextmanager
def _screen() -> Iterator[Any]:
    """Draw on the terminal's other screen, and leave it at the end."""
    stream = sys.stdout

    def draw(lines: list[str]) -> None:
        width, height = shutil.get_terminal_size()
        shown = "".join(f"{line[:width]}{_CLEAR_LINE}\r\n" for line in lines[: height - 1])
        stream.write(_HOME + shown + _CLEAR_BELOW)
        stream.flush()

    stream.write(_ENTER)
    try:
        draw(["polynya top  looking at the nodes …"])
        yield draw
    finally:
        stream.write(_LEAVE)
        stream.flush()
