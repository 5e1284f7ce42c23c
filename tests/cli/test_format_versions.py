"""Records on stdout: tables that fit and report omissions, start positions, and combinations of
formats."""

from __future__ import annotations

import json

import click
import httpx
import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import scripted

from polynya.cli.app import cli
from polynya.cli.terminal import exits
from polynya.cli.terminal.read_pages import ReadPage
from polynya.cli.terminal.record_formats import (
    WIDTH_MIN,
    RecordTable,
    cell_text,
    display_width,
    fitted,
)
from polynya.cli.terminal.values import BEGIN, Begin

TAIL = "0000000000000107_0000000000002000"
FACTS = (200, {"content-type": "application/json", "stream-next-offset": TAIL}, b"")


def ran(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), env={"POLYNYA_SERVER": url})


def answer(body: bytes, offset: str = TAIL) -> tuple[int, dict[str, str], bytes]:
    return (
        200,
        {
            "content-type": "application/json",
            "stream-next-offset": offset,
            "stream-up-to-date": "true",
        },
        body,
    )


def page(*records: object, end: int = 0) -> ReadPage:
    return ReadPage(
        f"{end or len(records)}_0",
        "application/json",
        msgspec.json.encode(list(records)),
        True,
        False,
    )


def test_a_table_has_a_column_for_each_key_and_the_number_of_each_record() -> None:
    with scripted(answer(b'[{"a":1,"b":"x"},{"b":null,"c":[1,{"d":true}]},7]')) as server:
        lines = ran(server.url, "read", "s", "--format", "table").stdout.splitlines()
    assert lines == [
        "record  a  b  c               value",
        "   104  1  x",
        '   105        [1,{"d":true}]',
        "   106                            7",
    ]


