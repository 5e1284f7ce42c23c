"""Data of older releases (`golden_folders.py`) opens in this one: it is complete, responses are
unchanged, and work continues.

Data of the unreleased format 1 is refused with the remedy, and stays unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_world import JSON, Answer, World
from golden_folders import FLAGS, SUBSCRIPTIONS, Golden, Said, kept_headers, unpack
from long_tests import long
from product import polynya

pytestmark = pytest.mark.process
GOLDEN = Path(__file__).parent / "golden"
OF_THE_MOMENT = {"message", "request_id", "behind_seconds", "root", "jwks_url"}  # in bodies


@pytest.mark.parametrize("name", ["fa8b175", *long(["a3f3ec6"])])
def test_a_folder_of_format_1_is_refused_and_left_as_it_is(name: str, tmp_path: Path) -> None:
    unpack(GOLDEN / f"{name}.tar.xz", tmp_path)
    before = _files(tmp_path / "data")
    world = World(tmp_path / "data")
    code, said = world.refused(*FLAGS)
    assert code == 78, said
    assert "has format 1, and this release reads format 2" in said and "'polynya import'" in said
    after = _files(tmp_path / "data")
    assert {path: after.get(path) for path in before} == before
    assert not [path for path in after if path not in before and path.name != "node.lock"]


@pytest.mark.parametrize("name", ["60a99e2", *long(["a3f3ec6"])])
def test_a_backup_of_format_1_is_refused(name: str, tmp_path: Path) -> None:
    unpack(GOLDEN / f"{name}.tar.xz", tmp_path)
    for words in (
        ("verify", str(tmp_path / "backup")),
        ("restore", str(tmp_path / "backup"), "--data", str(tmp_path / "new")),
    ):
        done = polynya(*words)
        assert done.code not in (0, 70), done
        assert (
            "the backup has format 1, and this release reads format 2: restore it with the "
            "release that wrote it" in done.err
        )
    assert not (tmp_path / "new" / "node.json").exists()


def _files(folder: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture(params=["format-2"])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    return unpack(GOLDEN / f"{request.param}.tar.xz", tmp_path)


@pytest.fixture
def node(golden: Golden, tmp_path: Path) -> Iterator[World]:
    """Yield a node of this release on the folder of the older one."""
    world = World(tmp_path / "data")
    try:
        world.start(*FLAGS)
        yield world
    finally:
        world.close()


def asked(
    node: World, golden: Golden, method: str, target: str, body: bytes | None = None, **headers: str
) -> Answer:
    return node.ask(
        method, target, body, **({"Authorization": f"Bearer {golden.root}", **JSON} | headers)
    )


def differs(said: Said, answer: Answer) -> str:
    """List differences from the earlier response: no field may be missing or changed. Additional
    ones are allowed."""
    if answer.status != said.status:
        return f"{said.method} {said.target}: {answer.status} instead of {said.status}"
    headers = kept_headers(answer)
    missing = {name: value for name, value in said.headers.items() if headers.get(name) != value}
    if missing:
        return f"{said.method} {said.target}: {missing}, now {headers}"
    if answer.body == said.data() or (
        said.data()[:1] == b"{" and _has(json.loads(answer.body), json.loads(said.data()))
    ):
        return ""
    return f"{said.method} {said.target}: {said.data()!r}, now {answer.body!r}"


def _has(now: Any, then: Any) -> bool:
    """Compare two JSON values, where objects may now have more fields."""
    if isinstance(then, dict) and isinstance(now, dict):
        return all(
            name in OF_THE_MOMENT or (name in now and _has(now[name], value))
            for name, value in then.items()
        )
    if isinstance(then, list) and isinstance(now, list):
        return len(now) == len(then) and all(map(_has, now, then))
    return bool(now == then)


def test_a_folder_of_an_older_release_opens_and_goes_on(golden: Golden, node: World) -> None:
    found = [
        differs(said, asked(node, golden, said.method, said.target)) for said in golden.answers
    ]
    assert len(found) > 80 and not any(found), "\n".join(filter(None, found))
    assert node.ask("GET", "/v1/streams", Authorization=f"Bearer {golden.revoked}").status == 401
    goes_on(golden, node)


def goes_on(golden: Golden, node: World) -> None:
    """Check state that shows only when it is used."""

    def post(name: str, body: bytes, **headers: str) -> int:
        return asked(node, golden, "POST", f"/v1/stream/gold/{name}", body, **headers).status

    def produced(name: str, epoch: int, sequence: int, body: bytes) -> int:
        return post(
            name, body, Producer_Id="p", Producer_Epoch=str(epoch), Producer_Seq=str(sequence)
        )

    assert produced("produced", 3, 3, b"[3]") == 204, "a repeat is known as one"
    assert produced("produced", 2, 4, b"[4]") == 403, "an older epoch stays fenced off"
    assert produced("produced", 3, 5, b"[5]") == 409, "a gap"
    assert produced("produced", 3, 4, b"[4]") == 200
    assert produced("idle/2", 0, 0, b"[2]") == 204, "one that was evicted knows its producers"
    assert produced("idle/3", 0, 1, b"[33]") == 200
    assert post("ordered", b'["b"]', Stream_Seq="b") == 409
    assert post("ordered", b'["c"]', Stream_Seq="c") == 204
    assert post("closed", b"[4]") == 409
    assert post("again", b'["stale"]', Stream_Incarnation="1") == 412
    assert post("again", b'["more"]', Stream_Incarnation=golden.incarnation) == 204
    assert json.loads(asked(node, golden, "GET", "/v1/stream/gold/idle/3").body) == [3, 33]
    assert asked(node, golden, "DELETE", "/v1/stream/gold/fork").status == 204
    assert json.loads(asked(node, golden, "GET", "/v1/stream/gold/fork/of/fork").body) == [
        0,
        1,
        "own",
    ]
    assert asked(node, golden, "PUT", "/v1/stream/gold/closed").status == 409, "another's settings"
    assert asked(node, golden, "PUT", "/v1/stream/gold/jobs/2", b'["job 2"]').status == 201
    assert claimed(node, golden, "workers")[0] == 2
    assert claimed(node, golden, "waiting")[1] == ["gold/jobs/1", "gold/jobs/2"]


def claimed(node: World, golden: Golden, subscription: str) -> tuple[int, list[str]]:
    """Claim work as a current worker and return the generation and the streams with pending
    records."""
    answer = asked(
        node, golden, "POST", f"{SUBSCRIPTIONS}/{subscription}/claim", b'{"worker": "later"}'
    )
    assert answer.status == 200, answer
    wake = json.loads(answer.body)
    return wake["generation"], [each["path"] for each in wake["streams"] if each["has_pending"]]


@pytest.fixture(params=["format-2"])
def restored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Golden, World]]:
    """Run a node of this release with the content of an older release's backup."""
    golden = unpack(GOLDEN / f"{request.param}.tar.xz", tmp_path)
    looked = polynya("verify", str(tmp_path / "backup"))
    assert looked.code == 0, looked
    made = polynya(
        "restore", str(tmp_path / "backup"), "--data", str(tmp_path / "new"), "--cores", "1"
    )
    assert made.code == 0, made
    (tmp_path / "new" / "access").mkdir(exist_ok=True)
    (tmp_path / "new" / "access" / "tokens.json").write_bytes(
        (tmp_path / "data" / "access" / "tokens.json").read_bytes()
    )
    world = World(tmp_path / "new")
    try:
        world.start(*FLAGS)
        yield golden, world
    finally:
        world.close()


def test_a_backup_of_an_older_release_is_restored(restored: tuple[Golden, World]) -> None:
    golden, node = restored
    streams = [
        said
        for said in golden.answers
        if said.method == "GET" and "/gold/" in said.target and said.status == 200
    ]
    whole = [
        said
        for said in streams
        if "?" not in said.target and not said.target.endswith("/retention")
    ]
    found = {said.target: asked(node, golden, "GET", said.target).body for said in whole}
    assert found == {said.target: said.data() for said in whole}
    assert len(found) > 20
    assert asked(node, golden, "POST", "/v1/stream/gold/json", b"[7]").status == 204
