"""The command line against a real node: every verb, from the first append to a question asked of a
table."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from free_ports import two_free_ports
from polling import wait_until
from product import Ran, RunningNode, environment, polynya, running_node

from polynya.client import Client

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("node") / "data", "--cores", "2") as node:
        yield node


def test_a_stream_from_birth_to_death(node: RunningNode) -> None:
    def run(*arguments: str, stdin: bytes = b"") -> str:
        ran = polynya(*arguments, server=node.url, stdin=stdin)
        assert ran.code == 0, ran
        return ran.out

    assert json.loads(run("create", "life/a", "--json", "--ttl", "1h"))["created"] is True
    assert json.loads(run("create", "life/a", "--json", "--ttl", "1h"))["created"] is False
    assert (
        json.loads(run("append", "life/a", "--json", stdin=b'{"n": 1}\n{"n": 2.0}\n'))["records"]
        == 2
    )
    assert run("read", "life/a") == '{"n": 1}\n{"n": 2.0}\n'
    offset = json.loads(run("read", "life/a", "--limit", "1", "--json"))["offset"]
    assert run("read", "life/a", "--offset", offset) == '{"n": 2.0}\n'
    facts = json.loads(run("info", "life/a", "--json"))
    assert (facts["content_type"], facts["closed"], facts["ttl_seconds"]) == (
        "application/json",
        False,
        3600,
    )
    run("fork", "life/b", "--from", "life/a", "--offset", offset)
    run("append", "life/b", '{"n": 3}')
    assert run("read", "life/b") == '{"n": 1}\n{"n": 3}\n'
    assert run("ls", "life/") == "life/a\nlife/b\n"
    run("close", "life/b")
    assert run("tail", "life/b", "--offset", "start") == '{"n": 1}\n{"n": 3}\n'
    assert polynya("append", "life/b", "4", server=node.url).code == 1
    run("rm", "life/b", "life/a")
    assert run("ls", "life/") == ""


def test_keys_headers_and_times_of_records(node: RunningNode) -> None:
    def run(*arguments: str, stdin: bytes = b"") -> str:
        ran = polynya(*arguments, server=node.url, stdin=stdin)
        assert ran.code == 0, ran
        return ran.out

    fields = ("--key", "café", "--header", "a=1", "--header", 'b=x, "y"', "--timestamp", "1500")
    run("append", "keyed/a", "1", "[2]", "--create", *fields)
    run("append", "keyed/a", "3")
    assert run("read", "keyed/a") == "1\n[2]\n3\n"
    whole = [json.loads(line) for line in run("read", "keyed/a", "--records").splitlines()]
    assert whole[1].pop("append_time") == whole[0].pop("append_time"), "of one append"
    assert whole[2].pop("append_time") >= 1_700_000_000_000
    assert whole[1] == {
        "offset": 1,
        "timestamp": 1500,
        "key": "café",
        "headers": [["a", "1"], ["b", 'x, "y"']],
        "value": [2],
    }
    assert [(each["value"], each["key"]) for each in whole[::2]] == [(1, "café"), (3, None)]
    page = json.loads(run("tail", "keyed/a", "-n", "2", "--records", "--json"))
    assert [each.pop("append_time") for each in page["records"]]
    assert page["records"] == whole[1:]
    kind = ("--create", "--content-type", "text/plain")
    run("append", "keyed/t", *kind, "--key", "k", stdin=b"one\ntwo\n")
    assert run("read", "keyed/t") == "one\ntwo\n"
    lines = run("read", "keyed/t", "--records").splitlines()
    assert [json.loads(line)["value"] for line in lines] == ["one\n", "two\n"]
    table = run("read", "keyed/a", "--records", "--format", "table").splitlines()
    heads = ["record", "offset", "timestamp", "append_time", "key", "headers", "value"]
    assert table[0].split() == heads
    wrong = polynya("append", "keyed/a", "1", "--timestamp", "soon", server=node.url)
    assert wrong.code == 1 and "Record-Timestamp" in wrong.err
    assert polynya("append", "keyed/a", "1", "--header", "a", server=node.url).code == 2
    for number, second in enumerate((5, 1, 9, 3), 1):  # times decrease
        run("append", "keyed/o", str(number), "--create", "--timestamp", str(second * 1000))
    late = ("--by-record-time", "--from")
    assert run("read", "keyed/o", *late, "1970-01-01T00:00:05.500Z") == "3\n4\n"
    assert run("read", "keyed/o", *late, "1970-01-01T00:00:01Z") == "1\n2\n3\n4\n"
    assert run("read", "keyed/o", *late, "1970-01-01T00:00:10Z") == ""
    run("close", "keyed/o")
    assert run("tail", "keyed/o", *late, "1970-01-01T00:00:06Z") == "3\n4\n"


def test_a_subscription_from_birth_to_death(node: RunningNode) -> None:
    def run(*arguments: str) -> Ran:
        ran = polynya("sub", *arguments, server=node.url)
        assert ran.code == 0, ran
        return ran

    polynya("create", "jobs/a", server=node.url)
    made = ["create", "workers", "--pattern", "jobs/*", "--wake-stream", "wakes", "--lease", "10s"]
    assert json.loads(run(*made, "--json").out)["created"] is True
    assert "already exists" in run(*made).err
    run("create", "mailer", "--stream", "jobs/a", "--webhook", "http://127.0.0.1:1/hook")
    # homes on both cores
    assert [json.loads(line)["id"] for line in run("ls", "--json").out.splitlines()] == [
        "mailer",
        "workers",
    ]
    assert run("ls", "work").out.splitlines()[1].split() == [
        "workers",
        "pull-wake",
        "jobs/*",
        "workers,",
        "through",
        "wakes",
        "idle",
        "active",
        "0",
    ]
    polynya("append", "jobs/a", '{"job": 1}', server=node.url)
    wake = json.loads(
        polynya("tail", "wakes", "--offset", "start", "--limit", "1", server=node.url).out
    )
    assert (wake["subscription_id"], wake["stream"]) == ("workers", "jobs/a")
    shown = json.loads(run("show", "workers", "--json").out)
    assert (shown["lease_ttl_ms"], [link["path"] for link in shown["streams"]]) == (
        10_000,
        ["jobs/a"],
    )
    assert "jobs/a" in run("show", "workers").out
    assert "Did you mean workers?" in polynya("sub", "show", "worker", server=node.url).err
    run("rm", "workers", "mailer")
    assert run("ls").out == ""


def test_a_group_of_workers_is_one_name(node: RunningNode) -> None:
    def run(*arguments: str, code: int = 0) -> Ran:
        ran = polynya("sub", *arguments, server=node.url)
        assert ran.code == code, ran
        return ran

    with Client(node.url) as client:
        client.stream("mails/a").create()
        with client.share("crew", "mails/*", lanes=3, max_attempts=2) as work:
            client.stream("mails/a").append(1)
            next(work)
            row = run("ls", "crew").out.splitlines()[1].split()
            assert (row[0], row[-4:]) == ("crew", ["active", "1", "3", "1"])
            assert "has the lane" in run("reset", "crew", "--to", "earliest", code=1).err
    assert [line.split()[0] for line in run("ls", "crew", "--lanes").out.splitlines()[1:]] == [
        "crew.0",
        "crew.1",
        "crew.2",
    ]
    shown = run("show", "crew").out
    assert "crew.2" in shown and "groups/crew/dead-letters" in shown
    (group,) = [json.loads(line) for line in run("ls", "crew", "--json").out.splitlines()]
    assert json.loads(run("show", "crew", "--json").out)["lanes"] == group["lanes"]
    assert "Did you mean crew?" in run("show", "crews", code=1).err
    run("reset", "crew", "--to", "latest")
    moved = json.loads(run("reset", "crew", "--to", "earliest", "--json").out)
    assert [(each["subscription"], each["to_lag"]) for each in moved["streams"]] == [
        ("crew.0", 1),
        ("crew.1", 1),
        ("crew.2", 1),
    ]
    run("rm", "crew")
    assert run("ls", "crew").out == ""


def test_a_subscription_that_is_refused_leaves_no_stream(node: RunningNode) -> None:
    def refused(*arguments: str) -> str:
        ran = polynya("sub", "create", *arguments, server=node.url)
        assert ran.code == 1, ran
        assert polynya("ls", "left/", server=node.url).out == ""
        return ran.err

    assert "lease_ttl_ms must be" in refused(
        "w", "--pattern", "jobs/*", "--wake-stream", "left/wakes", "--lease", "1ms"
    )
    assert "is not a valid stream path" in refused(
        "w", "--stream", "a/../b", "--wake-stream", "left/wakes"
    )
    assert "watch its own wake_stream" in refused(
        "w", "--stream", "left/wakes", "--wake-stream", "left/wakes"
    )
    first = (
        "sub",
        "create",
        "taken",
        "--pattern",
        "jobs/*",
        "--webhook",
        "http://127.0.0.1:1/hook",
    )
    assert polynya(*first, server=node.url).code == 0
    assert "another configuration" in refused(
        "taken", "--pattern", "jobs/*", "--wake-stream", "left/wakes"
    )
    polynya("create", "textual", "--content-type", "text/plain", server=node.url)
    assert "the stream textual holds text/plain; a wake stream must be application/json" in refused(
        "w", "--pattern", "j/*", "--wake-stream", "textual"
    )
    polynya("create", "ended", server=node.url)
    polynya("close", "ended", server=node.url)
    assert "the stream ended is closed" in refused(
        "w", "--pattern", "j/*", "--wake-stream", "ended"
    )
    assert json.loads(polynya("sub", "ls", "--json", server=node.url).out)["id"] == "taken"
    polynya("sub", "rm", "taken", server=node.url)


def test_reads_from_the_last_records_and_tables(node: RunningNode) -> None:
    for part in range(3):
        polynya(
            "append",
            "last",
            "--create",
            server=node.url,
            stdin="".join(f'{{"n":{part * 5 + at}}}\n' for at in range(5)).encode(),
        )
    assert polynya("read", "last", "--from", "-7", server=node.url).out == "".join(
        f'{{"n":{number}}}\n' for number in range(8, 15)
    )
    assert polynya("tail", "-n", "99", "last", server=node.url).out.count("\n") == 15
    assert (
        polynya("tail", "-n", "2", "last", "--format", "table", server=node.url).out
        == "record   n\n    13  13\n    14  14\n"
    )
    polynya("close", "last", server=node.url)
    assert polynya("tail", "-f", "-n", "1", "last", server=node.url).out == '{"n":14}\n'
    for text in (b"one\n", b"two\n", b"three\n"):
        polynya(
            "append",
            "words",
            "--create",
            "--content-type",
            "text/plain",
            server=node.url,
            stdin=text,
        )
    # of other content: the last appends
    assert polynya("tail", "-n", "2", "words", server=node.url).out == "two\nthree\n"


def test_contexts_lead_to_the_node(node: RunningNode, tmp_path: Path) -> None:
    own = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert polynya("context", "add", "here", "--server", node.url, **own).code == 0
    assert polynya("ls", **own).code == 0
    assert f"http://127.0.0.1:1 (of {tmp_path}" not in polynya("ls", **own).err
    assert polynya("ls", "--context", "here", POLYNYA_SERVER="http://127.0.0.1:1", **own).code == 0
    refused = polynya("ls", POLYNYA_SERVER="http://127.0.0.1:1", **own)
    assert refused.code == 3 and "(of POLYNYA_SERVER)" in refused.err
    wrong = polynya("ls", "--server", node.url.replace("http:", "https:"), **own)
    assert wrong.code == 3 and f"try {node.url}" in wrong.err


def test_a_listing_of_many_pages(node: RunningNode) -> None:
    names = [f"many/{number:04d}" for number in range(7)]
    for name in names:
        assert polynya("create", name, server=node.url).code == 0
    listed = polynya("ls", "many/", "--json", "--limit", "5", server=node.url).out.splitlines()
    assert [json.loads(line)["name"] for line in listed] == names[:5]


def test_bytes_go_in_and_out_as_they_are(node: RunningNode) -> None:
    picture = bytes(range(256)) * 10
    assert (
        polynya(
            "append",
            "pictures/cat",
            "--whole",
            "--create",
            "--close",
            server=node.url,
            stdin=picture,
        ).code
        == 0
    )
    ran = subprocess.run(
        [sys.executable, "-m", "polynya", "read", "pictures/cat"],
        capture_output=True,
        env=environment(POLYNYA_SERVER=node.url),
        check=True,
    )
    assert ran.stdout == picture
    event = json.loads(
        polynya("tail", "pictures/cat", "--offset", "start", "--json", server=node.url).out
    )
    assert base64.b64decode(event["base64"]) == picture


def test_a_refusal_names_the_code_and_the_request(node: RunningNode) -> None:
    polynya("create", "typed", "--content-type", "text/plain", server=node.url)
    ran = polynya("create", "typed", server=node.url)
    assert ran.code == 1 and "[EXISTS_DIFFERENT]" in ran.err and "(request " in ran.err
    assert polynya("append", "typos/nope", "1", server=node.url).code == 1
    assert "Did you mean typed?" in polynya("info", "typd", server=node.url).err


def test_appends_and_a_tail_survive_kill_9_with_every_record_exactly_once(tmp_path: Path) -> None:
    records = [f'{{"n": {number}}}' for number in range(3000)]
    listen = ("--listen", f"127.0.0.1:{two_free_ports()}", "--kafka-listen", "127.0.0.1:0")
    with running_node(tmp_path / "data", *listen) as first:
        polynya("create", "survivor", server=first.url)
        variables = environment(POLYNYA_SERVER=first.url)
        tail = subprocess.Popen(
            [sys.executable, "-m", "polynya", "tail", "survivor", "--offset", "start", "--limit", "3000"],
            stdout=subprocess.PIPE, env=variables, text=True,
        )  # fmt: skip
        append = subprocess.Popen(
            [sys.executable, "-m", "polynya", "append", "survivor"],
            stdin=subprocess.PIPE,
            env=variables,
        )
        assert append.stdin is not None and tail.stdout is not None
        seen: list[str] = []
        reader = threading.Thread(
            target=lambda: seen.extend(line.strip() for line in tail.stdout or [])
        )
        reader.start()
        append.stdin.write("".join(f"{record}\n" for record in records[:1500]).encode())
        append.stdin.flush()
        wait_until(lambda: len(seen) > 100, what="the first records at the tail")
        first.kill()
        append.stdin.write("".join(f"{record}\n" for record in records[1500:]).encode())
        append.stdin.close()
        with running_node(tmp_path / "data", *listen) as second:
            assert append.wait(60) == 0
            assert tail.wait(60) == 0
            reader.join(30)
            tail.stdout.close()
            assert polynya("read", "survivor", server=second.url).out.splitlines() == records
            assert seen == records


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.long
def test_streams_become_a_table_that_answers(node: RunningNode) -> None:
    polynya(
        "append",
        "shop/a",
        "--create",
        server=node.url,
        stdin=b'{"item": 1, "price": 1.5}\n{"item": 2, "price": 2.5}\n',
    )
    polynya("append", "shop/b", "--create", server=node.url, stdin=b'{"item": 3, "price": 4.0}\n')
    made = polynya("table", "create", "shop", "--prefix", "shop/", server=node.url)
    assert made.code == 0 and "no stream name starts with" not in made.err
    assert "  it covers 2 streams now: shop/a, shop/b" in made.err
    assert "3 records" in polynya("sql", "select * from shop", server=node.url).err
    (table,) = json.loads(polynya("table", "ls", "--json", server=node.url).out)
    assert (
        table["name"],
        table["prefix"],
        table["streams"],
        table["iceberg"],
        table["records_behind"],
    ) == ("shop", "shop/", 2, None, 3)
    ran = polynya("compact", "shop", "--json", server=node.url, seconds=250)
    assert ran.code == 0 and [row["rows"] for row in json.loads(ran.out)] == [3], ran
    ran = polynya(
        "sql",
        "--json",
        "select stream, count(*) n, sum(price) p from shop group by stream order by 1",
        server=node.url,
    )
    assert json.loads(ran.out) == [
        {"stream": "shop/a", "n": 2, "p": 4.0},
        {"stream": "shop/b", "n": 1, "p": 4.0},
    ]
    assert "shop is up to date" in ran.err
    (table,) = json.loads(polynya("table", "ls", "--json", server=node.url).out)
    assert (
        table["rows"] == 3
        and table["behind_seconds"] == 0
        and table["delta"].startswith("file:///")
    )
    polynya("append", "shop/b", '{"item": 4, "price": 8.0}', server=node.url)
    assert "1 record" in polynya("sql", "select count(*) from shop", server=node.url).err


@pytest.mark.spark
def test_a_wrong_question_is_refused(node: RunningNode) -> None:
    ran = polynya("sql", "drop table x", server=node.url)
    assert ran.code == 1 and "SELECT" in ran.err
    assert polynya("compact", "nope", server=node.url).code == 1
