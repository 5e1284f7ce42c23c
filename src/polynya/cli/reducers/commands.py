"""`polynya reduce`: bind reducers to streams, and run them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from polynya.cli.reducers.trial import test_command
from polynya.cli.remote.client import Client, server_option
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.complete import complete_stream
from polynya.cli.terminal.values import SECONDS
from polynya.reducers.reducer import ReducerFault
from polynya.reducers.wasm.limits import FUEL_PER_MIB, MEMORY_BYTES, Budget
from polynya.reducers.wasm.sandbox import Sandbox

if TYPE_CHECKING:
    from polynya.cli.reducers.worker import RunReport

PATH = "/v1/reducers"
MODULES = "/v1/modules"
_BUILTINS = ("latest", "merge-patch", "count")
_RETRY_SECONDS = 5.0  # after a server that is away
_SHARE = (
    10  # a look visits all streams of the patterns, so it may take one part in SHARE of the time
)


@click.group("reduce", cls=CommandGroup)
def reduce_command() -> None:
    """Bind reducers to streams, whose states they publish as snapshots, and run them."""


reduce_command.add_command(test_command)


@reduce_command.command("add")
@click.argument("name")
@options.value(
    "--pattern GLOB", required=True, help="The streams: '*' is one segment, '**' any number."
)
@options.value("--builtin", type=click.Choice(_BUILTINS), help="A reducer of the product.")
@options.value("--module FILE", help="A WebAssembly module, which is uploaded.")
@options.value("--key POINTER", default="", help="JSON pointer of the keys of 'latest'.")
@options.value(
    "--every-records",
    type=options.Number(1),
    help="Records behind the snapshot that make a stream due. Default: 10,000.",
)
@options.value(
    "--every-bytes", type=options.Number(1), help="Bytes behind it that do. Default: 8 MiB."
)
@options.value(
    "--every", "seconds", type=SECONDS, help="The age of the snapshot that does. Default: 5 min."
)
@options.value(
    "--memory", type=options.Number(1), help="Bytes of memory of a module. Default: 64 MiB."
)
@options.value(
    "--fuel", type=options.Number(1), help="Fuel of a module for a MiB of records. Default: 10^10."
)
@options.flag(
    "--retain", help="Trim the streams to the snapshots: their records are kept no longer."
)
@options.as_json
@server_option
def add_command(
    client: Client, name: str, builtin: str | None, module: str | None, as_json: bool, **given: Any
) -> None:
    """Bind the reducer NAME to all streams of a pattern, or change it.

    \b
    polynya reduce add carts --pattern 'carts/*' --builtin latest --key /item
    polynya reduce add totals --pattern 'orders/*' --module totals.wasm --retain
    """
    if bool(builtin) == bool(module):
        raise click.UsageError("pass either --builtin or --module")
    seconds = given.pop("seconds")
    body = {field: value for field, value in given.items() if value is not None}
    if seconds is not None:
        body["every_seconds"] = int(seconds)
    if module:
        content = _module(module)
        _check(module, content, given["memory"], given["fuel"])
        answer = client.call("PUT", MODULES, content=content)
        body["module"] = answer.json()["sha256"]
    else:
        body["builtin"] = builtin
    made = client.call("PUT", _path(name), body=body)
    if as_json:
        output.json_line(made.json())
        return
    found = made.json()
    done = "added" if made.status_code == 201 else "is"
    output.notice(f"{done} reducer {name}, revision {found['revision']}, for {found['pattern']}")


@reduce_command.command("ls")
@options.as_json
@server_option
def ls_command(client: Client, as_json: bool) -> None:
    """List the reducers, and the streams on which they are faulted.

    \b
    polynya reduce ls
    """
    found: list[dict[str, Any]] = client.call("GET", PATH).json()["reducers"]
    if as_json:
        output.json_line(found)
        return
    output.table(("reducer", "pattern", "computes", "revision", "state"), [*map(_row, found)])
    for each in found:
        for fault in each["faults"]:
            output.notice(
                f"{each['name']} is faulted on {output.visible(fault['stream'])} "
                f"(retried at {fault['retry_at']}): {output.visible(fault['reason'])}"
            )
        if "stopped" in each:
            output.notice(f"{each['name']} is stopped: {output.visible(each['stopped'])}")
    if not found:
        output.notice("there is no reducer; 'polynya reduce add' binds one")


def _row(found: dict[str, Any]) -> list[object]:
    computes = found.get("builtin") or f"module {found['module'][:12]}"
    key = f" by {found['key']}" if "key" in found else ""
    faults = len(found["faults"])
    state = "stopped" if "stopped" in found else f"{faults} faults" if faults else "works"
    pattern = output.visible(found["pattern"])
    return [found["name"], pattern, computes + output.visible(key), found["revision"], state]


@reduce_command.command("rm")
@click.argument("name")
@options.flag("--snapshots", help="Delete its snapshots too, where no trimmed record needs them.")
@server_option
def rm_command(client: Client, name: str, snapshots: bool) -> None:
    """Remove the reducer NAME. Its snapshots stay.

    \b
    polynya reduce rm carts
    polynya reduce rm carts --snapshots
    """
    from polynya.cli.reducers.worker import Worker

    found = client.call("GET", _path(name)).json()
    client.call("DELETE", _path(name))
    output.notice(f"removed the reducer {name}")
    if not snapshots:
        return
    with _explained():
        gone, kept = Worker(client, (), _print_report).drop_snapshots(name, found["pattern"])
    stays = f", {kept} stay, as records before them are trimmed" if kept else ""
    output.notice(f"deleted {output.counted(gone, 'snapshot')}{stays}")


@reduce_command.command("verify")
@click.argument("name")
@click.argument("streams", nargs=-1, shell_complete=complete_stream)
@server_option
def verify_command(client: Client, name: str, streams: tuple[str, ...]) -> None:
    """Compute the newest snapshots of the reducer NAME again, of STREAMS or of all that it has.

    A snapshot that differs stops the reducer; the published one stays.

    \b
    polynya reduce verify carts
    polynya reduce verify carts carts/ann
    """
    from polynya.cli.reducers.worker import Worker

    worker = Worker(client, (), _print_report, folder=native_folder())
    equal = different = 0
    with _explained(), closing(worker):
        for stream, found in worker.verify(name, streams):
            if found is None:
                output.notice(f"{output.visible(stream)}: no snapshot that can be computed again")
            elif found.published == found.computed:
                equal += 1
            else:
                different += 1
                output.notice(
                    f"{output.visible(stream)} at {found.offset}: published {found.published}, "
                    f"computed {found.computed}"
                )
    if not equal and not different:
        output.notice(
            f"nothing to compare: no stream has a snapshot of {name} that can be computed again; "
            f"'polynya reduce run {name} --once' publishes one for each stream with new records"
        )
        return
    output.notice(f"{output.counted(equal, 'snapshot')} equal, {different} different")
    if different:
        raise exits.Refused(f"the reducer {name} is nondeterministic, and is stopped")


@reduce_command.command("run")
@click.argument("names", nargs=-1)
@options.flag("--once", help="Publish the state of every stream that has new records, and exit.")
@options.value(
    "--interval", type=SECONDS, default="5s", help="The time between two looks at what is due."
)
@server_option
def run_command(client: Client, names: tuple[str, ...], once: bool, interval: float) -> None:
    """Run the reducers NAMES (default: all) until SIGTERM or Ctrl-C, on any machine.

    \b
    polynya reduce run
    polynya reduce run carts --once
    """
    from polynya.cli.reducers.runs import Refused
    from polynya.cli.reducers.worker import Worker

    faults: list[str] = []

    def report(each: RunReport) -> None:
        faults.extend([each.stream] if each.outcome.fault else [])
        _print_report(each)

    worker = Worker(client, names, report, folder=native_folder())
    # a run may end anywhere: what it published is the beginning of the next one
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(exits.OK))
    with _explained(), closing(worker):
        if once:
            worker.round(everything=True)
            if faults:
                raise exits.Refused(f"no state of {output.counted(len(faults), 'stream')}")
            return
        resting = threading.Event()  # it is never set
        while True:
            try:
                worker.round()
                pause = max(interval, _SHARE * worker.asked_seconds)
            except exits.Ended as ended:
                output.notice(f"{ended.message}: retrying")
                pause = max(interval, _RETRY_SECONDS)
            except Refused as refused:
                if refused.status < 500 and refused.status != 429:
                    raise
                output.notice(f"{refused}: retrying")
                pause = max(interval, _RETRY_SECONDS)
            faults.clear()
            resting.wait(pause)


@contextmanager
def _explained() -> Iterator[None]:
    """Convert the errors of a worker to those of commands. Raises `exits.Refused`."""
    from polynya.cli.reducers.runs import Refused

    try:
        yield
    except Refused as refused:
        raise exits.Refused(str(refused), status=refused.status, code=refused.code) from None
    except ReducerFault as fault:
        raise exits.Refused(str(fault)) from None


def native_folder() -> Path:
    """Return the private folder for native code of modules, by the XDG base directories."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "polynya" / "modules"


