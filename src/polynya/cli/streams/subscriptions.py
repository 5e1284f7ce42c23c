"""`polynya sub`: subscriptions that wake a webhook or a group of workers when their streams
grow."""

from __future__ import annotations

import difflib
from typing import Any
from urllib.parse import quote

import click

from polynya.cli.remote.client import JSON_TYPE, Client, is_json, server_option, stream_path
from polynya.cli.streams.lifecycle import facts_if_there
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.complete import complete_stream, complete_subscription
from polynya.cli.terminal.values import SECONDS

ROOT = "/v1/stream/__ds/subscriptions"
SHOWN = 100  # streams of one subscription, unless more are asked for
PAGE = 1000
_FACTS = (
    "id",
    "type",
    "state",
    "status",
    "pattern",
    "description",
    "created_at",
    "generation",
    "current_holder",
    "next_attempt_at",
)


@click.group("sub", cls=CommandGroup)
def sub_command() -> None:
    """Wake a webhook, or one of several workers, when streams have new records."""


@sub_command.command("create")
@click.argument("id")
@options.value("--pattern GLOB", help="All matching streams, including future ones: 'orders/*'.")
@options.value(
    "--stream STREAM",
    "streams",
    multiple=True,
    shell_complete=complete_stream,
    help="This stream. Repeatable.",
)
@options.value("--webhook URL", help="Send wakes to this URL as signed POST requests.")
@options.value(
    "--wake-stream STREAM",
    shell_complete=complete_stream,
    help="Append wakes to this stream, where workers claim them.",
)
@options.value(
    "--lease",
    type=SECONDS,
    help="A worker loses the work after this long without a heartbeat.  [default: 30s]",
)
@options.value(
    "--max-attempts",
    type=options.Number(1),
    help="Put a record aside that workers failed to handle this often.",
)
@options.value(
    "--dead-letter STREAM",
    shell_complete=complete_stream,
    help="The stream for the records that --max-attempts puts aside.",
)
@options.value("--description TEXT", help="A description for people.")
@options.as_json
@server_option
def sub_create_command(
    client: Client,
    id: str,  # noqa: A002 (the name of the argument in the help)
    pattern: str | None,
    streams: tuple[str, ...],
    webhook: str | None,
    wake_stream: str | None,
    lease: float | None,
    max_attempts: int | None,
    dead_letter: str | None,
    description: str | None,
    as_json: bool,
) -> None:
    """Subscribe to streams as ID. Succeeds if it exists with the same settings.

    Later appends wake the webhook, or are announced in the wake stream. There the first worker to
    claim the work holds it until it acknowledges. Existing streams count from their tails. In a
    pattern '*' is one segment of a name, '**' any number.

    \b
    polynya sub create mailer --pattern 'orders/*' --webhook https://mail.example.com/hook
    polynya sub create workers --stream jobs --wake-stream wakes --lease 1min
    polynya sub create workers --stream jobs --wake-stream wakes --max-attempts 5 --dead-letter dead
    """
    if (webhook is None) == (wake_stream is None):
        raise click.UsageError("pass --webhook URL, or --wake-stream STREAM for workers")
    if (max_attempts is None) != (dead_letter is None):
        raise click.UsageError("pass --max-attempts and --dead-letter together")
    if not pattern and not streams:
        raise click.UsageError("pass --pattern GLOB or --stream STREAM: the streams to watch")
    body: dict[str, Any] = {"type": "webhook" if webhook else "pull-wake"}
    given = {
        "pattern": pattern,
        "streams": list(streams) or None,
        "wake_stream": wake_stream,
        "max_attempts": max_attempts,
        "dead_letter_stream": dead_letter,
        "description": description,
    }
    body |= {name: value for name, value in given.items() if value is not None}
    if webhook is not None:
        body["webhook"] = {"url": webhook}
    if lease is not None:
        body["lease_ttl_ms"] = round(lease * 1000)
    targets = {"wake": wake_stream, "dead-letter": dead_letter}
    missing = {
        kind: stream
        for kind, stream in targets.items()
        if stream is not None and not _is_target(client, kind, stream)
    }
    answer = client.call("PUT", _path(id), body=body)
    created = answer.status_code == 201
    for kind, stream in missing.items():
        _create_target(client, kind, stream, id)
    if as_json:
        output.json_line({**answer.json(), "created": created})
        return
    output.notice(
        f"subscription {id} {'created' if created else 'already exists'}, for "
        f"{_watched(answer.json())}"
    )
    if wake_stream is not None and created:
        output.notice(
            '  a worker claims with: curl -X POST -d \'{"worker": "me"}\' '
            f"{client.server}{_path(id)}/claim"
        )


