"""`read` and `tail` by the client library: their reports of failures, and the incarnation with
which they continue."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner, Result
from scripted_server import DROP, scripted

from polynya.cli.app import cli
from polynya.cli.terminal import exits

JSON_STREAM = (
    200,
    {"content-type": "application/json", "stream-next-offset": "0000000000000000_0000000000000000"},
    b"",
)
SSE = {"content-type": "text/event-stream", "stream-incarnation": "7"}


def ran(server: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--server", server])


def error(status: int, code: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    body = msgspec.json.encode(
        {"error": {"code": code, "message": f"about {code}", "request_id": "r7"}}
    )
    return (
        status,
        {
            "content-type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        },
        body,
    )


def event(record: int) -> bytes:
    control = msgspec.json.encode(
        {"streamNextOffset": f"{record:016d}_{2 * record:016d}", "upToDate": True}
    )
    return b"event: data\ndata:[%d]\n\nevent: control\ndata:%b\n\n" % (record, control)


def test_a_tail_does_not_go_on_in_another_life_of_the_name() -> None:
    with scripted(JSON_STREAM, (200, SSE, event(1)), error(412, "INCARNATION_MISMATCH")) as server:
        result = ran(server.url, "tail", "a")
    assert (result.stdout, result.exit_code) == ("1\n", exits.REFUSED)
    assert (
        server.said[2].headers["stream-incarnation"] == "7"
        and "INCARNATION_MISMATCH" in result.stderr
    )


def test_a_repeated_event_is_printed_once() -> None:
    closed = (
        b"event: control\n"
        b'data:{"streamNextOffset":"0000000000000002_0000000000000004","streamClosed":true,"upToDate":true}\n'
        b"\n"
    )
    with scripted(JSON_STREAM, (200, SSE, event(1) + event(1) + event(2) + closed)) as server:
        result = ran(server.url, "tail", "a")
    assert (result.stdout, result.exit_code) == ("1\n2\n", 0)


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (error(503, "UNAVAILABLE", retry_after="3"), exits.UNREACHABLE, "[UNAVAILABLE] (request r7)\n  Nothing was applied; retry in 3 s."),
        (error(410, "TRIMMED"), exits.REFUSED, "about TRIMMED [TRIMMED] (request r7)"),
        (error(403, "FORBIDDEN"), exits.REFUSED, "about FORBIDDEN [FORBIDDEN] (request r7)"),
        (DROP, exits.UNREACHABLE, "no response from http://127.0.0.1"),
        ((502, {}, b"<html>"), exits.UNREACHABLE, "the server responded 502"),
        ((200, {"content-type": "text/html"}, b"<html>"), exits.REFUSED, "check that the URL is a Durable Streams server"),
    ],
)  # fmt: skip
def test_a_read_that_fails_is_told_as_other_commands_tell_it(
    answer: object, code: int, said: str
) -> None:
    with scripted(answer) as server:
        result = ran(server.url, "read", "a")
    assert result.exit_code == code and said in result.stderr, result.stderr
    assert len(server.said) == 1, "a read is not repeated"


def test_a_tail_that_finds_no_server_says_where_to_go_on() -> None:
    with scripted(JSON_STREAM, (200, SSE, event(1)), DROP) as server:
        result = ran(server.url, "tail", "a", "--retry", "300ms")
    assert (result.stdout, result.exit_code) == ("1\n", exits.UNREACHABLE)
    assert "Resume with: polynya tail a --offset 0000000000000001_0000000000000002" in result.stderr