def _print_report(report: RunReport) -> None:
    outcome = report.outcome
    name = f"{report.reducer} of {output.visible(report.stream)}"
    if outcome.fault:
        output.notice(f"{name}: FAULT: {output.visible(outcome.fault)}")
    elif outcome.waits:
        output.notice(f"{name}: {output.visible(outcome.waits)}")
    elif outcome.published:
        output.notice(
            f"{name}: {outcome.records:,} records, published at {outcome.published} "
            f"(sha-256 {outcome.digest[:12]})"
        )


def _module(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise exits.Misused(f"{file} cannot be read: {error.strerror}") from None


def _check(file: str, module: bytes, memory: int | None, fuel: int | None) -> None:
    """Load a module in a sandbox of this machine, so that a broken one is not bound to streams."""
    if find_spec("wasmtime") is None:
        output.notice(f"{file} is not checked here: that needs polynya[wasm]")
        return
    budget = Budget(memory or MEMORY_BYTES, fuel or FUEL_PER_MIB)
    try:
        with Sandbox(module, budget) as sandbox:
            sandbox.begin()
    except ReducerFault as fault:
        raise exits.Ended(f"{file} is no reducer: {output.visible(str(fault))}") from None


def _path(name: str) -> str:
    return f"{PATH}/{quote(name, safe='')}"
