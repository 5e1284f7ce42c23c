"""Workers of reducers on a real node: killed anywhere they publish the same states, and a node runs
its own."""

from __future__ import annotations

import hashlib
import random
import subprocess
from pathlib import Path

import pytest
from polling import wait_until
from product import CommandProcess, polynya, running_node

from polynya.client import Client
from polynya.reducers.builtins import builtin
from polynya.reducers.reducer import Record

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

STREAMS = ("carts/a", "carts/b")
ROUNDS = 10


def value_of(number: int) -> dict[str, object]:
    return {"item": f"i{number % 50}", "n": None if number % 7 == 0 else number}


def expected_digests(client: Client, stream: str, offsets: list[str]) -> list[str]:
    """Compute the digests of the states at these offsets from all records at once."""
    values = [record.value for record in client.stream(stream).read()]
    assert values == [value_of(number) for number in range(len(values))]
    found = []
    for offset in offsets:
        reducer = builtin("latest", "/item")
        reducer.restore(None)
        records = [
            Record(number, 0, 0, None, client_json(value_of(number)))
            for number in range(int(offset[:16]))
        ]
        reducer.apply(records)
        found.append(f"sha-256={hashlib.sha256(reducer.state()).hexdigest()}")
    return found


def client_json(value: object) -> bytes:
    """Encode a value as the client appends it."""
    from polynya.client.values import encode

    return encode(value)


def test_a_worker_that_is_killed_anywhere_publishes_the_same_states(tmp_path: Path) -> None:
    chance = random.Random(20)
    with running_node(tmp_path / "data", "--cores", "2") as node, Client(node.url) as client:
        made = ("reduce", "add", "carts", "--pattern", "carts/*", "--builtin", "latest")
        assert polynya(*made, "--key", "/item", server=node.url).code == 0
        refused = polynya(*made[:3], "--pattern", "_snapshots/**", *made[5:], server=node.url)
        assert refused.code == 1 and "'_snapshots' is reserved" in refused.err, refused
        done = 0
        for number in range(ROUNDS):
            for name in STREAMS:
                stream = client.stream(name)
                if not number:
                    stream.create()
                stream.append(*map(value_of, range(done, done + 2000)))
            done += 2000
            worker = CommandProcess("reduce", "run", "--once", POLYNYA_SERVER=node.url)
            try:
                worker.process.wait(chance.uniform(0, 0.4))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait(60)
            worker.end_reading()
        last = polynya("reduce", "run", "carts", "--once", server=node.url)
        assert last.code == 0, last
        for name in STREAMS:
            marks = client.stream(name).snapshots()
            assert marks[-1].offset[:16] == f"{done:016d}"
            offsets = [mark.offset for mark in marks]
            assert [mark.digest for mark in marks] == expected_digests(client, name, offsets)
        verified = polynya("reduce", "verify", "carts", server=node.url)
        assert (verified.code, verified.err) == (0, "2 snapshots equal, 0 different\n")


def test_a_node_runs_workers_of_its_own(tmp_path: Path) -> None:
    flags = ("--cores", "1", "--reduce-workers", "1")
    with running_node(tmp_path / "data", *flags) as node, Client(node.url) as client:
        add = ("reduce", "add", "n", "--pattern", "**", "--builtin", "count", "--every-records")
        assert polynya(*add, "3", server=node.url).code == 0
        junk = tmp_path / "junk.wasm"
        junk.write_bytes(b"\0asm\1\0\0\0")  # a module without exports
        bad = polynya(
            "reduce", "add", "bad", "--pattern", "**", "--module", str(junk), server=node.url
        )
        assert bad.code == 1 and "is no reducer: MODULE" in bad.err, bad
        stream = client.stream("a")
        stream.create()
        stream.append(1, 2, 3)
        marks = wait_until(stream.snapshots, what="the node's worker to publish", seconds=60)
        assert [mark.origin for mark in marks] == ["n@1"]
        listed = polynya("reduce", "ls", server=node.url)
        assert "count" in listed.out and "works" in listed.out and "bad" not in listed.out
        assert polynya("reduce", "rm", "n", server=node.url).code == 0
        assert polynya("reduce", "rm", "n", server=node.url).code == 1
        assert node.stop() == 0
