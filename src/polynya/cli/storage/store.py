"""`polynya store`: verify the object store, and clean it."""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from polynya.base.errors import ConfigError
from polynya.cli.remote.client import Client, server_option
from polynya.cli.storage.cluster_store import Unseen, WholeStore, spelled_groups
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.progress import Live, spelled_seconds
from polynya.cli.terminal.values import WHOLE_SECONDS

if TYPE_CHECKING:
    from polynya.objectstore import ObjectStore, StoreSettings

DELETE_AT_ONCE = 1000
SHOWN = 20


@click.group("store", cls=CommandGroup)
def store_command() -> None:
    """Check and clean the object store of a node or a cluster."""


@store_command.command("verify")
@options.as_json
@server_option
def verify_command(client: Client, as_json: bool) -> None:
    """Read every object that a stream or a restore needs and compare its checksum, and the marks of
    transactions with those of the index; then list the orphaned objects.

    In a cluster it checks all groups, each through its leader, several at a time. It reads
    everything once, besides the nodes' other work. Exits with 1 when an object is missing, damaged
    or unmarked, and with 3 when groups could not be checked; it lists them with the reason.

    \b
    polynya store verify
    polynya store verify --json | jq '.faults[].streams'
    """
    with client.admin() as admin:
        checked = _Checked(quiet=as_json)
        whole = WholeStore(admin, "verify", {}, checked.hear)
        with Live(lambda seconds: checked.progress(whole, seconds)):
            unseen = asyncio.run(whole.look())
        looked = [group for group in range(whole.total) if group not in whole.pending]
        swept, unswept = _sweep(admin, looked, dry_run=True, grace=None)
    unseen += unswept
    groups = {"all": whole.total, "unseen": [msgspec.to_builtins(each) for each in unseen]}
    if as_json:
        output.json_line(
            {**checked.counts, "faults": checked.faults, "orphans": swept.shown(), "groups": groups}
        )
    else:
        output.notice(
            f"checked {checked.spelled()}, in {whole.done} of "
            f"{output.counted(whole.total, 'group')}: {_judged(checked.faults)}"
        )
        _show_orphans(swept, "'polynya store sweep' deletes them")
        _show_unseen(unseen)
    if checked.faults:
        raise click.exceptions.Exit(exits.REFUSED)
    if unseen:
        raise click.exceptions.Exit(exits.UNREACHABLE)


class _Checked:
    """The results so far. `quiet`: do not print faults as they are found."""

    def __init__(self, *, quiet: bool) -> None:
        self.counts = {"packs": 0, "slices": 0, "bytes": 0}
        self.faults: list[dict[str, Any]] = []
        self._quiet = quiet

    def hear(self, part: dict[str, Any]) -> None:
        for key in self.counts:
            self.counts[key] += part[key]
        self.faults += part["faults"]
        for fault in [] if self._quiet else part["faults"]:
            output.notice(
                f"{fault['kind']}: {fault['pack']}, needed by {', '.join(fault['streams'])}"
            )

    def spelled(self) -> str:
        packs, slices = (
            output.counted(self.counts["packs"], "pack"),
            output.counted(self.counts["slices"], "slice"),
        )
        return f"{packs}, {slices}, {output.size(self.counts['bytes'])}"

    def progress(self, whole: WholeStore, seconds: float) -> str:
        return (
            f"{whole.done} of {output.counted(whole.total, 'group')}, {self.spelled()}  "
            f"{spelled_seconds(seconds)}"
        )


def _show_unseen(unseen: list[Unseen]) -> None:
    for each in unseen:
        output.notice(f"not checked: {spelled_groups(each.groups)}: {each.why}")


@store_command.command("sweep")
@options.flag("--dry-run", help="List them without deleting.")
@options.value(
    "--grace",
    type=WHOLE_SECONDS,
    help="Keep objects younger than this, at least 10min.  [default: 1h]",
)
@options.as_json
@server_option
def sweep_command(client: Client, dry_run: bool, grace: int | None, as_json: bool) -> None:
    """Delete orphaned objects: packs of dead writers, and table files of lost jobs and long
    superseded metadata.

    Keeps everything that a table snapshot or an unfinished job refers to. The nodes do the same
    every hour. Exits with 3 when groups of a cluster could not be checked.

    \b
    polynya store sweep --dry-run
    """
    with client.admin() as admin:
        swept, unseen = _sweep(admin, None, dry_run=dry_run, grace=grace)
    if as_json:
        output.json_line(
            {
                "orphans": swept.shown(),
                "deleted": swept.deleted,
                "unseen": [msgspec.to_builtins(each) for each in unseen],
            }
        )
    elif swept.deleted:
        output.notice(
            f"deleted {output.counted(swept.count, 'object')}, {output.size(swept.bytes)}"
        )
    else:
        why = (
            "without --dry-run the command deletes them"
            if dry_run
            else (
                "this node must not delete them: another node owns the root, or the data was "
                "restored"
            )
        )
        _show_orphans(swept, why)
    if not as_json:
        _show_unseen(unseen)
    if unseen:
        raise click.exceptions.Exit(exits.UNREACHABLE)


