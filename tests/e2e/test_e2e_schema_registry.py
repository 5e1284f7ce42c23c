"""The schema registry of three real nodes while the leader of its topic is killed, and killed again:
one id for a schema and one schema for an id, whichever node is asked."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from polling import wait_until
from worlds.dev_cluster import DevCluster, dev_cluster
from worlds.real_cluster import ask_once

from polynya.base.names import SCHEMAS_TOPIC, group_of, partition_name

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
NODES, GROUPS = 3, 6
ROUNDS = 4  # before each event, and after the last
AGAIN = {0, 502, 503, 504}  # no response, or one of a node that cannot know yet


def avro(name: str, fields: int, kind: str = "int") -> str:
    default: Any = "" if kind == "string" else 0
    more = [{"name": f"f{at}", "type": kind, "default": default} for at in range(fields)]
    return json.dumps({"type": "record", "name": name, "fields": more})


def json_schema(name: str, fields: int, kind: str = "integer") -> str:
    properties = {f"f{at}": {"type": kind} for at in range(fields)}
    closed = {"type": "object", "title": name, "additionalProperties": False}
    return json.dumps({**closed, "properties": properties})


def protobuf(name: str, fields: int, kind: str = "int32") -> str:
    lines = "".join(f"  {kind} f{at} = {at + 1};\n" for at in range(fields))
    return f'syntax = "proto3";\n\nmessage {name} {{\n{lines}}}\n'


MADE: dict[str, Callable[..., str]] = {"AVRO": avro, "JSON": json_schema, "PROTOBUF": protobuf}
OTHER_KIND = {"AVRO": "string", "JSON": "boolean", "PROTOBUF": "string"}


def at(url: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Return the status and the JSON of a response; 0: none came."""
    data = None if body is None else json.dumps(body).encode()
    try:
        status, answer = ask_once(method, f"{url}/registry{path}", data)
    except (OSError, HTTPException):
        return 0, None
    return status, json.loads(answer)


def asked(url: str, method: str, path: str, body: Any = None) -> Any:
    """Return the JSON of a successful response of one node, which may still be starting."""
    found: list[tuple[int, Any]] = []

    def answered() -> bool:
        found[:] = [at(url, method, path, body)]
        assert found[0][0] in {200, *AGAIN}, (path, found)
        return found[0][0] == 200

    wait_until(answered, what=f"an answer of {url} to {path}")
    return found[0][1]


class Registrars:
    """One for each node. In a round all register the same schema at once, and each one of its own;
    a registrar whose node fails repeats at the next node, as Confluent's clients do."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.rounds = 0
        self.subjects: dict[str, dict[str, str]] = defaultdict(dict)  # texts, and their types
        self.ids: dict[tuple[str, str], set[int]] = defaultdict(set)  # by type and text
        self.refused: list[object] = []
        self._last = threading.Event()
        self._together = threading.Barrier(len(urls), self._count)
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, args=(number,)) for number in range(len(urls))
        ]
        for thread in self._threads:
            thread.start()

    def wait_for(self, rounds: int) -> None:
        wanted = self.rounds + rounds
        wait_until(lambda: self.rounds >= wanted or self.refused, what="rounds of registrations")
        assert not self.refused

    def finish(self) -> None:
        self._last.set()
        for thread in self._threads:
            thread.join(100)
        assert not self.refused and not any(thread.is_alive() for thread in self._threads)

    def _count(self) -> None:
        if self._last.is_set():
            raise threading.BrokenBarrierError
        self.rounds += 1

    def _work(self, number: int) -> None:
        try:
            while True:
                self._together.wait(100)
                type_, fields = [*MADE][self.rounds % len(MADE)], 1 + self.rounds // len(MADE)
                same = MADE[type_]("Same", fields)
                for subject in (f"same-{type_}", f"own-{number}-{type_}"):
                    self._register(number, subject, type_, same)
                self._register(number, f"w{number}", "AVRO", avro(f"W{number}", self.rounds))
        except threading.BrokenBarrierError:
            pass
        except AssertionError as failed:
            self.refused.append(failed)

    def _register(self, number: int, subject: str, type_: str, text: str) -> None:
        body, tries = {"schema": text, "schemaType": type_}, iter(range(1000))

        def registered() -> bool:
            url = self.urls[(number + next(tries)) % len(self.urls)]
            status, answer = at(url, "POST", f"/subjects/{subject}/versions", body)
            assert status == 200 or status in AGAIN, (subject, text, status, answer)
            if status == 200:
                with self._lock:
                    self.subjects[subject][text] = type_
                    self.ids[type_, text].add(answer["id"])
            return status == 200

        wait_until(registered, what=f"a registration under {subject}")


def leader(cluster: DevCluster, by: int) -> int:
    """Return the node that leads the topic of the registry, as node `by` knows it."""
    own = group_of(partition_name(SCHEMAS_TOPIC, 0), GROUPS)

    def known() -> int:
        return int({each["group"]: each["leader"] for each in cluster.view(by)["groups"]}[own])

    return wait_until(known, what="a leader of the registry's topic")


def check(url: str, written: Registrars) -> dict[int, str]:
    """Check what a node knows, and return the text of each id."""
    texts: dict[int, str] = {}
    for (type_, text), ids in written.ids.items():
        assert len(ids) == 1, f"one schema, two ids: {ids} {text}"
        (id_,) = ids
        answer = asked(url, "GET", f"/schemas/ids/{id_}")
        assert answer.get("schemaType", "AVRO") == type_
        texts[id_] = answer["schema"]
        if type_ != "PROTOBUF":  # kept as text; Protobuf is spelled by the registry
            assert json.loads(answer["schema"]) == json.loads(text)
    assert sorted(texts) == [*range(1, len(written.ids) + 1)], "one id each, and none in vain"
    assert sorted(asked(url, "GET", "/subjects")) == sorted(written.subjects)
    for subject, sent in written.subjects.items():
        versions = asked(url, "GET", f"/subjects/{subject}/versions")
        assert versions == [*range(1, len(sent) + 1)], subject
        newest = asked(url, "GET", f"/subjects/{subject}/versions/latest")
        assert newest["id"] in written.ids[[*sent.items()][-1][::-1]], subject
    for type_, made in MADE.items():
        body = {"schema": made("Same", 2, OTHER_KIND[type_]), "schemaType": type_}
        checks = f"/compatibility/subjects/same-{type_}/versions/latest"
        assert asked(url, "POST", checks, body) == {"is_compatible": False}, type_
        status, refused = at(url, "POST", f"/subjects/same-{type_}/versions", body)
        assert (status, refused["error_code"]) == (409, 409), (type_, refused)
    return texts


def test_kills_of_the_leader_leave_one_id_for_each_schema_on_every_node(tmp_path: Path) -> None:
    flags = ("--nodes", str(NODES), "--cores", "1", "--groups", str(GROUPS))
    with dev_cluster(tmp_path / "c", *flags) as cluster:
        written = Registrars(cluster.urls)
        try:
            written.wait_for(ROUNDS)
            asked_node = 1
            for _ in range(2):
                dead = leader(cluster, asked_node)
                cluster.kill(dead)
                written.wait_for(ROUNDS)
                cluster.start(dead)
                cluster.wait_until_well(dead)
                written.wait_for(ROUNDS)
                asked_node = dead
        finally:
            written.finish()
        found = [check(url, written) for url in cluster.urls]
        assert found[0] == found[1] == found[2]
        assert cluster.stop() == 0
        assert "request failed" not in cluster.logs()
