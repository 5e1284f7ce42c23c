"""`polynya store`: whether the object store holds what it must, and cleaning it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from polynya.base.errors import ConfigError
from polynya.cli import exits, output
from polynya.cli.client import JSON_TYPE, Client, server_option
from polynya.cli.output import as_json
from polynya.cli.values import WHOLE_SECONDS

if TYPE_CHECKING:
    from polynya.objectstore import ObjectStore, StoreSettings

PART_SECONDS = 300.0  # one part of a check may read tens of megabytes
DELETE_AT_ONCE = 1000
SHOWN = 20


@click.group("store")
def store_command() -> None:
    """Check and clean the object store of a node."""


@store_command.command("verify")
@as_json
@server_option
def verify_command(client: Client, as_json: bool) -> None:
    """Read every object that a stream needs and compare it with its checksum; then list the objects that nobody knows.

    Ends with 1 when something is missing or damaged. It reads everything once, beside the node's other work, on the node's machine. A node of a
    cluster looks at the groups that it leads, and says which nodes are to be asked about the others.

    \b
    polynya store verify
    polynya store verify --json | jq '.faults[].streams'
    """
    total = {"packs": 0, "slices": 0, "bytes": 0}
    faults: list[dict[str, Any]] = []
    for part in _parts(client):
        for key in total:
            total[key] += part[key]
        faults += part["faults"]
        for fault in [] if as_json else part["faults"]:
            streams = ", ".join(fault["streams"])
            output.notice(f"{fault['kind']}: {fault['pack']}, needed by {streams}")
    orphans, count, size, _ = _sweep(client, dry_run=True, grace=None)
    if as_json:
        output.json_line({**total, "faults": faults, "orphans": {"count": count, "bytes": size, "keys": orphans}})
    else:
        whole = f"{output.counted(total['packs'], 'pack')}, {output.counted(total['slices'], 'slice')}, {output.size(total['bytes'])}"
        output.notice(f"looked at {whole}: {_judged(faults)}")
        _show_orphans(orphans, count, size, "'polynya store sweep' deletes them")
        _show_rest(client)
    if faults:
        raise click.exceptions.Exit(exits.REFUSED)


def _show_rest(client: Client) -> None:
    """What of a cluster was not looked at."""
    number = client.call("GET", "/v1/node").json().get("node")
    told = client.send("GET", "/v1/cluster") if number else None
    if told is None or told.is_error:  # a node by itself, or the token may not see it
        return
    leaders = {group["group"]: group["leader"] for group in told.json()["groups"]}
    rest = [node for node in told.json()["nodes"] if node["id"] != number and node["id"] in leaders.values()]
    if rest:
        own = sum(leader == number for leader in leaders.values())
        others = ", ".join(f"{node['id']} ({node['http']})" for node in rest)
        output.notice(f"that is {own} of {len(leaders)} groups, which node {number} leads; for all of them ask these, too: {others}")


@store_command.command("sweep")
@click.option("--dry-run", is_flag=True, help="Only list them.")
@click.option("--grace", metavar="DURATION", type=WHOLE_SECONDS, help="Objects younger than this stay. Default: 1h; at least 1min.")
@as_json
@server_option
def sweep_command(client: Client, dry_run: bool, grace: int | None, as_json: bool) -> None:
    """Delete what nobody knows: packs of writers that died, and under tables the files of lost jobs and metadata that is long superseded.

    What any snapshot of a table refers to stays, and so does what belongs to a job that is not over. The node does so by itself every hour.

    \b
    polynya store sweep --dry-run
    """
    orphans, count, size, deleted = _sweep(client, dry_run=dry_run, grace=grace)
    if as_json:
        output.json_line({"orphans": {"count": count, "bytes": size, "keys": orphans}, "deleted": deleted})
        return
    if deleted:
        output.notice(f"deleted {output.counted(count, 'object')}, {output.size(size)}")
        return
    why = "without --dry-run they are deleted" if dry_run else "this node may not delete them: another owns the root, or it was restored"
    _show_orphans(orphans, count, size, why)


@store_command.command("wipe")
@click.option("--root", metavar="URL", required=True, help="What to delete: s3://BUCKET/PREFIX, or the folder of an embedded store.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also when a node owns the root: one that was killed cannot say that it does not any more.")
@click.option("--config", "file", metavar="FILE", help="The TOML file with the settings of S3. Default: ./polynya.toml if it is there.")
def wipe_command(root: str, yes: bool, force: bool, file: str | None) -> None:
    """Delete all objects under a root, tables included, for good.

    Refused while a node owns the root, and where the root's marker is not. Credentials and endpoint are those of 'polynya serve'.

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
        marker = await read_root(store)
        if marker is None:
            raise _no_root(root)
        if marker.start_id and not force:
            hint = "Stop the node. If it was killed, or its machine is gone, --force deletes nevertheless."
            raise exits.Refused(f"a node owns {root} (cluster {marker.cluster_id})", hint=hint)
        keys = [info.key async for info in store.list("") if info.key != MARKER_KEY]
        if not yes:
            _ask_whether(f"Delete {output.counted(len(keys), 'object')} under {root}, of cluster {marker.cluster_id}, for good?")
        await _delete(store, keys)
        await store.delete([MARKER_KEY])  # last: until then a repeat finds the root
        await store.close()
    except StoreUnavailable as fault:
        raise exits.Unknown(f"{root} cannot be reached: {fault}", hint="Some objects may be deleted. Give the command again.") from None
    except ConfigError as error:
        raise exits.Misused(str(error)) from None
    output.notice(f"deleted {output.counted(len(keys), 'object')} under {root}")


