"""`polynya import`: everything once, byte for byte, whatever interrupts it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from long_tests import long
from product import RunningNode, polynya, running_node
from scripted_server import scripted

from polynya.cli.remote.client import Client
from polynya.cli.streams import import_stream
from polynya.cli.streams.import_stream import ImportCopy, ImportSource
from polynya.cli.terminal import exits

JSON = {"content-type": "application/json"}
NUMBERS = b'[1.50,{"b":1,"a":2},[1,[2]],"\\u00e9",1e400,[]]'


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("node")) as running:
        yield running


def put(
    node: RunningNode,
    name: str,
    *bodies: bytes,
    kind: str = "application/json",
    close: bool = False,
) -> str:
    url = f"{node.url}/v1/stream/{name}"
    assert httpx.put(url, headers={"content-type": kind}, timeout=60).status_code == 201
    for body in bodies:
        assert httpx.post(url, headers={"content-type": kind}, content=body, timeout=60).is_success
    if close:
        assert httpx.post(url, headers={"stream-closed": "true"}, timeout=60).is_success
    return url


def content(node: RunningNode, name: str) -> bytes:
    return httpx.get(f"{node.url}/v1/stream/{name}", timeout=60).content


@pytest.mark.process
def test_json_is_copied_byte_for_byte_and_the_copy_is_closed_as_the_source_is(
    node: RunningNode,
) -> None:
    url = put(node, "from/json", NUMBERS, b'{"last": 0.10}', close=True)
    done = polynya("import", url, "to/json", "--json", server=node.url)
    assert done.code == 0, done
    assert json.loads(done.out)["closed"] is True
    assert (
        content(node, "to/json") == content(node, "from/json") == NUMBERS[:-1] + b',{"last": 0.10}]'
    )
    assert (
        httpx.head(f"{node.url}/v1/stream/to/json", timeout=60).headers["stream-closed"] == "true"
    )


@pytest.mark.process
def test_given_again_it_goes_on_where_the_copy_ends(node: RunningNode) -> None:
    url = put(node, "from/more", b"[1,2]")
    assert polynya("import", url, "to/more", server=node.url).code == 0
    httpx.post(url, headers=JSON, content=b"[3,[4]]", timeout=60)
    for _ in range(2):
        again = polynya("import", url, "to/more", "--json", server=node.url)
        assert (again.code, json.loads(again.out)["resumed"]) == (0, True), again
    assert content(node, "to/more") == b"[1,2,3,[4]]"


@pytest.mark.process
@pytest.mark.parametrize("kind", ["application/json", "application/octet-stream"])
@pytest.mark.parametrize("fails_at", [2, *long([1, 5])])
def test_interrupted_inside_a_page_it_is_complete_after_the_next_time(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch, kind: str, fails_at: int
) -> None:
    monkeypatch.setattr(import_stream, "PART_BYTES", 20)
    name = f"cut/{kind[-4:]}{fails_at}"
    body = json.dumps(list(range(100, 140))).encode() if "json" in kind else bytes(range(200))
    url = put(node, f"from/{name}", body, kind=kind)
    with Client(node.url) as client:
        first = ImportCopy(client, ImportSource(url, {}, 1.0), f"to/{name}")
        first.prepare()
        append = first._append
        left = iter(range(fails_at))

        def fail(body: bytes, sequence: str) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            append(body, sequence)

        monkeypatch.setattr(first, "_append", fail)
        with pytest.raises(KeyboardInterrupt):
            first.run(follow=False)
        second = ImportCopy(client, ImportSource(url, {}, 1.0), f"to/{name}")
        second.prepare()
        assert second.resumed
        assert second.run(follow=False) is False
    assert content(node, f"to/{name}").replace(b" ", b"") == body.replace(b" ", b"")


def test_an_append_whose_answer_was_lost_is_found_to_be_here() -> None:
    with (
        scripted(
            (200, {"stream-seq": ""}, b""),  # HEAD: the copy is there, and empty
            (503, {"retry-after": "1"}, b""),
            (409, {}, b"{}"),  # the repeat of what was applied after all
            (200, {"stream-seq": "-1+0000000000000002"}, b""),
        ) as here,
        scripted(
            (200, JSON, b""),
            (200, {**JSON, "stream-next-offset": "7", "stream-up-to-date": "true"}, b"[1,2]"),
        ) as there,
        Client(here.url) as client,
    ):
        copy = ImportCopy(client, ImportSource(there.url + "/v1/stream/x", {}, 5.0), "x")
        here.answers[0] = (200, JSON, b"")
        copy.prepare()
        assert copy.run(follow=False) is False
    assert [(said.method, said.headers.get("stream-seq")) for said in here.said] == [
        ("HEAD", None),
        ("POST", "-1+0000000000000002"),
        ("POST", "-1+0000000000000002"),
        ("HEAD", None),
    ]


@pytest.mark.process
def test_ursula_answers_in_lines_and_a_page_more_may_follow(node: RunningNode) -> None:
    pages = [
        (200, JSON, b""),
        (
            200,
            {"content-type": "application/x-ndjson", "stream-next-offset": "00000000000000000012"},
            b'{"a":1}\n[2]\n',
        ),
        (
            200,
            {
                "content-type": "application/x-ndjson",
                "stream-next-offset": "00000000000000000014",
                "stream-up-to-date": "true",
            },
            b"3\n",
        ),
    ]
    with scripted(*pages) as ursula:
        done = polynya(
            "import",
            f"{ursula.url}/shop/orders",
            "--header",
            "authorization: Bearer x",
            server=node.url,
        )
        assert done.code == 0, done
        assert [said.path for said in ursula.said] == [
            "/shop/orders",
            "/shop/orders?offset=-1",
            "/shop/orders?offset=00000000000000000012",
        ]
        assert {said.headers["authorization"] for said in ursula.said} == {"Bearer x"}
    assert content(node, "shop/orders") == b'[{"a":1},[2],3]'


@pytest.mark.process
def test_it_follows_until_the_source_is_closed(node: RunningNode) -> None:
    url = put(node, "from/live", b"[1]")
    done: list[object] = []
    importer = threading.Thread(
        target=lambda: done.append(polynya("import", url, "to/live", "--follow", server=node.url))
    )
    importer.start()
    httpx.post(url, headers=JSON, content=b"[2]", timeout=60)
    httpx.post(url, headers=JSON | {"stream-closed": "true"}, content=b"[3]", timeout=60)
    importer.join(60)
    assert [getattr(ran, "code", None) for ran in done] == [0], done
    assert content(node, "to/live") == b"[1,2,3]"


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("{url}/v1/stream/nowhere",), exits.REFUSED, "no such stream"),
        (("{url}/v1/stream/a?b=1",), exits.USAGE, "not the URL of a stream"),
        (("ftp://x/a",), exits.USAGE, "not the URL of a stream"),
        (("{url}/",), exits.USAGE, "names no stream"),
        (
            ("{url}/v1/stream/bad/source", "bad/target"),
            exits.REFUSED,
            "holds records that were not imported",
        ),
        (("{url}/v1/stream/bad/source", "bad/written"), exits.REFUSED, "is not an import"),
        (("{url}/v1/stream/bad/source", "bad/state"), exits.REFUSED, "'state' is reserved"),
        (("{url}/v1/stream/bad/chunk",), exits.REFUSED, "'chunk' is a reserved segment"),
        (("{url}/v1/stream/bad/source", "--header", "nonsense"), exits.USAGE, "--header"),
        (
            ("http://127.0.0.1:1/v1/stream/a", "--retry", "0s"),
            exits.UNREACHABLE,
            "Check that the source is running.",
        ),
        (
            ("http://127.0.0.1:1/v1/stream/a", "--retry", "1s"),
            exits.UNREACHABLE,
            "retrying for 1 s\n",
        ),
    ],
)
def test_what_cannot_be_imported_is_said(
    node: RunningNode, arguments: tuple[str, ...], code: int, says: str
) -> None:
    if httpx.head(f"{node.url}/v1/stream/bad/source", timeout=60).status_code == 404:
        put(node, "bad/source", b"[1]")
        put(node, "bad/target", b"[9]")
        target = put(node, "bad/written")
        httpx.post(target, headers=JSON | {"stream-seq": "a7"}, content=b"[1]", timeout=60)
    ran = polynya("import", *(each.format(url=node.url) for each in arguments), server=node.url)
    assert (ran.code, says in ran.err) == (code, True), ran


@pytest.mark.process
def test_a_lifetime_is_copied_too(node: RunningNode, tmp_path: Path) -> None:
    url = f"{node.url}/v1/stream/from/ttl"
    httpx.put(url, headers=JSON | {"stream-ttl": "3600"}, timeout=60)
    assert polynya("import", url, "to/ttl", server=node.url).code == 0
    assert httpx.head(f"{node.url}/v1/stream/to/ttl", timeout=60).headers["stream-ttl"] == "3600"