@sub_command.command("ls")
@click.argument("prefix", default="", shell_complete=complete_subscription)
@options.value("--limit", type=options.Number(1), help="List at most this many.")
@click.option(
    "--lanes", is_flag=True, help="List the lanes of a group of workers as rows of their own."
)
@options.as_json
@server_option
def sub_ls_command(
    client: Client, prefix: str, limit: int | None, lanes: bool, as_json: bool
) -> None:
    """List the subscriptions whose names start with PREFIX; with --json one object per line.

    The lanes of a group of workers are one row. Its lag, in records, and the failed attempts at the
    record that comes next are those of its worst lane.

    \b
    polynya sub ls
    polynya sub ls --json | jq -r 'select(.lag > 1000) | .id'
    """
    rows: list[dict[str, Any]] = []
    after = ""
    while limit is None or len(rows) < limit:
        wanted = PAGE if limit is None else min(PAGE, limit - len(rows))
        params: dict[str, str | int] = {"prefix": prefix, "after": after, "limit": wanted}
        page = client.call("GET", ROOT, params=params if lanes else {**params, "groups": "true"})
        rows += page.json()["subscriptions"]
        after = page.json()["next"] or ""
        if not after:
            break
    nothing = "no subscriptions yet: 'polynya sub create' creates one"
    heads = ("id", "type", "watches", "wakes", "state", "status")
    output.listing(
        rows,
        heads if lanes else (*heads, "lag", "attempts", "lanes", "workers"),
        lambda row: (
            row["id"],
            row["type"],
            _watched(row),
            _woken(row),
            row["state"],
            row["status"],
            *(() if lanes else _work(row)),
        ),
        f"no subscriptions under '{prefix}'" if prefix else nothing,
        as_json=as_json,
        lines=True,
    )


@sub_command.command("show")
@click.argument("id", shell_complete=complete_subscription)
@options.value(
    "--limit", type=options.Number(1), default=SHOWN, help="Show at most this many of its streams."
)
@options.as_json
@server_option
def sub_show_command(client: Client, id: str, limit: int, as_json: bool) -> None:  # noqa: A002
    """Show the subscription ID: its state, its current worker, and the acknowledged offset and the
    lag in records of each stream. If ID is a group of workers, show its lanes.

    \b
    polynya sub show workers
    polynya sub show workers --json | jq '.streams[] | .lag'
    """
    group = _group(client, id)
    if group is not None:
        _show_group(group, as_json=as_json)
        return
    shown = _asked(client, id, min(limit, PAGE))
    links, after = shown["streams"], shown.get("streams_after")
    while after and len(links) < limit:
        page = client.call(
            "GET", _path(id), params={"limit": min(limit - len(links), PAGE), "after": after}
        ).json()
        links += page["streams"]
        after = page.get("streams_after")
    if as_json:
        output.json_line({**shown, "streams": links, "streams_after": after})
        return
    info = [(name, shown.get(name)) for name in _FACTS]
    info += [
        ("max_attempts", shown.get("max_attempts")),
        ("dead_letters", shown.get("dead_letter_stream")),
    ]
    info += [
        ("failure", _failure(shown.get("failure"))),
        ("wakes", _woken(shown)),
        ("workers", _keepers(shown)),
        ("lease", f"{shown['lease_ttl_ms'] / 1000:g} s"),
    ]
    output.properties((name, value) for name, value in info if value not in (None, ""))
    click.echo()
    output.table(
        ("stream", "linked by", "acknowledged up to", "lag"),
        [
            (link["path"], link["link_type"], link["acked_offset"], str(link.get("lag", "")))
            for link in links
        ],
    )
    if after:
        output.notice(f"only the first {output.counted(len(links), 'stream')}; --limit shows more")
    elif not links:
        output.notice("no streams match yet")


