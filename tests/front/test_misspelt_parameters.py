"""A misspelt query parameter is refused with the nearest name at every route of every HTTP port,
and others are ignored."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from front_world import World, play

import polynya
from polynya.admin.http_listeners import HttpListeners
from polynya.admin.routes import Backends
from polynya.config import core_start
from polynya.front.http.api.iceberg_catalog import MOUNT as CATALOG
from polynya.front.http.api.kafka.clients import CLIENTS
from polynya.front.http.api.kafka.groups import GROUPS
from polynya.front.http.api.kafka.transactions import TRANSACTIONS
from polynya.front.http.api.subscriptions import PREFIXES
from polynya.front.http.protocol.extension import Handler, Request, Response
from polynya.front.http.protocol.settings import HttpSettings
from polynya.front.http.routes.parameters import BY_PATH, STREAM, resembled

MISSPELT = {
    "ofset": "offset",
    "offsets": "offset",
    "Offset": "offset",
    "live2": "live",
    "line": "live",
    "max_byte": "max_bytes",
    "max-bytes": "max_bytes",
    "maxrecords": "max_records",
    "tail_record": "tail_records",
    "records": "record",
    "timeout": "",  # three letters are missing
    "timeoutms": "timeout_ms",
    "consistancy": "consistency",
    "form_time": "from_time",
    "liv3s": "",  # two letters of a short name
    "o": "",
    "_offset": "",
    "utm_ofset": "",
    "_": "",
    "v": "",
    "trace": "",
    "offset" * 20: "",
}


@pytest.mark.parametrize(("name", "meant"), MISSPELT.items())
def test_names_are_close_or_not(name: str, meant: str) -> None:
    assert resembled(name, STREAM) == meant


@pytest.mark.parametrize("strict", [True, False])
def test_each_method_refuses_it_unless_the_setting_is_off(strict: bool) -> None:
    async def story(world: World) -> None:
        await world.put("s")
        for name, meant in MISSPELT.items():
            for method in ("PUT", "POST", "GET", "HEAD"):
                headers = {} if method == "GET" else {"content_type": "application/json"}
                answer = await world.ask(
                    method, f"/v1/stream/s?{name}=1", b"1" if method == "POST" else None, **headers
                )
                if not (strict and meant):
                    assert answer.status < 300, (method, name)
                    continue
                assert answer.status == 400, (method, name)
                if method != "HEAD":
                    assert answer.error == "UNKNOWN_PARAMETER"
                    assert f"'{meant}'" in json.loads(answer.body)["error"]["message"]
        listed = await world.ask("GET", "/v1/streams?prefx=s")
        assert listed.status == (400 if strict else 200)

    play(story, settings=HttpSettings(strict_parameters=strict))


def test_what_was_refused_appended_nothing() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        assert (await world.ask("DELETE", "/v1/stream/s?live2=1")).status == 400
        refused = await world.ask(
            "POST", "/v1/stream/s?line=1", b"1", content_type="application/json"
        )
        assert refused.error == "UNKNOWN_PARAMETER"
        assert (await world.get("s")).body == b"[]"

    play(story)


# --- handlers and mounts ------------------------------------------------------------------------------


def _declared(*, guarded: bool) -> dict[str, tuple[list[str], list[str]]]:
    """The exact paths and the prefixes of each HTTP port of a node."""
    start: Any = MagicMock()
    start.config.listen, start.config.hosts, start.config.origins = "127.0.0.1:0", (), ()
    start.listeners = dict.fromkeys((core_start.ADMIN, core_start.REMOTE_ADMIN), ("127.0.0.1", 1))
    mounts = dict.fromkeys((*PREFIXES, CLIENTS, GROUPS, TRANSACTIONS, CATALOG), echo)
    behind = Backends(*[MagicMock()] * 9)._replace(mounts=mounts, hosts=tuple)
    keeper: Any = MagicMock()
    keeper.access = MagicMock() if guarded else None
    keeper.known = None
    made = HttpListeners(start, MagicMock(), behind, MagicMock(), keeper)
    shares: Any = SimpleNamespace(base=1, admin=1)
    return {
        listener.name: listener.front.context.router.paths()  # type: ignore[attr-defined]
        for listener in made.listeners(shares)
    }


async def echo(request: Request) -> Response:
    return Response(200, json.dumps(request.query).encode())


@pytest.mark.parametrize("guarded", [False, True])
def test_each_route_of_each_port_refuses_what_is_misspelt(guarded: bool) -> None:
    for exact, prefixes in _declared(guarded=guarded).values():
        handlers: dict[str, Handler] = dict.fromkeys(exact, echo)
        mounts: dict[str, Handler] = dict.fromkeys(prefixes, echo)
        assert len(handlers) > 5
        assert len(mounts) > 2

        async def story(world: World, paths: tuple[str, ...] = (*exact, *prefixes)) -> None:
            below = [path for path in BY_PATH if path.startswith(paths)]
            for path in {*paths, *below}:
                own = next((BY_PATH[each] for each in BY_PATH if path.startswith(each)), [])
                for name in {*own, "access_token"}:
                    refused = await world.ask("GET", f"{path}?{name[0]}x{name[1:]}=1")
                    assert refused.status == 400, (path, name)
                    error = json.loads(refused.body)["error"]
                    assert "UNKNOWN_PARAMETER" in (error["code"], error.get("type"))
                    assert f"'{name}'" in error["message"]
                    taken = await world.ask("GET", f"{path}?{name}=1&foreign=2&_{name}=3")
                    assert taken.status == 200, (path, name)
                    assert json.loads(taken.body) == {name: "1"}  # what is undeclared is not seen

        play(story, handlers=handlers, mounts=mounts)


@pytest.mark.parametrize("guarded", [False, True])
def test_the_state_for_diagnosis_is_at_the_admin_ports_alone(guarded: bool) -> None:
    with_state = {
        name for name, (exact, _) in _declared(guarded=guarded).items() if "/debug/state" in exact
    }
    assert with_state == {core_start.ADMIN, core_start.REMOTE_ADMIN}


def test_each_parameter_that_a_handler_reads_is_declared() -> None:
    """A handler that reads another name would always find it absent."""
    declared = frozenset[str]().union(*BY_PATH.values())
    read = {
        name
        for path in Path(polynya.__path__[0]).rglob("*.py")
        for name in re.findall(
            r"""(?:request\.query\.get\(|request\.query\[|_number\(request, )"(\w+)"|"(\w+)" in request\.query""",
            path.read_text(),
        )
        for name in name
        if name
    }
    assert len(read) > 8
    assert read <= declared


def test_an_encoded_path_takes_the_parameters_of_its_route() -> None:
    async def story(world: World) -> None:
        answer = await world.ask("GET", "/v1/admin/flus%68?prefix=a")
        assert json.loads(answer.body) == {"prefix": "a"}

    play(story, mounts={"/v1/admin/": echo})


@pytest.mark.parametrize("path", ["/things", "/v1/stream/s/retention"])
def test_buckets_and_retention_refuse_what_is_misspelt(path: str) -> None:
    async def story(world: World) -> None:
        await world.put("s")
        for name, status in (("consistancy", 400), ("foreign", 200)):
            method = "PUT" if path == "/things" else "GET"
            answer = await world.ask(method, f"{path}?{name}=1")
            assert answer.status in (status, *([201] if status == 200 else []))

    play(story)