@store_command.command("wipe")
@options.value(
    "--root URL",
    required=True,
    help="The root to delete: s3://BUCKET/PREFIX, or the folder of an embedded store.",
)
@options.flag("--yes", help="Skip the confirmation.")
@options.flag(
    "--force", help="Delete even if the marker names an owner: a killed node cannot release it."
)
@options.value(
    "--config FILE",
    "file",
    help="The TOML file with the S3 settings. Default: ./polynya.toml if it exists.",
)
def wipe_command(root: str, yes: bool, force: bool, file: str | None) -> None:
    """Delete all objects under a root, including tables, permanently.

    Refused while a node owns the root, and where the root's marker is missing. Credentials and
    endpoint are those of 'polynya serve'.

    \b
    polynya store wipe --root ./polynya-data/objects
    POLYNYA_COLD_S3_ENDPOINT=http://127.0.0.1:9000 polynya store wipe --root s3://events/old --yes
    """
    settings = _settings_of(root, file)
    if settings.backend == "local":
        _check_stopped(settings.root)
    asyncio.run(_wipe(settings, root, yes=yes, force=force))


async def _wipe(settings: StoreSettings, root: str, *, yes: bool, force: bool) -> None:
    from polynya.objectstore import MARKER_KEY, StoreUnavailable, open_store, read_root

    try:
        store = open_store(settings)
        assert store is not None
        marker = await read_root(store, any_format=True)
        if marker is None:
            raise _no_root(root)
        if marker.start_id and not force:
            hint = "Stop the node. If it was killed, or its machine is lost, pass --force."
            raise exits.Refused(f"a node owns {root} (cluster {marker.cluster_id})", hint=hint)
        keys = [info.key async for info in store.list("") if info.key != MARKER_KEY]
        if not yes:
            output.confirm(
                f"Delete {output.counted(len(keys), 'object')} under {root}, of cluster "
                f"{marker.cluster_id}, permanently?",
                "nothing was deleted",
            )
        await _delete(store, keys)
        await store.delete([MARKER_KEY])  # last: until then a repeat finds the root
        await store.close()
    except StoreUnavailable as fault:
        raise exits.Unknown(
            f"{root} cannot be reached: {fault}",
            hint="Some objects may be deleted. Repeat the command.",
        ) from None
    except ConfigError as error:
        raise exits.Misused(str(error)) from None
    output.notice(f"deleted {output.counted(len(keys), 'object')} under {root}")


def _no_root(root: str) -> exits.Refused:
    return exits.Refused(
        f"{root} has no polynya-root.json: it is not the root of a node's objects",
        hint="Check --root.",
    )


async def _delete(store: ObjectStore, keys: list[str]) -> None:
    for begin in range(0, len(keys), DELETE_AT_ONCE):
        await store.delete(keys[begin : begin + DELETE_AT_ONCE])


def _settings_of(root: str, file: str | None) -> StoreSettings:
    from polynya.cli.storage.locations import store_settings
    from polynya.objectstore import MARKER_KEY

    if not root.startswith("s3://"):
        if not os.path.isdir(root):
            raise exits.Refused(f"there is no folder {root}")
        if not (Path(root) / MARKER_KEY).is_file():
            raise _no_root(root)
    return store_settings(root, file)


def _check_stopped(root: str) -> None:
    """Refuse an embedded store whose node runs: the node has locked its data folder."""
    lock = Path(root).parent / "node.lock"
    with suppress(FileNotFoundError), lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise exits.Refused(
                f"the node of {lock.parent} is running", hint="Stop it first."
            ) from None


class _Swept:
    """The orphans of all groups: the first thousand keys per share, their count and bytes, and
    whether they were deleted."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.count = self.bytes = 0
        self.deleted = False

    def hear(self, part: dict[str, Any]) -> None:
        self.keys += part["orphans"]
        self.count += part["count"]
        self.bytes += part["bytes"]
        self.deleted = self.deleted or part["deleted"]

    def shown(self) -> dict[str, Any]:
        return {"count": self.count, "bytes": self.bytes, "keys": self.keys}


def _sweep(
    admin: Client, groups: list[int] | None, *, dry_run: bool, grace: int | None
) -> tuple[_Swept, list[Unseen]]:
    """Sweep these groups (None: all)."""
    swept = _Swept()
    whole = WholeStore(admin, "sweep", {"dry_run": dry_run, "grace_seconds": grace}, swept.hear)
    return swept, asyncio.run(whole.look(groups))


def _judged(faults: list[dict[str, Any]]) -> str:
    if not faults:
        return "no damage"
    kinds = {
        kind: sum(fault["kind"] == kind for fault in faults)
        for kind in sorted({fault["kind"] for fault in faults})
    }
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def _show_orphans(swept: _Swept, then: str) -> None:
    if not swept.keys:
        output.notice("no orphans")
        return
    for key in swept.keys[:SHOWN]:
        click.echo(key)
    more = f", the first {SHOWN} are listed" if swept.count > SHOWN else ""
    output.notice(
        f"{output.counted(swept.count, 'orphan')}, {output.size(swept.bytes)}{more}; {then}"
    )