def _no_root(root: str) -> exits.Refused:
    return exits.Refused(f"{root} has no polynya-root.json: it is not the root of a node's objects", hint="Look at --root again.")


def _ask_whether(question: str) -> None:
    """Raises `click.Abort` for no, and `exits.Misused` when nobody answers."""
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise exits.Misused("nothing was deleted: say 'y', or give --yes") from None


async def _delete(store: ObjectStore, keys: list[str]) -> None:
    for begin in range(0, len(keys), DELETE_AT_ONCE):
        await store.delete(keys[begin : begin + DELETE_AT_ONCE])


def _settings_of(root: str, file: str | None) -> StoreSettings:
    from polynya.node.config import load
    from polynya.objectstore import MARKER_KEY, StoreSettings

    if not root.startswith("s3://"):
        if not os.path.isdir(root):
            raise exits.Refused(f"there is no folder {root}")
        if not (Path(root) / MARKER_KEY).is_file():
            raise _no_root(root)
        return StoreSettings(backend="local", root=os.path.abspath(root))
    bucket, _, prefix = root.removeprefix("s3://").partition("/")
    if not bucket:
        raise click.UsageError("--root looks like s3://BUCKET/PREFIX")
    environ = {**os.environ, "POLYNYA_COLD_BACKEND": "s3", "POLYNYA_COLD_S3_BUCKET": bucket}
    try:
        settings = load({}, environ=environ, path=file).config.store
    except ConfigError as error:
        raise exits.Misused(str(error)) from None
    return msgspec.structs.replace(settings, root=prefix.rstrip("/"))


def _check_stopped(root: str) -> None:
    """An embedded store lies in its node's data folder, which a node that runs has locked."""
    lock = Path(root).parent / "node.lock"
    with suppress(FileNotFoundError), lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise exits.Refused(f"the node of {lock.parent} runs", hint="Stop it first.") from None


def _parts(client: Client) -> Iterator[dict[str, Any]]:
    """Every answer of the check, core by core."""
    core, cores, after = 0, 1, ""
    with client.admin() as admin:
        while core < cores:
            part = _ask(admin, "verify", {"core": core, "after": after})
            yield part
            cores, after = part["cores"], part["next"] or ""
            core += not after


def _sweep(client: Client, *, dry_run: bool, grace: int | None) -> tuple[list[str], int, int, bool]:
    """Orphans of all cores (the first thousand of each), how many there are, their bytes, and whether they were deleted."""
    orphans: list[str] = []
    count, size, core, cores, deleted = 0, 0, 0, 1, False
    with client.admin() as admin:
        while core < cores:
            found = _ask(admin, "sweep", {"core": core, "dry_run": dry_run, "grace_seconds": grace})
            orphans += found["orphans"]
            count += found["count"]
            size += found["bytes"]
            deleted = deleted or found["deleted"]
            cores, core = found["cores"], core + 1
    return orphans, count, size, deleted


def _ask(admin: Client, verb: str, question: dict[str, Any]) -> dict[str, Any]:
    headers = {"content-type": JSON_TYPE}
    answer = admin.call("POST", f"/v1/admin/store/{verb}", content=msgspec.json.encode(question), headers=headers, seconds=PART_SECONDS)
    found: dict[str, Any] = answer.json()
    return found


def _judged(faults: list[dict[str, Any]]) -> str:
    if not faults:
        return "all is as it was written"
    kinds = {kind: sum(fault["kind"] == kind for fault in faults) for kind in sorted({fault["kind"] for fault in faults})}
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def _show_orphans(orphans: list[str], count: int, size: int, then: str) -> None:
    if not orphans:
        output.notice("no orphans")
        return
    for key in orphans[:SHOWN]:
        click.echo(key)
    more = f", the first {SHOWN} are listed" if count > SHOWN else ""
    output.notice(f"{output.counted(count, 'orphan')}, {output.size(size)}{more}; {then}")
