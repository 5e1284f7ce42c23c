"""`polynya reduce test`: run a module over the lines of a file, without a server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click
import msgspec

from polynya.base.limits import (
    APPEND_BYTES_MAX,
    MIB,
    MODULE_BYTES_MAX,
    REDUCER_FUEL_MAX,
    REDUCER_MEMORY_BYTES_MAX,
)
from polynya.cli.terminal import exits, options, output
from polynya.reducers.reducer import Record, ReducerFault
from polynya.reducers.wasm.limits import FUEL_PER_MIB, MEMORY_BYTES, Budget
from polynya.reducers.wasm.module_reducer import ModuleReducer
from polynya.reducers.wasm.sandbox import Sandbox

BATCH = 10_000  # records of the first run
OTHER_BATCH = 997  # of the second one
SHOWN = 2000  # bytes of the state


class Trial(msgspec.Struct, frozen=True):
    """The result of a module over a file."""

    records: int
    state_bytes: int
    content_type: str
    digest: str
    fuel_per_record: float
    cpu_micros_per_record: float
    log: str
    repeated: str  # "equal", or why not


@click.command("test")
@click.argument("module", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@options.value(
    "--memory BYTES",
    type=options.Number(MIB, REDUCER_MEMORY_BYTES_MAX),
    default=MEMORY_BYTES,
    help="Memory of the module.",
)
@options.value(
    "--fuel N",
    type=options.Number(1, REDUCER_FUEL_MAX),
    default=FUEL_PER_MIB,
    help="Fuel for a MiB of records.",
)
@options.as_json
def test_command(module: Path, file: Path, memory: int, fuel: int, as_json: bool) -> None:
    """Run a WebAssembly module over FILE, one record a line, without a server.

    It runs twice. The second run has other batches, and continues from its own state in the middle:
    the digests must be equal.

    \b
    polynya reduce test cart.wasm orders.ndjson
    """
    try:
        with Sandbox(_bytes(module), Budget(memory_bytes=memory, fuel_per_mib=fuel)) as sandbox:
            trial, state = run(ModuleReducer(sandbox), sandbox, file)
    except ReducerFault as fault:
        raise exits.Ended(f"{module.name}: {output.visible(str(fault))}") from None
    if as_json:
        output.json_line(trial)
    else:
        _show(trial, state)
    if trial.repeated != "equal":
        raise exits.Ended(f"{module.name} is not deterministic: {trial.repeated}")


def run(reducer: ModuleReducer, sandbox: Sandbox, file: Path) -> tuple[Trial, bytes]:
    """Run a module over the file, and again. Return what it made, and its state."""
    content_type = reducer.content_type
    fuel, micros = sandbox.fuel_used, sandbox.cpu_micros
    count, state = _once(reducer, file, BATCH)
    fuel, micros = sandbox.fuel_used - fuel, sandbox.cpu_micros - micros
    log = sandbox.log()
    trial = Trial(
        records=count,
        state_bytes=len(state),
        content_type=content_type,
        digest=_digest(state),
        fuel_per_record=round(fuel / max(1, count), 1),
        cpu_micros_per_record=round(micros / max(1, count), 2),
        log=log,
        repeated=_repeat(reducer, file, count, state),
    )
    return trial, state


def _repeat(reducer: ModuleReducer, file: Path, count: int, state: bytes) -> str:
    """Run it again and compare. Return "equal", or the first run that differs."""
    middle = count // 2
    _, again = _once(reducer, file, OTHER_BATCH, restore_at=middle)
    if again == state:
        return "equal"
    _, same = _once(reducer, file, BATCH)
    if same != state:
        return f"the same run again gave {_digest(same)}, not {_digest(state)}"
    _, other = _once(reducer, file, OTHER_BATCH)
    if other != state:
        return f"batches of {OTHER_BATCH} records gave {_digest(other)}, not {_digest(state)}"
    return (
        f"after restoring its own state at record {middle} it gave {_digest(again)}, not"
        f" {_digest(state)}: state() leaves out what restore() needs"
    )


def _once(
    reducer: ModuleReducer, file: Path, batch: int, *, restore_at: int | None = None
) -> tuple[int, bytes]:
    """Return (number of records, state) of a run, which restores its own state at a record."""
    reducer.restore(None)
    count = 0
    records = records_of(file)
    while True:
        most = batch if restore_at is None or restore_at <= count else restore_at - count
        part = list(islice(records, min(batch, most)))
        if not part:
            return count, reducer.state()
        reducer.apply(part)
        count += len(part)
        if count == restore_at:
            reducer.restore(reducer.state())


def records_of(file: Path) -> Iterator[Record]:
    """Yield the lines of a file as records, whose times are their numbers. Empty lines are left
    out."""
    number = 0
    with file.open("rb") as lines:
        while line := lines.readline(APPEND_BYTES_MAX + 2):
            value = line.rstrip(b"\r\n")
            if len(value) > APPEND_BYTES_MAX:
                raise exits.Misused(
                    f"line {number + 1} of {file.name} has more than {APPEND_BYTES_MAX} bytes, the"
                    " most of a record"
                )
            if value:
                yield Record(number, number, number, None, value)
                number += 1


def _bytes(module: Path) -> bytes:
    """Return the module; of a longer file no more than is needed to refuse it."""
    with module.open("rb") as file:
        return file.read(MODULE_BYTES_MAX + 1)


def _digest(state: bytes) -> str:
    return f"sha256:{hashlib.sha256(state).hexdigest()}"


def _show(trial: Trial, state: bytes) -> None:
    rows = (
        ("records", f"{trial.records:,}"),
        ("state", f"{trial.state_bytes:,} bytes, {trial.content_type}"),
        ("digest", trial.digest),
        ("fuel", f"{trial.fuel_per_record:,.0f} a record"),
        ("CPU time", f"{trial.cpu_micros_per_record:,.2f} us a record"),
        ("repeated", trial.repeated),
    )
    for name, text in rows:
        output.notice(f"{name:<10}{text}")
    if trial.log:
        output.notice(f"{'output':<10}{output.visible(trial.log.strip())}")
    output.data(state[:SHOWN] + (b"\n" if len(state) <= SHOWN else b"...\n"))
