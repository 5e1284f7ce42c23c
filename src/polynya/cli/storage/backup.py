"""`polynya backup | verify | restore`: back up a running cluster, check a backup, and restore
one."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from polynya.base.errors import ConfigError, CorruptData, PolynyaError
from polynya.cli.node.setting_flags import loaded_config, with_hidden_settings
from polynya.cli.remote.client import Client, server_option
from polynya.cli.terminal import exits, options, output, progress

if TYPE_CHECKING:
    from polynya.backup.manifest import Manifest
    from polynya.backup.verifying import Damage, Verified
    from polynya.backup.writer import BackupProgress
    from polynya.config.model import Config
    from polynya.recovery.restore import Restorer, RestoreResult

NOTES_SHOWN = 20
T = TypeVar("T")
config_option = options.value(
    "--config FILE", "file", help="The TOML file with the S3 settings. Default: ./polynya.toml."
)
backup_option = options.value(
    "--backup ID", default="", help="The id of the backup. Default: the newest."
)


@click.command("backup")
@click.argument("location", metavar="PLACE")
@options.value(
    "--keep", type=options.Number(1), help="Then delete all but the newest N backups in PLACE."
)
@options.flag("--list", "listing", help="List the backups in PLACE instead.")
@config_option
@options.as_json
@server_option
def backup_command(
    client: Client, location: str, keep: int | None, listing: bool, file: str | None, as_json: bool
) -> None:
    """Back up a cluster or a single node to PLACE while it runs: a folder, s3://BUCKET/PREFIX, or
    one tar file (- is stdout).

    The backup holds everything acknowledged before the command. Objects that PLACE already has are
    not copied again, so later backups are fast and an interrupted one resumes. It needs the admin
    port: run it on the node's machine, or with a token that has admin. Anyone who can read PLACE
    can read all streams.

    \b
    polynya backup /backups/polynya
    polynya backup s3://backups/polynya --keep 7
    polynya backup /backups/polynya --list
    polynya backup - | ssh elsewhere 'cat > polynya.tar'
    """
    if listing:
        _list(location, file, as_json)
        return
    manifest, done = carried_out(location, lambda: _take(client, location, file, keep))
    if as_json:
        counts = {
            "copied": done.objects,
            "copied_bytes": done.bytes,
            "kept": done.kept,
            "damaged": done.damaged,
        }
        output.json_line({"place": location, **_summary(manifest), **counts})
    else:
        output.notice(
            f"backup {manifest.id}: {output.counted(manifest.groups + 1, 'group')}, "
            f"{output.counted(_streams(manifest), 'stream')}, "
            f"{output.counted(manifest.objects.count, 'object')} ({output.size(done.bytes)} "
            f"copied, {done.kept:,} already there)"
        )
        for key in done.damaged:
            output.notice(f"damaged object: {key}; 'polynya store verify' lists its streams")
    if done.damaged:
        raise click.exceptions.Exit(exits.REFUSED)


async def _take(
    client: Client, location: str, file: str | None, keep: int | None
) -> tuple[Manifest, BackupProgress]:
    from polynya.backup.pruning import prune
    from polynya.backup.writer import BackupProgress, BackupWriter
    from polynya.cli.storage import locations
    from polynya.cli.storage.source import HttpSource

    if keep is not None and locations.is_file(location):
        raise exits.Misused("--keep does not apply to a tar file, which holds one backup")
    done = BackupProgress()
    with client.admin() as admin, progress.Live(lambda seconds: _taking(done, seconds)):
        source = HttpSource(admin)
        try:
            async with locations.to_write(location, file) as (repository, before):
                manifest = await BackupWriter(source, repository, before, done).take()
                if keep is not None and before is not None:
                    done.doing = "deleting old backups"
                    await prune(before, keep)
        finally:
            await source.close()
    return manifest, done


def _taking(done: BackupProgress, seconds: float) -> str:
    what = f"{done.doing}: {output.size(done.files_bytes)} of state"
    if done.total:
        what = (
            f"{done.doing}: {done.objects + done.kept:,} of {done.total:,}, "
            f"{output.size(done.bytes)} copied"
        )
    return f"{what}, {progress.spelled_seconds(seconds)}"


def _list(location: str, file: str | None, as_json: bool) -> None:
    async def look() -> list[Manifest]:
        from polynya.backup.repository import backups_on
        from polynya.cli.storage import locations

        async with locations.to_read(location, file) as repository:
            return await backups_on(repository)

    found = carried_out(location, look)
    if as_json:
        for manifest in found:
            output.json_line(_summary(manifest))
        return
    rows = [
        (
            each.id,
            each.cluster,
            each.history,
            _streams(each),
            each.objects.count,
            output.size(_bytes(each)),
        )
        for each in found
    ]
    output.table(("backup", "cluster", "history", "streams", "objects", "size"), rows)


# --- verify ---------------------------------------------------------------------------------------


@click.command("verify")
@click.argument("location", metavar="PLACE")
@backup_option
@config_option
@options.as_json
def verify_command(location: str, backup: str, file: str | None, as_json: bool) -> None:
    """Read a whole backup, compare every checksum, and check every reference.

    Lists what is damaged or missing and the streams that need it, and then exits with 1. Needs no
    server.

    \b
    polynya verify /backups/polynya
    polynya verify polynya.tar --json | jq .damages
    """
    manifest, found = carried_out(
        location,
        lambda: _verify(location, backup, file, as_json),
        "--backup ID verifies another backup.",
    )
    if as_json:
        damages = [
            {"name": each.name, "what": each.what, "streams": _spelled(each.streams)}
            for each in found.damages
        ]
        counts = {"objects": found.objects, "read_bytes": found.bytes}
        output.json_line({"place": location, **_summary(manifest), **counts, "damages": damages})
    else:
        looked = (
            f"{output.counted(found.groups, 'group')}, {output.counted(found.streams, 'stream')}, "
            f"{output.counted(found.objects, 'object')}"
        )
        judged = output.counted(len(found.damages), "damage") if found.damages else "no damage"
        output.notice(f"backup {manifest.id}: {looked}, {output.size(found.bytes)}: {judged}")
    if found.damages:
        raise click.exceptions.Exit(exits.REFUSED)


async def _verify(
    location: str, backup: str, file: str | None, quiet: bool
) -> tuple[Manifest, Verified]:
    from polynya.backup.repository import chosen
    from polynya.backup.verifying import BackupVerifier
    from polynya.cli.storage import locations

    def on_damage(damage: Damage) -> None:
        if not quiet:
            needed = f", needed by {', '.join(_spelled(damage.streams))}" if damage.streams else ""
            output.notice(f"{damage.name}: {damage.what}{needed}")

    async with locations.to_read(location, file) as repository:
        manifest = await chosen(repository, backup)
        verifier = BackupVerifier(repository, manifest, on_damage)
        total = sum(each.size for each in manifest.files) + manifest.objects.bytes
        with progress.Live(
            lambda seconds: (
                f"{output.size(verifier.found.bytes)} of {output.size(total)}, "
                f"{progress.spelled_seconds(seconds)}"
            )
        ):
            return manifest, await verifier.run()


# --- restore --------------------------------------------------------------------------------------


@click.command("restore")
@click.argument("location", metavar="[PLACE]", default="")
@backup_option
@options.flag(
    "--from-store", help="Restore from the object store in the settings, without a backup."
)
@options.value(
    "--config FILE",
    "files",
    multiple=True,
    help="The TOML file of the new node; once per node that is restored here.",
)
@options.flag(
    "--take-over", help="Take over the root of the lost cluster, whose nodes never return."
)
@options.flag("--report", help="List all streams that lost records, not only the first ones.")
@options.as_json
@with_hidden_settings
def restore_command(
    location: str,
    backup: str,
    from_store: bool,
    files: tuple[str, ...],
    take_over: bool,
    report: bool,
    as_json: bool,
    **values: str | None,
) -> None:
    """Restore the data folders of a node, or of the nodes of a cluster, from a backup in PLACE or
    from the object store alone. Then start them with 'polynya serve'.

    The data folder must be empty or new. All flags of 'polynya serve' apply; pass those that the
    node will start with, above all --data, --cores and the object store. A cluster may have any
    number of nodes: run the command on each with its own file and the same --backup, or once with
    all files.

    Records keep their offsets; streams keep their lifetimes, producers and subscriptions. Appends
    after the backup are lost, and their offsets are never reused.

    \b
    polynya restore /backups/polynya --data /var/lib/polynya
    polynya restore s3://backups/polynya --config n1.toml --config n2.toml --config n3.toml
    polynya restore --from-store --take-over --config node.toml
    """
    if bool(location) == from_store:
        raise click.UsageError("pass the PLACE of a backup, or --from-store")
    if from_store and backup:
        raise click.UsageError("--backup needs the PLACE of a backup")
    configs = [loaded_config(file, values).config for file in files or (None,)]
    if from_store:
        _say_restored(
            configs,
            carried_out("the object store", lambda: _recover(configs, take_over)),
            report=report,
            as_json=as_json,
        )
    else:
        work = lambda: _restore(location, backup, files[0] if files else None, configs, take_over)  # noqa: E731
        _say_restored(configs, carried_out(location, work), report=report, as_json=as_json)


class _Outcome(NamedTuple):
    """`what`: the source, for people; `summary`: for scripts."""

    what: str
    summary: dict[str, Any]
    done: RestoreResult


def restore_into(location: str, configs: list[Config]) -> None:
    """Restore these nodes from the newest backup. Raises `exits.Ended`."""
    outcome = carried_out(location, lambda: _restore(location, "", None, configs, False))
    _say_restored(configs, outcome, report=False, as_json=False)


async def _restore(
    location: str, backup: str, file: str | None, configs: list[Config], take_over: bool
) -> _Outcome:
    from polynya.backup.repository import chosen
    from polynya.cli.storage import locations
    from polynya.recovery.from_backup import FromBackup, renaming
    from polynya.recovery.restore import (
        RestoreOrigin,
        Restorer,
        RestoreTarget,
        check_root,
        open_shared,
    )

    async with locations.to_read(location, file) as repository:
        manifest = await chosen(repository, backup)
        origin = RestoreOrigin(
            cluster_id=manifest.cluster, history=manifest.next_history, groups=manifest.groups
        )
        with contextlib.ExitStack() as held:
            targets = [RestoreTarget(config, origin, held) for config in configs]
            store = open_shared(configs)
            try:
                rename = renaming(manifest.cluster, targets[0].identity.cluster_id)
                if store is not None:
                    await check_root(store, targets[0].identity, take_over=take_over)
                states = FromBackup(repository, manifest, rename, has_store=store is not None)
                done = await _run(Restorer(states, targets, store, rename))
            finally:
                if store is not None:
                    await store.close()
    return _Outcome(
        f"from backup {manifest.id}",
        {**_summary(manifest), "restored_history": origin.history},
        done,
    )


async def _recover(configs: list[Config], take_over: bool) -> _Outcome:
    from polynya.recovery.from_store import FromStore, check_ids
    from polynya.recovery.restore import (
        RestoreOrigin,
        Restorer,
        RestoreTarget,
        check_root,
        open_shared,
    )

    if any(
        config.cold.backend == "local" and not os.path.isdir(config.store.root)
        for config in configs
    ):
        raise ConfigError(
            f"cold.root: there is no folder {configs[0].store.root}; set the folder of the lost "
            "node's objects"
        )
    store = open_shared(configs)
    if store is None:
        raise ConfigError('cold.backend = "none": set the object store of the lost nodes')
    try:
        with progress.Live(
            lambda seconds: f"listing the object store, {progress.spelled_seconds(seconds)}"
        ):
            states = await FromStore.open(store)
        whole = states.whole
        check_ids([config.cluster.id for config in configs], whole)
        origin = RestoreOrigin(
            cluster_id=whole.cluster, history=states.next_history, groups=whole.groups
        )
        with contextlib.ExitStack() as held:
            targets = [RestoreTarget(config, origin, held) for config in configs]
            await check_root(store, targets[0].identity, take_over=take_over)
            done = await _run(Restorer(states, targets, store, lambda key: key))
    finally:
        await store.close()
    summary = {
        "cluster": whole.cluster,
        "history": whole.history,
        "groups": whole.groups,
        "restored_history": origin.history,
    }
    return _Outcome("from the object store", {**summary, "packs_looked_into": states.packs}, done)


async def _run(restorer: Restorer) -> RestoreResult:
    with progress.Live(lambda seconds: _restoring(restorer.done, seconds)):
        return await restorer.run()


def _restoring(done: RestoreResult, seconds: float) -> str:
    objects = (
        f", {output.size(done.bytes)} of {output.size(done.total_bytes)}"
        if done.total and done.doing == "objects"
        else ""
    )
    return f"{done.doing}{objects}, {progress.spelled_seconds(seconds)}"


def _say_restored(configs: list[Config], outcome: _Outcome, *, report: bool, as_json: bool) -> None:
    from polynya.base.names import spelled_name

    folders, done = [config.data for config in configs], outcome.done
    lost: list[dict[str, Any]] = [
        {"stream": spelled_name(note.name), "from": note.record, "to": note.end, "why": note.what}
        for note in sorted(done.notes, key=lambda note: note.name)
    ]
    if as_json:
        counts = {
            "restored_streams": done.streams,
            "objects_copied": done.objects,
            "lost": lost,
            "warnings": done.warnings,
        }
        output.json_line({**outcome.summary, "data": folders, **counts})
        return
    for row in lost if report else lost[:NOTES_SHOWN]:
        output.notice(
            f"lost: {row['stream']}, records {row['from']} to {row['to'] - 1}: {row['why']}"
        )
    if len(lost) > NOTES_SHOWN and not report:
        output.notice(
            f"… and {len(lost) - NOTES_SHOWN:,} more streams lost records; --report lists all"
        )
    for warning in done.warnings:
        output.notice(f"NOTE {warning}")
    start = "it" if len(folders) == 1 else "all"
    output.notice(
        f"restored {output.counted(done.streams, 'stream')} {outcome.what}: start {start} with "
        "'polynya serve'"
    )
    for folder in folders:
        click.echo(folder)


# --- all of them ----------------------------------------------------------------------------------


def carried_out(
    location: str,
    work: Callable[[], Awaitable[T]],
    hint: str = "'polynya verify' checks the whole backup.",
) -> T:
    """Run `work` and convert its errors to `exits.Ended`. `hint`: the next step for damaged
    data."""
    from polynya.base.errors import Unavailable
    from polynya.objectstore import StoreUnavailable

    async def run() -> T:
        return await work()

    try:
        return asyncio.run(run())
    except CorruptData as fault:
        raise exits.Refused(f"{location}: {fault}", hint=hint) from None
    except ConfigError as fault:
        raise exits.Refused(str(fault)) from None
    except (StoreUnavailable, Unavailable) as fault:
        raise exits.Unreachable(
            str(fault), hint="Repeat the command: it resumes where it stopped."
        ) from None
    except (PolynyaError, OSError) as fault:
        raise exits.Refused(f"{location}: {fault}") from None


def _summary(manifest: Manifest) -> dict[str, Any]:
    return {
        "backup": manifest.id,
        "cluster": manifest.cluster,
        "history": manifest.history,
        "groups": manifest.groups,
        "streams": _streams(manifest),
        "objects": manifest.objects.count,
        "bytes": _bytes(manifest),
        "began_ms": manifest.began_ms,
        "ended_ms": manifest.ended_ms,
    }


def _streams(manifest: Manifest) -> int:
    return sum(file.streams for file in manifest.files)


def _bytes(manifest: Manifest) -> int:
    return sum(file.size for file in manifest.files) + manifest.objects.bytes


def _spelled(streams: list[str]) -> list[str]:
    from polynya.base.names import spelled_name

    return [spelled_name(name) for name in streams]
