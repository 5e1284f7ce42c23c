"""Two cores: requests land on the wrong one, forks cross groups and cores, and live readers outlive
the death of the core that owns their stream."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time

import psutil
import pytest
from e2e_crashes import Worker, at_work
from e2e_world import JSON, Answer, Lost, World, address, drain, live_readers, metric, read_until
from long_tests import long
from polling import wait_until
from product import ColdNode

from polynya.base.names import group_of
from polynya.config.model import GROUPS_DEFAULT

pytestmark = pytest.mark.process
CORES = 2
WAITING = "polynya_http_long_polls_total"
FLAGS = ("--cores", str(CORES), "--long-poll-timeout", "20")
HANG_SECONDS = 15.0  # below the 20 s of a long-poll and the minute of an event stream
CONNECTIONS = 12  # so many land on both cores, but for one time in two thousand


def owned_by(core: int, stem: str) -> str:
    """Return a name whose group belongs to `core`."""
    return next(
        name
        for name in (f"{stem}-{number}" for number in range(1000))
        if group_of(name, GROUPS_DEFAULT) % CORES == core
    )


def process_of(world: World, core: int) -> psutil.Process:
    found = []
    for each in world.cores():
        # one that was killed before this one, and is just ending
        with contextlib.suppress(psutil.Error):
            if any(f"/core-{core}/" in file.path for file in each.open_files()):
                found.append(each)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize("owner", [1, *long([0])])
def test_events_reach_readers_on_every_core_and_end_when_the_owner_dies(
    world: World, owner: int
) -> None:
    world.start(*FLAGS)
    name = owned_by(owner, "cores/live")
    assert world.ask("PUT", f"/v1/stream/{name}", **JSON).status == 201
    with contextlib.ExitStack() as stack:
        readers = live_readers(world, f"{name}?offset=-1&live=sse", CONNECTIONS, stack)
        heads = [read_until(reader, b"upToDate") for reader in readers]
        assert all(head.startswith(b"HTTP/1.1 200") for head in heads)
        assert world.ask("POST", f"/v1/stream/{name}", b'["before"]', **JSON).status == 204
        events = [read_until(reader, b"upToDate") for reader in readers]
        assert all(b'"before"' in event for event in events)
        (last_event,) = {
            re.findall(rb"^id: ?(\S+)", event, re.MULTILINE)[-1].decode() for event in events
        }
        began = time.monotonic()
        process_of(world, owner).kill()
        for reader in readers:
            drain(reader)  # ended, or reset with the core it was on
        assert time.monotonic() - began < HANG_SECONDS, "a reader hung after the owner's death"
    wait_until(lambda: appended(world, name, b'["after"]'), what="the core to serve again")
    text = wait_until(
        lambda: resumed(world, name, last_event), what="the events after the last one"
    )
    assert b'"after"' in text and b'"before"' not in text


def appended(world: World, name: str, body: bytes) -> bool:
    """Append. False while the other core is down: then nothing was applied."""
    with contextlib.suppress(Lost):
        answer = world.ask("POST", f"/v1/stream/{name}", body, **JSON)
        assert answer.status == 204 or answer.headers["stream-outcome"] == "refused", answer
        return answer.status == 204
    return False


def resumed(world: World, name: str, last_event: str) -> bytes:
    """Return the first events after `last_event`. Empty while the other core is down, which an
    event may also report."""
    with socket.create_connection(address(world.url), timeout=60) as connection:
        request = (
            f"GET /v1/stream/{name}?live=sse HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Last-Event-ID: {last_event}\r\n\r\n"
        )
        connection.sendall(request.encode())
        text = read_until(connection, b"upToDate")
    assert text[9:12] in (b"200", b"503"), text
    return text if text[9:12] == b"200" and b'"code":"UNAVAILABLE"' not in text else b""


@pytest.mark.parametrize("owner", long([1, 0]))
def test_long_polls_on_every_core_are_answered_and_do_not_hang_when_the_owner_dies(
    world: World, owner: int
) -> None:
    world.start(*FLAGS)
    name = owned_by(owner, "cores/poll")
    created = world.ask("PUT", f"/v1/stream/{name}", **JSON)
    with contextlib.ExitStack() as stack:
        polls = live_readers(
            world, f"{name}?offset={created.next_offset}&live=long-poll", CONNECTIONS, stack
        )
        wait_until(lambda: metric(world, WAITING) >= CONNECTIONS, what="long-polls to wait")
        appended = world.ask("POST", f"/v1/stream/{name}", b'["x"]', **JSON)
        for poll in polls:
            assert b'["x"]' in read_until(poll, b'["x"]')
        again = live_readers(
            world, f"{name}?offset={appended.next_offset}&live=long-poll", CONNECTIONS, stack
        )
        wait_until(lambda: metric(world, WAITING) >= 2 * CONNECTIONS, what="long-polls to wait")
        began = time.monotonic()
        process_of(world, owner).kill()
        answers = [read_until(poll, b"\r\n\r\n") for poll in again]
        took = time.monotonic() - began
    assert took < HANG_SECONDS, f"a long-poll hung for {took:.1f} s after the owner's death"
    assert {answer[9:12] for answer in answers} <= {b"", b"204", b"503"}, answers


def test_forks_across_cores_read_as_one_and_outlive_their_source(world: World) -> None:
    world.start(*FLAGS)
    source, fork, grandchild = (
        owned_by(0, "forks/source"),
        owned_by(1, "forks/fork"),
        owned_by(0, "forks/grandchild"),
    )
    assert world.ask("PUT", f"/v1/stream/{source}", b"[1, 2, 3]", **JSON).status == 201
    at = world.ask("POST", f"/v1/stream/{source}", b"[4]", **JSON).next_offset
    assert world.ask("POST", f"/v1/stream/{source}", b"[5]", **JSON).status == 204
    made = world.ask(
        "PUT",
        f"/v1/stream/{fork}",
        Stream_Forked_From=f"/v1/stream/{source}",
        Stream_Fork_Offset=at,
    )
    assert made.status == 201, made
    assert world.ask("POST", f"/v1/stream/{fork}", b'["a"]', **JSON).status == 204
    assert world.flush().status == 200
    assert (
        world.ask("PUT", f"/v1/stream/{grandchild}", Stream_Forked_From=f"/v1/stream/{fork}").status
        == 201
    )
    assert world.ask("POST", f"/v1/stream/{grandchild}", b'["b"]', **JSON).status == 204
    assert world.ask("DELETE", f"/v1/stream/{source}").status == 204
    for _ in range(2):
        assert world.records(fork) == [1, 2, 3, 4, "a"]
        assert world.records(grandchild) == [1, 2, 3, 4, "a", "b"]
        assert world.ask("HEAD", f"/v1/stream/{source}").status == 410
        assert world.ask("PUT", f"/v1/stream/{source}", **JSON).status == 409
        world.kill_all()
        world.start(*FLAGS)
    for name in (fork, grandchild):
        assert world.ask("DELETE", f"/v1/stream/{name}").status == 204
    wait_until(
        lambda: world.ask("PUT", f"/v1/stream/{source}", **JSON).status == 201,
        what="the source's name to be free",
    )


class Forker(Worker):
    """Forks a stream again and again; remembers which forks were acknowledged."""

    def __init__(self, world: World, source: str) -> None:
        super().__init__(world)
        self.source = source
        self.tried: list[str] = []
        self.made: list[str] = []

    def step(self) -> None:
        name = f"forks/crash-{len(self.tried)}"
        self.tried.append(name)
        answer = self.ask(
            "PUT", f"/v1/stream/{name}", b'["own"]', Stream_Forked_From=f"/v1/stream/{self.source}"
        )
        if answer is not None:
            assert answer.status == 201, answer
            self.made.append(name)
            self.promised += 1


@pytest.mark.long
def test_forks_that_were_cut_by_a_crash_are_there_or_not_and_release_their_source(
    world: World,
) -> None:
    world.start(*FLAGS)
    source = owned_by(0, "forks/torn")
    assert world.ask("PUT", f"/v1/stream/{source}", b"[1, 2]", **JSON).status == 201
    forkers = [Forker(world, source)]
    with at_work(list(forkers)) as progress:
        progress(20)
        process_of(world, 1).kill()
        progress(10)
        process_of(world, 0).kill()
        progress(10)
        world.kill_all()
        world.start(*FLAGS)
        progress(10)
    forker = forkers[0]
    with contextlib.closing(world.connect()) as client:
        for name in forker.tried:
            answer = client.ask("GET", f"/v1/stream/{name}?offset=-1")
            assert answer.status == 200 if name in forker.made else answer.status in (200, 404), (
                name,
                answer,
            )
            if answer.status == 200:
                assert json.loads(answer.body) == [1, 2, "own"]
                assert client.ask("DELETE", f"/v1/stream/{name}").status == 204
        assert client.ask("DELETE", f"/v1/stream/{source}").status == 204
        wait_until(
            lambda: client.ask("PUT", f"/v1/stream/{source}", **JSON).status == 201,
            what="pins of lost attempts to go",
            seconds=90,
            pause=0.5,
        )


def test_wrong_cores_forward_everything(world: World) -> None:
    """Every kind of request, on a dozen connections each: whatever core takes it, the answer is the
    same."""
    world.start(*FLAGS)
    for owner in range(CORES):
        name = owned_by(owner, "cores/all")
        for turn in range(CONNECTIONS):
            seen = [
                world.ask("PUT", f"/v1/stream/{name}", **JSON),
                world.ask("POST", f"/v1/stream/{name}", json.dumps([turn]).encode(), **JSON),
                world.ask("HEAD", f"/v1/stream/{name}"),
                world.ask("GET", f"/v1/stream/{name}?offset=-1"),
            ]
            assert [answer.status for answer in seen] == [200 if turn else 201, 204, 200, 200]
            assert len({answer.next_offset for answer in seen[1:]}) == 1
            assert json.loads(seen[3].body) == list(range(turn + 1))
            assert [entry["name"] for entry in listed(world)] == sorted(
                owned_by(core, "cores/all") for core in range(owner + 1)
            )


def listed(world: World) -> list[dict[str, str]]:
    answer = world.ask("GET", "/v1/streams?prefix=cores/")
    assert answer.status == 200, answer
    return list(json.loads(answer.body)["streams"])


def test_appends_to_one_stream_from_many_connections_are_in_one_order(world: World) -> None:
    """Readers on both cores see the same order, also while appends are forwarded."""
    world.start(*FLAGS)
    name = owned_by(1, "cores/order")
    assert world.ask("PUT", f"/v1/stream/{name}", **JSON).status == 201
    acknowledged: list[Answer] = []

    def write(writer: int) -> None:
        with contextlib.closing(world.connect()) as client:
            bodies = [json.dumps([[writer, number]]).encode() for number in range(50)]
            acknowledged.extend(
                [client.ask("POST", f"/v1/stream/{name}", body, **JSON) for body in bodies]
            )

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert len(acknowledged) == 400 and {answer.status for answer in acknowledged} == {204}
    reads = [world.records(name) for _ in range(CONNECTIONS)]
    assert all(read == reads[0] for read in reads)
    assert sorted(map(tuple, reads[0])) == [
        (writer, number) for writer in range(8) for number in range(50)
    ]
    for writer in range(8):
        assert [number for one, number in reads[0] if one == writer] == list(range(50))


def test_what_a_node_says_that_it_serves_it_serves_however_late_one_of_its_cores_was(
    world: World,
) -> None:
    """The first core has then looked for the other in vain for long: a request must not find it
    still missing."""
    world.kind = ColdNode  # forks are there at once
    holder = threading.Thread(target=hold_up_a_core, args=(world,))
    holder.start()
    world.start(*FLAGS)
    answers = [
        world.ask("PUT", f"/v1/stream/cores/early-{number}", **JSON)
        for number in range(4 * CONNECTIONS)
    ]
    holder.join(60)
    assert {answer.status for answer in answers} == {201}, answers


def hold_up_a_core(world: World) -> None:
    """Pause one of two cores that are just starting."""

    def second() -> psutil.Process | None:
        found = []
        for process in world.processes():
            with contextlib.suppress(psutil.Error):
                if "polynya.node.core_process" in process.cmdline():
                    found.append(process)
        return found[1] if len(found) == CORES else None

    late = wait_until(second, what="the cores to start", pause=0.001)
    late.suspend()
    threading.Event().wait(2.5)
    late.resume()