def test_heads_are_printed_again_when_a_column_comes(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    table = RecordTable(None)
    for rows in ([{"a": 1}], [{"a": 22222}], [{"b": 3}]):
        table.show(page(*rows))
    assert capsysbinary.readouterr().out.decode().splitlines() == [
        "record  a", "     0  1", "     0  22222", "", "record      a  b", "     0         3",
    ]  # fmt: skip


def test_a_table_fits_its_terminal_and_names_what_it_leaves_out(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    RecordTable(30).show(
        page({"one": "x" * 50, "two": "世界" * 20, "three": 3, "four": 4, "five": 5})
    )
    captured = capsysbinary.readouterr()
    assert all(display_width(line) <= 30 for line in captured.out.decode().splitlines())
    assert (
        "…" in captured.out.decode()
        and "five" in captured.err.decode()
        and "--format json" in captured.err.decode()
    )


@given(
    st.dictionaries(st.text(min_size=1), st.integers(1, 500), min_size=1, max_size=30),
    st.integers(1, 300),
)
def test_fitted_columns_fit(columns: dict[str, int], width: int) -> None:
    shown = fitted(columns, width)
    assert list(shown) == list(columns)[: len(shown)]
    assert all(
        min(columns[name], WIDTH_MIN) <= size <= columns[name] for name, size in shown.items()
    )
    total = sum(shown.values()) + 2 * (len(shown) - 1)
    assert total <= max(width, WIDTH_MIN)
    if len(shown) == len(columns):
        assert (
            total == min(width, sum(columns.values()) + 2 * (len(columns) - 1))
            or total <= WIDTH_MIN
        )


def test_nothing_in_a_cell_drives_the_terminal() -> None:
    assert cell_text("a\x1b[2J\nb\u202e") == "a\\x1b[2J\\nb\\u202e"
    assert cell_text({"\x1b": "\x07"}).isprintable()
    assert [cell_text(value) for value in (None, True, 1.0, 10**30, "é")] == [
        "",
        "true",
        "1.0",
        "1" + "0" * 30,
        "é",
    ]


@pytest.mark.parametrize("text", ["start", "now", TAIL, "-20", "-1", "42", "-0", "1x"])
def test_places(text: str) -> None:
    if text == "1x":
        with pytest.raises(click.BadParameter, match="10m"):
            BEGIN.convert(text, None, None)
        return
    expected = {
        "start": Begin(offset="-1"),
        "42": Begin(offset="0000000000000042_0000000000000000"),
        "-20": Begin(last=20),
        "-1": Begin(last=1),
        "-0": Begin(last=0),
    }
    assert BEGIN.convert(text, None, None) == expected.get(text, Begin(offset=text))


def test_times() -> None:
    assert BEGIN.convert("2026-11-01T00:00Z", None, None).time == "2026-11-01T00:00:00.000Z"
    assert (
        BEGIN.convert("2026-11-01T01:00:00.5+01:00", None, None).time == "2026-11-01T00:00:00.500Z"
    )
    # the server's clock counts
    assert [BEGIN.convert(text, None, None).time for text in ("10m", "1.5 h", "7D")] == [
        "10m",
        "1.5h",
        "7d",
    ]
    for bad in ("10 parsecs", "2026-13-01", "soon", "0001-01-01T00:00+14:00"):
        with pytest.raises(click.BadParameter):
            BEGIN.convert(bad, None, None)


@pytest.mark.parametrize(
    ("arguments", "facts", "query"),
    [
        (["read", "s", "--from", "-7"], FACTS, {"offset": "0000000000000100_0000000000000000"}),
        (["read", "s", "--from", "-500"], FACTS, {"offset": "-1"}),
        (["tail", "-n", "0", "s"], FACTS, {"offset": TAIL}),
        (
            ["tail", "s", "-n", "7"],
            (200, {**FACTS[1], "stream-retained-offset": "105_1999"}, b""),
            {"offset": f"{105:016}_{0:016}"},
        ),
    ],
)
def test_the_last_records_are_found_by_their_numbers(
    arguments: list[str], facts: tuple[int, dict[str, str], bytes], query: object
) -> None:
    with scripted(facts, answer(b"[1]")) as server:
        assert ran(server.url, *arguments).exit_code == 0
    assert dict(httpx.URL(server.said[1].path).params) == query


def test_a_time_goes_to_the_server_and_the_rest_by_offset() -> None:
    first = (200, {"content-type": "application/json", "stream-next-offset": "5_50"}, b"[1,2]")
    with scripted(first, answer(b"[3]")) as server:
        assert ran(server.url, "read", "s", "--from", "2026-11-01T00:00Z").stdout == "1\n2\n3\n"
    assert [dict(httpx.URL(said.path).params) for said in server.said] == [
        {"from_time": "2026-11-01T00:00:00.000Z"},
        {"offset": "5_50"},
    ]


@pytest.mark.parametrize("verb", ["read", "tail"])
def test_a_record_time_goes_to_the_server_as_such(verb: str) -> None:
    first = (200, {"content-type": "application/json", "stream-next-offset": "5_50"}, b"[1,2]")
    event = (
        b'event: control\ndata:{"streamNextOffset":"%s","streamClosed":true}\n\n' % TAIL.encode()
    )
    live = (200, {"content-type": "text/event-stream"}, event)
    answers = (first, answer(b"[3]")) if verb == "read" else (FACTS, first, answer(b"[3]"), live)
    with scripted(*answers) as server:
        result = ran(server.url, verb, "s", "--from", "2026-11-01T00:00Z", "--by-record-time")
        assert result.stdout == "1\n2\n3\n"
    at = 0 if verb == "read" else 1
    assert [dict(httpx.URL(said.path).params) for said in server.said[at : at + 2]] == [
        {"from_record_time": "2026-11-01T00:00:00.000Z"},
        {"offset": "5_50"},
    ]


def test_a_tail_of_the_last_records_ends_unless_it_follows() -> None:
    with scripted(FACTS, answer(b"[5,6]")) as server:
        assert ran(server.url, "tail", "-n", "2", "s").stdout == "5\n6\n"
    event = (
        b"event: data\ndata:[5,6]\n\nevent: control\n"
        b'data:{"streamNextOffset":"107_9","streamClosed":true}\n\n'
    )
    with scripted(FACTS, (200, {"content-type": "text/event-stream"}, event)) as server:
        result = ran(server.url, "tail", "-n", "2", "-f", "s")
        assert (result.stdout, "s is closed" in result.stderr) == ("5\n6\n", True)
    assert server.said[1].path == "/v1/stream/s?offset=0000000000000105_0000000000000000&live=sse"


def test_a_tail_by_time_reads_first_and_then_follows() -> None:
    event = (
        b"event: data\ndata:[8]\n\nevent: control\n"
        b'data:{"streamNextOffset":"108_9","streamClosed":true}\n\n'
    )
    with scripted(
        FACTS, answer(b"[7]"), (200, {"content-type": "text/event-stream"}, event)
    ) as server:
        assert ran(server.url, "tail", "s", "--from", "5m").stdout == "7\n8\n"
    assert (
        "from_time" in server.said[1].path
        and server.said[2].path == f"/v1/stream/s?offset={TAIL}&live=sse"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["read", "s", "--json", "--format", "table"],
        ["read", "s", "--from", "start", "--offset", "start"],
        ["tail", "s", "-n", "1", "--from", "start"],
        ["read", "s", "--from", "yesterday"],
        ["read", "s", "--from", "-3", "--by-record-time"],
        ["read", "s", "--by-record-time"],
    ],
)
def test_what_does_not_go_together_is_a_wrong_command_line(arguments: list[str]) -> None:
    with scripted(FACTS) as server:
        assert ran(server.url, *arguments).exit_code == exits.USAGE


def test_a_table_of_text_is_a_wrong_command_line() -> None:
    with scripted(
        (
            200,
            {"content-type": "text/plain", "stream-next-offset": TAIL, "stream-up-to-date": "true"},
            b"abc",
        )
    ) as server:
        result = ran(server.url, "read", "s", "--format", "table")
    assert result.exit_code == exits.USAGE and "text/plain" in result.stderr


def test_format_json_is_json() -> None:
    with scripted(answer(b"[1]")) as server:
        assert json.loads(ran(server.url, "read", "s", "--format", "json").stdout)["records"] == [1]
