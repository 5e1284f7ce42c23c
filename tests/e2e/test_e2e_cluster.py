"""Three nodes as real processes: any of them answers everything, one may die, and comes back with
its data."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest
from polling import wait_until
from product import Ran, polynya
from test_e2e_metrics import OF_A_CLUSTER
from worlds.dev_cluster import dev_cluster
from worlds.real_cluster import Tail, Writer, ask, ask_once, go_on, names_by_leader

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def said_by(run: Callable[[], Ran], text: str, times: int = 1) -> Ran:
    """Run a command until its output contains `text`, and return its result."""
    return wait_until(lambda: (ran := run()).out.count(text) == times and ran, what=text)


def headers_of(url: str) -> tuple[int, dict[str, str]]:
    with urlopen(url, timeout=30) as answer:
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}


def seconds_of(url: str) -> float:
    """Return the duration of one response in seconds."""
    began = time.monotonic()
    assert ask_once("GET", url)[0] == 200
    return time.monotonic() - began


def test_any_node_answers_everything_and_a_node_that_dies_or_stands_still_takes_nothing_with_it(
    tmp_path: Path,
) -> None:
    with dev_cluster(tmp_path / "c", "--cores", "2") as cluster:
        one, two, three = cluster.urls
        names = names_by_leader(cluster)
        for name in names.values():
            assert ask("PUT", f"{one}/v1/stream/{name}")[0] == 201
            assert ask("HEAD", f"{two}/v1/stream/{name}")[0] == 200
            assert ask("POST", f"{three}/v1/stream/{name}", b'"first"')[0] == 204
            assert {ask("GET", f"{url}/v1/stream/{name}?offset=-1") for url in cluster.urls} == {
                (200, b'["first"]')
            }
            assert ask("DELETE", f"{two}/v1/stream/{name}")[0] == 204
            assert {ask("HEAD", f"{url}/v1/stream/{name}")[0] for url in cluster.urls} == {404}
            assert ask("PUT", f"{three}/v1/stream/{name}")[0] == 201
        writers = [Writer(one, name) for name in names.values()]
        tails = [Tail((three, one)[number % 2], name) for number, name in enumerate(names.values())]
        for thread in (*writers, *tails):
            thread.start()
        wait_until(lambda: all(writer.acknowledged > 20 for writer in writers), what="appends")
        cluster.pause(2, True)
        go_on(writers, "appends while node 2 stands still")
        cluster.pause(2, False)
        cluster.wait_until_well(2)
        cluster.kill(3)
        go_on(writers, "appends without node 3")
        cluster.start(3)
        cluster.wait_until_well(3)
        counts = [writer.finish() for writer in writers]
        for writer, tail, count, name in zip(writers, tails, counts, names.values(), strict=True):
            wait_until(
                lambda tail=tail, count=count: len(tail.got) >= count, what="the tail to have all"
            )
            tail.stopping.set()
            assert tail.got == list(range(count))
            for url in cluster.urls:
                assert json.loads(ask("GET", f"{url}/v1/stream/{name}?offset=-1")[1]) == list(
                    range(count)
                )
            assert writer.longest < 30.0
        assert cluster.stop() == 0
    assert not [
        line
        for line in cluster.logs().splitlines()
        if "level=error" in line or "level=critical" in line
    ]


@pytest.mark.long
def test_a_node_that_lost_its_data_gets_it_back(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--cores", "1") as cluster:
        for number in range(20):
            assert (
                ask(
                    "PUT",
                    f"{cluster.urls[0]}/v1/stream/s/{number}",
                    json.dumps([number] * 50).encode(),
                )[0]
                == 201
            )
        cluster.kill(3)
        cluster.wipe(3)
        cluster.start(3)
        cluster.wait_until_well(3)
        for number in range(20):
            assert (
                json.loads(ask("GET", f"{cluster.urls[2]}/v1/stream/s/{number}?offset=-1")[1])
                == [number] * 50
            )
        cluster.kill(1)
        wait_until(
            lambda: ask("POST", f"{cluster.urls[2]}/v1/stream/s/7", b"8")[0] == 204,
            what="an append by what came back",
        )


def test_a_cluster_starts_again_from_its_folders_and_says_how_it_is(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--cores", "1") as cluster:
        assert (
            ask("PUT", f"{cluster.urls[0]}/v1/stream/s/7", json.dumps([7] * 50).encode())[0] == 201
        )
        assert cluster.stop() == 0
    with dev_cluster(tmp_path / "c", "--cores", "1") as cluster:
        for url in cluster.urls:
            assert json.loads(ask("GET", f"{url}/v1/stream/s/7?offset=-1")[1]) == [7] * 50
        cluster.wait_until_well(3)
        shown = said_by(
            lambda: polynya("cluster", "status", "--groups", server=cluster.urls[2]), " up ", 3
        )
        assert shown.code == 0
        assert (
            polynya("cluster", "health", "--watch", "--exit-when-healthy", server=cluster.urls[0])
            .out.strip()
            .endswith("healthy")
        )

        def lacking() -> set[str]:
            scraped = ask("GET", f"{cluster.urls[0]}/metrics")[1].decode()
            return {name for name in OF_A_CLUSTER if f"\n{name}" not in scraped}

        wait_until(lambda: not lacking(), what="the metrics of a cluster from all cores")
        cluster.kill(1)
        sick = said_by(
            lambda: polynya("cluster", "health", server=cluster.urls[1]), "node 1 does not answer"
        )
        assert sick.code == 1
    refused = polynya("cluster", "dev", "--nodes", "5", "--data", str(tmp_path / "c"))
    assert refused.code == 2 and "holds a cluster of 3 nodes" in refused.err


def test_without_a_majority_writes_are_refused_in_time_and_nothing_is_lost(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--cores", "1") as cluster:
        stream = f"{cluster.urls[0]}/v1/stream/lone"
        assert ask("PUT", stream, b"[1]")[0] == 201
        cluster.kill(2)
        cluster.kill(3)
        began = time.monotonic()
        status, body = ask_once("POST", stream, b"2")
        assert status in (500, 503, 504), body
        assert time.monotonic() - began < 15
        cluster.start(2)
        cluster.start(3)
        cluster.wait_until_well(1)
        got = json.loads(ask("GET", stream + "?offset=-1")[1])
        assert got in ([1], [1, 2])
        assert ask("POST", stream, b"3")[0] == 204


def test_a_node_that_is_alone_answers_what_it_has_when_that_is_enough(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--cores", "2") as cluster:
        one, two, _ = cluster.urls
        names = list(names_by_leader(cluster).values())
        for name in names:
            assert ask("PUT", f"{one}/v1/stream/{name}")[0] == 201
            assert ask("POST", f"{two}/v1/stream/{name}", b'"first"')[0] == 204
            local = f"{one}/v1/stream/{name}?consistency=local"
            wait_until(
                lambda local=local: ask_once("GET", local) == (200, b'["first"]'),
                what="this node to have it",
            )  # type: ignore[misc]
        cluster.pause(2, True)
        cluster.pause(3, True)
        try:
            for name in names:
                stream = f"{one}/v1/stream/{name}"
                assert ask_once("GET", f"{stream}?consistency=local") == (200, b'["first"]')
                assert ask_once("HEAD", f"{stream}?consistency=local")[0] == 200
                wait_until(
                    lambda stream=stream: seconds_of(f"{stream}?consistency=local") < 0.5,
                    what="an answer that asks nobody",
                )  # type: ignore[misc]
            results = [
                polynya(*verb, "--consistency", "local", server=one)
                for verb in (("read", names[0]), ("info", names[0]), ("ls",))
            ]
            assert (
                not any(ran.code for ran in results)
                and '"first"' in results[0].out
                and names[0] in results[2].out
            )
            for name in names:
                wait_until(
                    lambda name=name: ask_once("GET", f"{one}/v1/stream/{name}")[0] == 503,
                    what="no read to be vouched for",
                )  # type: ignore[misc]
                began = time.monotonic()
                assert ask_once("GET", f"{one}/v1/stream/{name}")[0] == 503
                assert time.monotonic() - began < 15
                assert (
                    "stream-up-to-date"
                    not in headers_of(f"{one}/v1/stream/{name}?consistency=local")[1]
                )
        finally:
            cluster.pause(2, False)
            cluster.pause(3, False)
        wait_until(
            lambda: all(ask("GET", f"{one}/v1/stream/{name}")[0] == 200 for name in names),
            what="the others to be back",
        )


@pytest.mark.long
def test_a_leader_that_stands_still_while_its_groups_sleep_is_missed_in_a_moment(
    tmp_path: Path,
) -> None:
    """Allow twice the promised two seconds, and the time of a write on a machine with other tests.
    Simulated time checks the exact promise."""
    with dev_cluster(tmp_path / "c", "--cores", "1") as cluster:
        one, _, three = cluster.urls
        names = names_by_leader(cluster)
        for name in names.values():
            assert ask("PUT", f"{one}/v1/stream/{name}")[0] == 201
        last: list[object] = [None, time.monotonic()]

        def quiet() -> bool:
            """Report whether no group has committed for long enough to sleep."""
            commits = [group["commit"] for group in cluster.view(1)["groups"]]
            if commits != last[0]:
                last[:] = [commits, time.monotonic()]
            return time.monotonic() - float(str(last[1])) > 5.0

        wait_until(quiet, what="nothing to happen for a while")
        writer, beside = Writer(three, names[2]), Writer(three, names[3])
        cluster.pause(2, True)
        try:
            writer.start()
            beside.start()
            go_on([writer, beside], "writes beside a node that stands still")
        finally:
            cluster.pause(2, False)
        writer.finish()
        beside.finish()
        assert writer.longest < 4.0 + 4 * beside.longest
