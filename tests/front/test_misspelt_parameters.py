"""A misspelt query parameter is refused with the nearest name, and others are ignored."""

from __future__ import annotations

import json

import pytest
from front_world import World, play

from polynya.front.http.protocol.router import RouteKind
from polynya.front.http.protocol.settings import HttpSettings
from polynya.front.http.routes.parameters import resembled

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
    assert resembled(name, RouteKind.STREAM) == meant


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
