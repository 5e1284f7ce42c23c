"""The last step of a reshard: the new folders of the cores replace the old ones. Each start finishes
it after a crash."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from polynya.config.node_identity import FILE, NodeIdentity, write_json
from polynya.files import sync_folder

NEW, OLD, PLAN = "cores.new", "cores.old", "plan.json"


class ReshardPlan(msgspec.Struct, frozen=True):
    """The marker of complete new folders; only the switch is left."""

    cores: int


def finish(data: Path) -> None:
    """Complete an interrupted reshard after a crash, or undo it. Call it before anything else reads
    the folder. Raises OSError."""
    plan = data / NEW / PLAN
    if plan.exists():
        _switch(data, msgspec.json.decode(plan.read_bytes(), type=ReshardPlan).cores)
    for name in (NEW, OLD):
        shutil.rmtree(data / name, ignore_errors=True)


def _switch(data: Path, cores: int) -> None:
    """Replace the old folders by the new ones; idempotent after a crash at any point."""
    new, old = data / NEW, data / OLD
    old.mkdir(exist_ok=True)
    sync_folder(data)
    there = [
        int(path.name.removeprefix("core-"))
        for path in data.glob("core-*")
        if path.name.removeprefix("core-").isdecimal()
    ]
    for core in sorted({*there, *range(cores)}):
        name = f"core-{core}"
        if core < cores and not (new / name).exists():
            continue  # already switched
        if (data / name).exists():
            _move(data / name, old / name)
        if core < cores:
            _move(new / name, data / name)
    path = data / FILE
    write_json(
        path,
        msgspec.structs.replace(
            msgspec.json.decode(path.read_bytes(), type=NodeIdentity), cores=cores
        ),
    )
    (new / PLAN).unlink()
    sync_folder(new)


def _move(source: Path, target: Path) -> None:
    source.rename(target)
    sync_folder(target.parent)
    sync_folder(source.parent)