@sub_command.command("reset")
@click.argument("id", shell_complete=complete_subscription)
@options.value(
    "--to WHERE",
    required=True,
    help="'earliest', 'latest', a time or an age ('10m'), or an offset of the one --stream.",
)
@options.value(
    "--stream STREAM",
    "streams",
    multiple=True,
    shell_complete=complete_stream,
    help="Only this stream. Repeatable.",
)
@click.option("--force", is_flag=True, help="Take the work away from a worker that has it.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@options.as_json
@server_option
def sub_reset_command(
    client: Client,
    id: str,  # noqa: A002 (the name of the argument in the help)
    to: str,
    streams: tuple[str, ...],
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Set the cursors of the subscription ID, forward or back. Workers get the records from there
    on, also those that they have handled. If ID is a group of workers, set those of all its lanes.

    \b
    polynya sub reset workers --to 2h --dry-run
    polynya sub reset workers --to earliest --stream jobs
    """
    body = {"to": to, "streams": list(streams), "force": force, "dry_run": dry_run}
    group = _group(client, id)
    if group is None:
        _asked(client, id, 1)
    keys = [id] if group is None else [lane["id"] for lane in group["lanes"]]
    if not dry_run and len(keys) > 1:  # a lane that refuses stops it before any has moved
        _reset(client, keys, {**body, "dry_run": True})
        if not force:
            _check_idle(group or {})
    answer = _reset(client, keys, body)
    if as_json:
        output.json_line(answer)
        return
    moved = answer["streams"]
    if moved:
        lane = ("lane",) if len(keys) > 1 else ()
        output.table(
            (*lane, "stream", "from", "to", "lag"),
            [
                (
                    *([each["subscription"]] if lane else []),
                    *(each["path"], each["from_offset"], each["to_offset"], str(each["to_lag"])),
                )
                for each in moved
            ],
        )
    output.notice(
        f"{output.counted(len(moved), 'cursor')} {'would move' if dry_run else 'moved'}, "
        f"{answer['unchanged']} stayed"
    )


@sub_command.command("rm")
@click.argument("ids", nargs=-1, required=True, shell_complete=complete_subscription)
@options.as_json
@server_option
def sub_rm_command(client: Client, ids: tuple[str, ...], as_json: bool) -> None:
    """Delete the subscriptions IDS; missing ones are not an error. Their streams stay. Of a group
    of workers all lanes are deleted.

    \b
    polynya sub rm mailer
    """
    for key in ids:
        group = _group(client, key)
        for lane in [] if group is None else group["lanes"]:
            client.call("DELETE", _path(lane["id"]))
        client.call("DELETE", _path(key))
        output.outcome({"id": key, "deleted": True}, f"deleted subscription {key}", as_json=as_json)


def _is_target(client: Client, kind: str, stream: str) -> bool:
    """Return True if the wake or dead-letter stream exists. Raises `exits.Refused` if it cannot
    take JSON."""
    info = facts_if_there(client, stream)
    if info is None:
        return False
    if not is_json(info["content_type"] or ""):
        raise exits.Refused(
            f"the stream {stream} holds {info['content_type']}; a {kind} stream must be {JSON_TYPE}",
            hint="Nothing was created. Pass another stream; a missing one is created.",
        )
    if info["closed"]:
        raise exits.Refused(
            f"the stream {stream} is closed, so it cannot be the {kind} stream",
            hint="Nothing was created. Pass another stream.",
        )
    return True


def _create_target(client: Client, kind: str, stream: str, key: str) -> None:
    """Create it after the subscription, which the server may refuse. Raises `exits.Ended`."""
    try:
        client.call("PUT", stream_path(stream), headers={"content-type": JSON_TYPE})
    except exits.Ended as failure:
        failure.hint = (
            f"The subscription {key} was created. Create its {kind} stream: polynya create {stream}"
        )
        raise
    output.notice(f"created the missing {kind} stream {stream}")


def _asked(client: Client, key: str, limit: int) -> dict[str, Any]:
    """Fetch the subscription; a refusal suggests similar ids."""
    try:
        shown: dict[str, Any] = client.call("GET", _path(key), params={"limit": limit}).json()
    except exits.Refused as refused:
        if refused.code == "SUBSCRIPTION_NOT_FOUND":
            params: dict[str, str | int] = {"limit": PAGE, "groups": "true"}
            known = [
                row["id"] for row in client.call("GET", ROOT, params=params).json()["subscriptions"]
            ]
            near = difflib.get_close_matches(key, known, n=3)
            refused.hint = (
                f"Did you mean {' or '.join(near)}?"
                if near
                else "'polynya sub ls' lists the subscriptions."
            )
        raise
    return shown


def _group(client: Client, name: str) -> dict[str, Any] | None:
    """Return the group of workers with this name; None if a subscription has it, or nothing."""
    params: dict[str, str | int] = {"prefix": name, "limit": 1, "groups": "true"}
    try:
        found = client.call("GET", ROOT, params=params).json()["subscriptions"]
    except exits.Ended:
        return None  # the token may see this subscription only, or the server has no groups
    if any(row["id"] == name and row["group"] is None for row in found):
        return None
    return next((row for row in found if row["group"] == name), None)


def _show_group(group: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.json_line(group)
        return
    info = [(name, group.get(name)) for name in (*_FACTS, "max_attempts", "lag", "attempts")]
    info += [
        ("dead_letters", group["dead_letter_stream"]),
        ("wakes", _woken(group)),
        ("workers", ", ".join(group["workers"])),
        ("lease", f"{group['lease_ttl_ms'] / 1000:g} s"),
    ]
    output.properties((name, value) for name, value in info if value not in (None, ""))
    click.echo()
    output.table(
        ("lane", "state", "status", "worker", "kept by", "lag", "failure"),
        [
            (
                lane["id"],
                lane["state"],
                lane["status"],
                lane["current_holder"] or "",
                lane["keeper"] or "",
                _number(lane["lag"]),
                _failure(lane["failure"]),
            )
            for lane in group["lanes"]
        ],
    )


def _reset(client: Client, keys: list[str], body: dict[str, Any]) -> dict[str, Any]:
    """Reset these subscriptions, and return the answer for all of them."""
    answers = [client.call("POST", f"{_path(key)}/reset", body=body).json() for key in keys]
    if len(keys) == 1:
        return answers[0]  # type: ignore[no-any-return]
    return {
        "dry_run": body["dry_run"],
        "streams": [
            {"subscription": key, **each}
            for key, answer in zip(keys, answers, strict=True)
            for each in answer["streams"]
        ],
        "unchanged": sum(answer["unchanged"] for answer in answers),
    }


def _check_idle(group: dict[str, Any]) -> None:
    """Raise `exits.Refused` if a worker has a lane of a group."""
    busy = [lane for lane in group["lanes"] if lane["state"] == "leased"]
    if busy:
        raise exits.Refused(
            f"the worker {busy[0]['current_holder']} has the lane {busy[0]['id']}, and would "
            "acknowledge what it has read; nothing was reset",
            hint="Stop the workers first, or pass --force to take the work away.",
        )


def _work(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a row that say how the work goes."""
    lanes = str(len(row["lanes"]) or "")
    return _number(row["lag"]), str(row["attempts"] or ""), lanes, str(len(row["workers"]) or "")


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _keepers(shown: dict[str, Any]) -> str:
    """Describe the workers that share lanes: `w1 (0, 1), w2 (2)`."""
    return ", ".join(
        f"{each['worker']} ({', '.join(map(str, each['lanes']))})"
        for each in shown.get("workers", ())
    )


def _path(key: str) -> str:
    return f"{ROOT}/{quote(key, safe='')}"


def _failure(failure: dict[str, Any] | None) -> str:
    """Describe the failed record that comes next; "" without one."""
    if failure is None:
        return ""
    position = f"{failure['stream']} at {failure['offset']}"
    return f"attempt {failure['attempts']} of {position}, paused until {failure['retry_at']}" + (
        f": {failure['error']}" if failure["error"] else ""
    )


def _watched(row: dict[str, Any]) -> str:
    """`orders/* and 2 streams`."""
    explicit = row["explicit_streams"]
    parts = [row["pattern"] or "", output.counted(explicit, "stream") if explicit else ""]
    return " and ".join(part for part in parts if part) or "nothing"


def _woken(row: dict[str, Any]) -> str:
    return row["webhook"]["url"] if row["webhook"] else f"workers, through {row['wake_stream']}"
