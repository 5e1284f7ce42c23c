"""Requests, output and exit codes of the client verbs, against a scripted server."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import msgspec
import pytest
from click.testing import CliRunner, Result
from scripted_server import DROP, scripted

from polynya.cli.app import cli
from polynya.cli.remote import client
from polynya.cli.streams import append
from polynya.cli.tables import commands, pipeline
from polynya.cli.terminal import exits

TAIL = "0000000000000003_0000000000000021"
JSON_STREAM = (200, {"content-type": "application/json", "stream-next-offset": TAIL}, b"")
TEXT_STREAM = (200, {"content-type": "text/plain", "stream-next-offset": TAIL}, b"")
DONE = (200, {"stream-next-offset": TAIL}, b"")


def error(
    status: int, code: str, outcome: str = "refused", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    body = msgspec.json.encode(
        {"error": {"code": code, "message": f"about {code}", "request_id": "r7"}}
    )
    return status, {"content-type": "application/json", "stream-outcome": outcome, **headers}, body


def ran(url: str, *arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli, list(arguments), input=stdin, env={"POLYNYA_SERVER": url})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY_PAUSE_SECONDS", 0.001)


def test_lines_of_stdin_become_one_batch_of_an_idempotent_producer() -> None:
    with scripted(JSON_STREAM, DONE) as server:
        result = ran(
            server.url, "append", "a/b", "--json", stdin=b'{"x": 1.0}\n\n  [2, 3]\n"\xc3\xa9"\n'
        )
    assert result.exit_code == 0, result.output
    sent = server.said[1]
    assert (sent.method, sent.path, sent.body) == (
        "POST",
        "/v1/stream/a/b",
        b'[{"x": 1.0},[2, 3],"\xc3\xa9"]',
    )
    assert sent.headers["producer-epoch"] == sent.headers["producer-seq"] == "0"
    assert json.loads(result.stdout) == {
        "name": "a/b",
        "records": 3,
        "batches": 1,
        "bytes": len(sent.body),
        "offset": TAIL,
    }


ARRAY = b'[{"n": 1}, {"n": 2}, [3]]'


@pytest.mark.parametrize(
    ("arguments", "stdin", "body", "said"),
    [
        (
            (ARRAY.decode(),),
            b"",
            b"[%s]" % ARRAY,
            "appended 1 record to a in 1 batch\n  the record is a JSON array, stored as one "
            "record; to store its",
        ),
        (
            (),
            ARRAY,
            b"[%s]" % ARRAY,
            "appended 1 record to a in 1 batch\n  the record is a JSON array, stored as one "
            "record; to store its",
        ),
        (
            ("1", "[2]"),
            b"",
            b"[1,[2]]",
            "appended 2 records to a in 1 batch\n  one record is a JSON array, stored as one "
            "record; to store its",
        ),
        (
            (" []", "[2]", "3"),
            b"",
            b"[[],[2],3]",
            "appended 3 records to a in 1 batch\n  2 records are JSON arrays, stored as one "
            "record each; to store their",
        ),
    ],
)
def test_an_array_that_becomes_one_record_is_pointed_out(
    arguments: tuple[str, ...], stdin: bytes, body: bytes, said: str
) -> None:
    with scripted(JSON_STREAM, DONE) as server:
        result = ran(server.url, "append", "a", *arguments, stdin=stdin)
    assert result.exit_code == 0 and server.said[1].body == body
    assert said in result.stderr
    assert result.stderr.endswith(" elements as records: polynya append a --whole < FILE\n")


def test_a_whole_array_becomes_a_record_for_each_element_as_over_http() -> None:
    with scripted(JSON_STREAM, DONE) as server:
        result = ran(server.url, "append", "a", "--whole", stdin=ARRAY)
        assert (
            server.said[1].body == ARRAY and result.stderr == "appended 3 records to a in 1 batch\n"
        )
    with scripted(JSON_STREAM, DONE) as server:
        assert (
            json.loads(
                ran(server.url, "append", "a", "--whole", "--json", stdin=b'{"n": 1}').stdout
            )["records"]
            == 1
        )
    for arguments, size in ((("--whole",), 25), (("[1]",), 4)):
        with scripted(TEXT_STREAM, DONE) as server:
            assert (
                ran(server.url, "append", "a", *arguments, stdin=ARRAY).stderr
                == f"appended {size} B to a in 1 batch\n"
            )


def test_an_append_on_a_condition_is_one_request_with_its_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(append, "BATCH_LINES", 2)
    at = "0000000000000004_0000000000000008"
    options = ("--if-match", at)
    with scripted(JSON_STREAM, DROP, DONE) as server:
        done = ran(server.url, "append", "a", *options, "--close", stdin=b"1\n2\n3\n4\n5\n")
    assert done.exit_code == 0 and "closed a" in done.stderr
    _, *posts = server.said
    assert len(posts) == 2, "the second repeats the first, whose answer was lost"
    for post in posts:
        assert (post.body, post.headers["if-match"]) == (b"[1,2,3,4,5]", f'"{at}"')
        assert (post.headers["stream-closed"], post.headers["producer-seq"]) == ("true", "0")
    with scripted(JSON_STREAM, DONE) as server:
        quoted = ("--if-match", f'"{at}"')  # as an ETag spells it
        assert ran(server.url, "append", "a", *quoted, "--close", stdin=b"").exit_code == 0
    assert server.said[1].headers["if-match"] == f'"{at}"' and not server.said[1].body
    with scripted(JSON_STREAM, error(412, "PRECONDITION")) as server:
        refused = ran(server.url, "append", "a", "1", *options)
    assert refused.exit_code == exits.REFUSED and "PRECONDITION" in refused.stderr


def test_an_append_whose_answer_is_lost_is_repeated_exactly() -> None:
    with scripted(
        JSON_STREAM, DROP, error(503, "UNAVAILABLE"), error(500, "INTERNAL", "unknown"), DONE
    ) as server:
        assert ran(server.url, "append", "a", "1", "2").exit_code == 0
    _, *posts = server.said
    assert len(posts) == 4
    assert all(
        (post.body, post.headers["producer-id"], post.headers["producer-seq"])
        == (b"[1,2]", posts[0].headers["producer-id"], "0")
        for post in posts
    )


def test_batches_count_on_where_the_last_was_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "BATCH_LINES", 2)
    with scripted(JSON_STREAM, DONE) as server:
        assert ran(server.url, "append", "a", stdin=b"1\n2\n3\n4\n").exit_code == 0
    assert b"".join(post.body for post in server.said[1:]).replace(b"][", b",") == b"[1,2,3,4]"
    assert [post.headers["producer-seq"] for post in server.said[1:]] == [
        str(number) for number in range(len(server.said) - 1)
    ]


def test_an_append_that_never_gets_an_answer_ends_as_unknown() -> None:
    with scripted(JSON_STREAM, DROP) as server:
        result = ran(server.url, "append", "a", "1", "--retry", "2s")
    assert result.exit_code == exits.UNKNOWN
    assert len(server.said) > 2


def test_an_append_that_was_never_taken_ends_as_unreachable() -> None:
    with scripted(JSON_STREAM, error(503, "MEMORY_PRESSURE", **{"retry-after": "1"})) as server:
        result = ran(server.url, "append", "a", "1", "--retry", "1s")
    assert result.exit_code == exits.UNREACHABLE


def test_what_follows_appended_records_and_is_never_taken_is_no_reason_for_the_same_command_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(append, "BATCH_LINES", 1)
    with scripted(
        JSON_STREAM, DONE, error(503, "MEMORY_PRESSURE", **{"retry-after": "1"})
    ) as server:
        result = ran(server.url, "append", "a", "--retry", "50ms", stdin=b"1\n2\n")
    assert result.exit_code == exits.REFUSED
    assert "1 record was appended before the failed batch" in result.output
    assert "Nothing was applied" not in result.output


def test_a_server_that_is_busy_is_asked_again_before_the_first_record_and_one_that_is_not_there_is_not() -> (
    None
):
    with scripted((503, {"retry-after": "1"}, b""), (429, {}, b""), JSON_STREAM, DONE) as server:
        assert ran(server.url, "append", "a", "1").exit_code == 0
    assert [said.method for said in server.said] == ["HEAD", "HEAD", "HEAD", "POST"]
    with scripted((503, {"retry-after": "1"}, b"")) as server:
        away = ran(server.url, "append", "a", "1", "--retry", "1s")
    assert away.exit_code == exits.UNREACHABLE and "the server is unavailable (503)" in away.output
    assert len(server.said) > 1
    # at once: it is not there any more
    assert ran(server.url, "append", "a", "1").exit_code == exits.UNREACHABLE


def test_a_bad_line_is_named() -> None:
    with scripted(JSON_STREAM, error(400, "INVALID_JSON")) as server:
        result = ran(server.url, "append", "a", stdin=b'1\n{"a":\n3\n')
    assert result.exit_code == exits.REFUSED
    assert 'record 2 is not valid JSON: {"a":' in result.stderr


def test_text_goes_as_it_is() -> None:
    with scripted(TEXT_STREAM, DONE) as server:
        assert ran(server.url, "append", "a", stdin=b"one\n\ntwo").exit_code == 0
    assert b"".join(post.body for post in server.said[1:]) == b"one\n\ntwo"


def test_whole_stdin_is_one_append() -> None:
    with scripted(error(404, "NOT_FOUND"), (201, {}, b""), DONE) as server:
        assert (
            ran(server.url, "append", "cat", "--whole", "--create", stdin=b"\x00\xff\n\n").exit_code
            == 0
        )
    made, sent = server.said[1:]
    assert (made.method, made.headers["content-type"]) == ("PUT", "application/octet-stream")
    assert sent.body == b"\x00\xff\n\n"


def test_read_prints_the_exact_bytes_of_each_record_and_goes_on_to_the_end() -> None:
    first = (
        200,
        {"content-type": "application/json", "stream-next-offset": "1_10"},
        b'[{"x":1.0}]',
    )
    last = (
        200,
        {
            "content-type": "application/json",
            "stream-next-offset": TAIL,
            "stream-up-to-date": "true",
        },
        b"[12345678901234567890, [1]]",
    )
    with scripted(first, last) as server:
        result = ran(server.url, "read", "a", "--offset", "start")
    assert result.stdout_bytes == b'{"x":1.0}\n12345678901234567890\n[1]\n'
    assert [said.path for said in server.said] == [
        "/v1/stream/a?offset=-1",
        "/v1/stream/a?offset=1_10",
    ]
    assert TAIL in result.stderr


def test_read_with_a_limit_says_where_to_go_on() -> None:
    page = (
        200,
        {
            "content-type": "application/json",
            "stream-next-offset": "0000000000000005_0000000000000020",
        },
        b"[1,22,333,4444,5]",
    )
    with scripted(page) as server:
        result = ran(server.url, "read", "a", "--limit", "2", "--json")
    assert json.loads(result.stdout) == {
        "offset": "0000000000000002_0000000000000009",
        "records": [1, 22],
        "up_to_date": False,
        "closed": False,
    }


def test_a_limit_on_text_is_a_wrong_command_line() -> None:
    with scripted(TEXT_STREAM) as server:
        result = ran(server.url, "read", "a", "--limit", "2")
    assert result.exit_code == exits.USAGE and "head -c" in result.stderr


def control(offset: str, **more: object) -> bytes:
    return (
        b"event: control\ndata:"
        + msgspec.json.encode({"streamNextOffset": offset, **more})
        + b"\n\n"
    )


SSE = {"content-type": "text/event-stream"}


def test_tail_resumes_where_the_connection_broke() -> None:
    first = b"event: data\ndata:[1,2]\n\n" + control("2_4") + b"event: data\ndata:[99"
    second = b"event: data\ndata:[3]\n\n" + control("3_6", streamClosed=True, upToDate=True)
    with scripted(JSON_STREAM, (200, SSE, first), (200, SSE, second)) as server:
        result = ran(server.url, "tail", "a", "--offset", "start")
    assert result.exit_code == 0, result.output
    assert result.stdout == "1\n2\n3\n"
    assert [said.path for said in server.said[1:]] == [
        "/v1/stream/a?offset=-1&live=sse",
        "/v1/stream/a?offset=2_4&live=sse",
    ]


def test_tail_from_now_misses_nothing_before_its_first_connection() -> None:
    with scripted(JSON_STREAM, (200, SSE, control(TAIL, streamClosed=True))) as server:
        assert ran(server.url, "tail", "a").exit_code == 0
    assert server.said[1].path == f"/v1/stream/a?offset={TAIL}&live=sse"


def test_tail_decodes_base64() -> None:
    binary = (200, {"content-type": "image/png", "stream-next-offset": TAIL}, b"")
    body = b"event: data\ndata:AP8=\n\n" + control("1_2", streamClosed=True)
    with scripted(binary, (200, {**SSE, "stream-sse-data-encoding": "base64"}, body)) as server:
        assert ran(server.url, "tail", "a", "--offset", "start").stdout_bytes == b"\x00\xff"


def test_tail_of_a_stream_that_goes_away_ends() -> None:
    with scripted(JSON_STREAM, (200, SSE, control(TAIL)), error(410, "GONE")) as server:
        assert ran(server.url, "tail", "a").exit_code == exits.REFUSED


def test_a_missing_stream_is_answered_with_its_nearest_names() -> None:
    listing = (
        200,
        {"content-type": "application/json"},
        b'{"streams":[{"name":"flights/UA"},{"name":"flights/US"},{"name":"x"}]}',
    )
    with scripted((404, {}, b""), listing) as server:
        result = ran(server.url, "info", "flights/Ua")
    assert result.exit_code == exits.REFUSED
    assert "Did you mean flights/US or flights/UA?" in result.stderr


def test_errors_of_the_server_are_told_whole() -> None:
    with scripted(error(409, "EXISTS_DIFFERENT")) as server:
        result = ran(server.url, "create", "a")
    assert result.stderr == "polynya: about EXISTS_DIFFERENT [EXISTS_DIFFERENT] (request r7)\n"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (error(503, "UNAVAILABLE"), exits.UNREACHABLE),
        (error(503, "OUTCOME_UNKNOWN", "unknown"), exits.UNKNOWN),
        (error(507, "DISK_FULL"), exits.UNREACHABLE),
        (error(500, "INTERNAL", "unknown"), exits.UNKNOWN),
        ((502, {}, b"<html>"), exits.UNKNOWN),
        (error(412, "INCARNATION_MISMATCH"), exits.REFUSED),
        (DROP, exits.UNKNOWN),
    ],
)
def test_scripts_can_tell_applied_refused_and_unknown_apart(answer: object, code: int) -> None:
    with scripted(answer) as server:
        assert ran(server.url, "close", "a").exit_code == code


def test_a_read_that_breaks_is_no_unknown_outcome() -> None:
    with scripted(DROP) as server:
        assert ran(server.url, "read", "a").exit_code == exits.UNREACHABLE


def test_ls_asks_page_after_page() -> None:
    pages = [
        (200, {}, b'{"streams":[{"name":"a"},{"name":"b"}],"next":"b"}'),
        (200, {}, b'{"streams":[{"name":"c"}]}'),
    ]
    with scripted(*pages) as server:
        result = ran(server.url, "ls", "pre")
    assert result.stdout == "a\nb\nc\n"
    assert [httpx.URL(said.path).params.get("after") for said in server.said] == ["", "b"]


def test_ls_of_an_attribute_goes_on_over_pages_without_one() -> None:
    pages = [
        (200, {}, b'{"streams":[],"next":"b"}'),
        (200, {}, b'{"streams":[{"name":"c"},{"name":"d"}],"next":"d"}'),
    ]
    with scripted(*pages) as server:
        result = ran(server.url, "ls", "--attr", "owner=a b", "--limit", "1")
        refused = ran(server.url, "ls", "--attr", "owner")
    assert result.stdout == "c\n"
    assert [httpx.URL(said.path).params.get("attr.owner") for said in server.said] == ["a b"] * 2
    assert refused.exit_code == 2 and "expected NAME=VALUE" in refused.output


def test_rm_with_force_passes_over_what_is_not_there() -> None:
    with scripted((404, {}, b""), (204, {}, b"")) as server:
        result = ran(server.url, "rm", "-f", "a", "b", "--json")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"name": "a", "deleted": False},
        {"name": "b", "deleted": True},
    ]


def test_names_are_encoded_once() -> None:
    with scripted((204, {}, b"")) as server:
        ran(server.url, "rm", "a b/100%/{tag}/é")
    assert server.said[0].path == "/v1/stream/a%20b/100%25/%7Btag%7D/%C3%A9"


def test_names_that_could_drive_a_terminal_are_listed_as_escapes() -> None:
    listing = json.dumps(
        {"streams": [{"name": "a\r\nb\u001b[31m"}, {"name": "ü"}], "next": None}
    ).encode()
    with scripted((200, {}, listing), (200, {}, listing)) as server:
        assert ran(server.url, "ls").stdout.splitlines() == ["a\\r\\nb\\x1b[31m", "ü"]
        assert (
            json.loads(ran(server.url, "ls", "--json").stdout.splitlines()[0])["name"]
            == "a\r\nb\x1b[31m"
        )


def test_a_stream_ends_in_one_way() -> None:
    both = ran(
        "http://127.0.0.1:1", "create", "a", "--ttl", "1h", "--expires-at", "2030-01-01T00:00:00Z"
    )
    assert (
        both.exit_code == exits.USAGE and "--ttl" in both.stderr and "--expires-at" in both.stderr
    )


def test_a_file_that_is_no_query_is_named(tmp_path: Path) -> None:
    path = tmp_path / "fares.sql"
    for text, why in ((b" \n", "is empty"), (b"\xff", "is not UTF-8 text")):
        path.write_bytes(text)
        asked = ("table", "create", "fares", "--from", "rides/", "--sql", str(path))
        result = ran("http://127.0.0.1:1", *asked)
        assert result.exit_code == exits.USAGE and f"{path} {why}" in result.stderr


def test_a_table_says_which_streams_it_covers() -> None:
    def answer(streams: int, **more: object) -> tuple[int, dict[str, str], bytes]:
        return (
            201,
            {"content-type": "application/json"},
            json.dumps({"table": {"streams": streams}, **more}).encode(),
        )

    asked = ("table", "create", "t", "--prefix", "misspelt/", "--column", "a:b:long", "--hold")
    with scripted(answer(0)) as server:
        result = ran(server.url, *asked)
    assert (
        result.exit_code == 0
        and "warning: no stream name starts with 'misspelt/' yet" in result.stderr
    )
    assert json.loads(server.said[0].body) == {
        "prefix": "misspelt/",
        "hold": True,
        "columns": {"a:b": "long"},
    }
    other = [{"name": "o", "prefix": "x"}]
    with scripted(answer(3, covered=["a", "b"], taken_by=other, taken_from=other)) as server:
        output = ran(server.url, *asked).stderr
    assert "it covers 3 streams now: a, b, …" in output and "starts with" not in output
    assert "table o (prefix 'x') takes" in output and "over from table o (prefix 'x')" in output
    with scripted(answer(0, taken_by=other)) as server:
        output = ran(server.url, *asked).stderr
    assert (
        "no stream under 'misspelt/' is left for this table" in output
        and "starts with" not in output
    )
    every = [{"name": "o", "prefix": ""}]
    with scripted(answer(0)) as server:
        output = ran(server.url, "table", "create", "t", "--prefix", "").stderr
    assert "warning: there is no stream yet, so" in output
    with scripted(answer(2, covered=["a", "b"], taken_from=every)) as server:
        output = ran(server.url, *asked).stderr
    assert "it covers 2 streams now: a, b" in output and "from table o (every stream)," in output
    untyped = ran("http://127.0.0.1:1", "table", "create", "t", "--prefix", "a", "--column", "id")
    assert untyped.exit_code == exits.USAGE and "expected FIELD:TYPE" in untyped.stderr


def test_a_sync_prints_milestones_and_with_verbose_every_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = (
        ("planned", "job 1 of 't': 2 ranges"),
        ("plan-object", "jobs/1.plan.json"),
        ("pointer", "job 1 is in Iceberg"),
    )
    for verbose in (False, True):
        show = pipeline.step_printer(verbose=verbose)
        for step, said in steps:
            show(step, said)
    assert capsys.readouterr().err.splitlines() == [
        "  planned       job 1 of 't': 2 ranges",
        "  committed     job 1 is in Iceberg",
        "  planned       job 1 of 't': 2 ranges",
        "  plan-object   jobs/1.plan.json",
        "  pointer       job 1 is in Iceberg",
    ]


@pytest.mark.parametrize("verb", [("table", "sync"), ("compact",)])
def test_table_sync_has_a_second_name(
    verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "check_packages", lambda: None)
    with scripted(error(404, "TABLE_NOT_FOUND")) as server:
        result = ran(server.url, *verb, "gone", "-v")
    assert result.exit_code == exits.REFUSED and "about TABLE_NOT_FOUND" in result.stderr
    assert server.said[0].path.endswith("/gone/plan") or "tables" in server.said[0].path
