"""`polynya read` and `polynya tail`: print existing and new records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from polynya.base.names import partition_of
from polynya.base.offsets import format_token, parse_token
from polynya.cli.remote.client import Client, is_json, server_option
from polynya.cli.streams.lifecycle import info_of
from polynya.cli.terminal import options, output
from polynya.cli.terminal.complete import complete_stream
from polynya.cli.terminal.values import BEGIN, Begin, offset_of

if TYPE_CHECKING:
    from polynya.cli.terminal.read_pages import ReadPage

_ONE_STREAM = (
    "-n, --from, --by-record-time and --format table are for one stream; many begin at --offset "
    "start or now"
)
FORMATS = ("raw", "json", "table")
_OFFSET = "An offset from a read, 'start' or 'now'."
_FROM = (
    "Like --offset, or the number of a record (42), an age (10m, 2h, 7d), a time "
    "(2026-11-01T00:00Z), or -N for the last N records."
)
_JSON = (
    "Same as --format json: one object per {}: offset, records (or text, or base64), up_to_date, "
    "closed."
)

limit_option = options.value(
    "--limit", type=options.Number(1), help="Stop after N records (JSON streams)."
)
from_option = options.value("--from", "begin", type=BEGIN, help=_FROM)
record_time_option = options.flag(
    "--by-record-time", help="Find the time of --from by the times that clients gave their records."
)
format_option = options.value(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="raw: the bytes of each record; table: columns; json: pages as JSON.  [default: raw]",
)

records_option = options.flag(
    "--records",
    help="Print whole records as JSON objects: offset, timestamp, append_time, key, headers, value.",
)


@click.command("read")
@click.argument("stream", shell_complete=complete_stream)
@options.value("--offset OFFSET", help=_OFFSET + "  [default: start]")
@from_option
@record_time_option
@limit_option
@format_option
@options.flag("--json", "as_json", help=_JSON.format("page"))
@records_option
@options.consistency
@server_option
def read_command(
    client: Client,
    stream: str,
    offset: str | None,
    begin: Begin | None,
    by_record_time: bool,
    limit: int | None,
    form: str | None,
    as_json: bool,
    records: bool,
    consistency: str,
) -> None:
    """Print the records of STREAM up to its tail, one per line; other content as it is.

    Of a partition of a Kafka topic (kafka/TOPIC/N) each value is a line. --records shows keys,
    headers and times too, of any stream.

    The offset to resume from is printed on stderr. Times are when the server accepted the records;
    without a zone they are local. With --by-record-time they are those that clients gave: reading
    begins at the first append with a record that late, and earlier records may follow.

    \b
    polynya read orders | jq .item
    polynya read orders --from -20 --format table
    polynya read orders --from 10m
    polynya read kafka/orders/0 --records
    polynya read orders --from 2026-11-01T00:00Z --limit 10
    polynya read kafka/orders/0 --from 1h --by-record-time
    polynya read orders --offset 0000000000000120_0000000000004711
    """
    from polynya.cli.terminal.read_pages import pages
    from polynya.cli.terminal.record_formats import JSON, RAW, shower

    form = _form(form, as_json) or RAW
    ask = partial(info_of, client, stream, consistency)
    where = _where(ask, _begin(offset, begin, default="start"), by_record_time=by_record_time)
    show, left, end = None, limit, ""
    whole = records or _shows_values(stream, lambda: ask()["content_type"])
    for page in pages(client, stream, where, local=consistency == "local", whole=whole):
        if show is None:
            _check_limit(limit, stream, page.content_type)
            show = shower(form, stream, page.content_type, values=whole and not records)
        left = _show(page, show, left)
        end = f"next offset {page.offset}" + (
            " (closed: nothing will follow)" if page.closed else ""
        )
        if left == 0:
            break
    if form != JSON:
        output.notice(end)


@click.command("tail")
@click.argument(
    "streams", metavar="STREAM...", nargs=-1, required=True, shell_complete=complete_stream
)
@options.value(
    "--lines",
    "-n",
    "last",
    type=options.Number(0),
    help="Print the last N records, and exit unless -f is given.",
)
@options.flag("--follow", "-f", help="With -n: then follow new records.")
@options.value("--offset OFFSET", help=_OFFSET + "  [default: now]")
@from_option
@record_time_option
@limit_option
@options.retry("60s", "Retry timeout for a lost connection.")
@format_option
@options.flag("--json", "as_json", help=_JSON.format("append"))
@records_option
@options.consistency
@server_option
def tail_command(
    client: Client,
    streams: tuple[str, ...],
    last: int | None,
    follow: bool,
    offset: str | None,
    begin: Begin | None,
    by_record_time: bool,
    limit: int | None,
    retry: float,
    form: str | None,
    as_json: bool,
    records: bool,
    consistency: str,
) -> None:
    """Print new records of STREAM as they arrive, until the stream is closed or Ctrl-C.

    A lost connection is resumed without gaps or repeats. With -n it prints the last records and
    exits; with -n and -f it follows after them.

    Several streams share one connection: name them, or pass a pattern ('*' is one segment, '**' any
    number), or a prefix that ends with a slash. Streams that are created later join. Each line
    begins with its stream and a tab; what is neither JSON nor text is base64. Many streams begin at
    --offset start or now, and take no -n, --from or --format table.

    \b
    polynya tail orders
    polynya tail 'runs/*'
    polynya tail -n 20 -f orders
    polynya tail orders --from 5m --format table
    polynya tail orders --offset start --limit 10 | jq .item
    """
    from polynya.cli.streams.tail_many import ManyOptions, is_many, tail_streams
    from polynya.cli.terminal.record_formats import RAW, shower
    from polynya.client.values import RECORDS_TYPE

    if is_many(streams):
        if last is not None or begin is not None or by_record_time or form == "table":
            raise click.UsageError(_ONE_STREAM)
        local, show_json = consistency == "local", _form(form, as_json) == "json"
        where = _offset_of_many(offset)
        how = ManyOptions(where, limit, retry, as_json=show_json, records=records, local=local)
        tail_streams(client, streams, how)
        return
    stream = streams[0]
    if last is not None and (offset is not None or begin is not None):
        raise click.UsageError("-n and --from or --offset both set the start; pass one of them")
    info = info_of(client, stream, consistency)
    whole = records or _shows_values(stream, lambda: info["content_type"])
    content_type = RECORDS_TYPE if whole else info["content_type"]
    _check_limit(limit, stream, content_type)
    show = shower(_form(form, as_json) or RAW, stream, content_type, values=whole and not records)
    wanted = Begin(last=last) if last is not None else _begin(offset, begin, default="now")
    found = _found(
        client,
        info,
        wanted,
        _Follow(
            follow or last is None,
            retry,
            local=consistency == "local",
            whole=whole,
            by_record_time=by_record_time,
        ),
    )
    left = limit
    for page in found:
        left = _show(page, show, left)
        if left == 0:
            return
    if follow or last is None:
        output.notice(f"{stream} is closed")


@dataclass(frozen=True)
class _Follow:
    """Options of a tail: follow new records, the retry timeout, local reads, whole records, a
    start by record times."""

    live: bool
    retry: float
    local: bool
    whole: bool
    by_record_time: bool


def _shows_values(stream: str, content_type: Callable[[], str]) -> bool:
    """Report whether raw output has a line for each value: of a partition, whose values have no
    borders, unless they are JSON."""
    return partition_of(stream) is not None and not is_json(content_type())


def _found(client: Client, info: dict[str, Any], begin: Begin, how: _Follow) -> Iterator[ReadPage]:
    """Yield the pages of a tail. With a time, read existing records first, since only reads find
    times."""
    from polynya.cli.terminal.read_pages import follow, pages

    stream = info["name"]
    where = _where(lambda: info, begin, by_record_time=how.by_record_time)
    if begin.time or not how.live:
        for page in pages(client, stream, where, local=how.local, whole=how.whole):
            yield page
            where = {"offset": page.offset}
    if how.live:
        offset = info["offset"] if where["offset"] == "now" else where["offset"]
        yield from follow(
            client,
            stream,
            info["content_type"],
            offset,
            retry_seconds=how.retry,
            local=how.local,
            whole=how.whole,
        )


def _offset_of_many(offset: str | None) -> str:
    found = offset_of(offset or "now")
    if found not in ("-1", "now"):
        raise click.UsageError(f"many streams begin at --offset start or now, not {offset}")
    return found


def _begin(offset: str | None, begin: Begin | None, *, default: str) -> Begin:
    if offset is not None and begin is not None:
        raise click.UsageError("--from and --offset both set the start; pass one of them")
    return begin or Begin(offset=offset_of(offset or default))


def _where(
    ask: Callable[[], dict[str, Any]], begin: Begin, *, by_record_time: bool
) -> dict[str, str]:
    """Return the start parameters of a read. The last N records are found by the record half of an
    offset."""
    if by_record_time and not begin.time:
        raise click.UsageError("--by-record-time needs a time or an age in --from, such as 10m")
    if begin.time:
        return {"from_record_time" if by_record_time else "from_time": begin.time}
    if begin.last is None:
        return {"offset": begin.offset}
    info = ask()
    tail, kept = parse_token(info["offset"] or ""), parse_token(info["first_offset"] or "")
    record = max(0 if tail is None else tail[0] - begin.last, kept[0] if kept else 0)
    if begin.last == 0 or tail is None:
        return {"offset": info["offset"] or "now"}
    return {"offset": format_token(record, 0) if record else "-1"}


def _show(page: ReadPage, show: Any, left: int | None) -> int | None:
    """Print a page up to the limit; return what is left of the limit."""
    if left is not None:
        page.cut(left)
        left -= len(page.records)
    show(page)
    return left


def _form(form: str | None, as_json: bool) -> str | None:
    if as_json and form not in (None, "json"):
        raise click.UsageError(
            f"--json and --format {form} select different formats; pass one of them"
        )
    return "json" if as_json else form


def _check_limit(limit: int | None, stream: str, content_type: str) -> None:
    from polynya.client.values import is_array

    if limit is not None and not is_array(content_type):
        raise click.UsageError(
            f"--limit counts the records of JSON streams, and {stream} is {content_type}; pipe "
            "into 'head -c' instead"
        )
