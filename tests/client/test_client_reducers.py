"""Reducers in the Python client: requests, retries and errors."""

from __future__ import annotations

from operations import LOST, no, ok, play

from polynya.client import AnswerDamaged, ReducerFault, ReducerInfo, Refused, Retry
from polynya.client.operations import reducers
from polynya.client.streams import Subject

RETRY = Retry(seconds=10.0, pause_seconds=1.0, pause_seconds_max=4.0)
STREAM = Subject("a b", None, RETRY)
INFO = b"""{"name":"carts","pattern":"carts/*","revision":3,"builtin":"latest","every_records":10000,
"every_bytes":8388608,"every_seconds":300,"memory":1,"fuel":1,"retain":true,"faults":[{"stream":"x",
"reason":"why","since":"a","retry_at":"b","tries":2}]}"""
CARTS = ReducerInfo(
    name="carts",
    pattern="carts/*",
    revision=3,
    builtin="latest",
    every_records=10_000,
    every_bytes=8 << 20,
    every_seconds=300,
    retain=True,
    faults=[ReducerFault(stream="x", reason="why", since="a", retry_at="b", tries=2)],
)


def test_a_state_is_read_whole_or_by_key() -> None:
    kind = {"content-type": "application/json"}
    played = play(reducers.state(STREAM), [LOST, ok(200, b'{"a":1}', **kind)])
    assert played.result == {"a": 1}
    assert played.targets == ["/v1/stream/a%20b/state"] * 2
    one = reducers.state(STREAM, key="k/1", reducer="carts")
    played = play(one, [ok(200, b'{"key":"k/1","record":2,"value":3}\n', **kind)])
    assert played.result == {"key": "k/1", "record": 2, "value": 3}
    assert played.targets == ["/v1/stream/a%20b/state?key=k%2F1&reducer=carts"]
    assert play(reducers.state(STREAM, key="k"), [no(404, "KEY_NOT_FOUND")]).result is None
    raw = play(reducers.state(STREAM), [ok(200, b"\1", **{"content-type": "text/plain"})])
    assert raw.result == b"\1"
    missing = play(reducers.state(STREAM), [no(404, "NO_REDUCER")])
    assert isinstance(missing.error, Refused) and missing.error.code == "NO_REDUCER"
    damaged = play(reducers.state(STREAM), [ok(200, b"{", **kind)] * 20)
    assert isinstance(damaged.error, AnswerDamaged)


def test_reducers_are_listed_set_and_removed() -> None:
    listed = play(reducers.listing(RETRY), [ok(200, b'{"reducers":[%b]}' % INFO)])
    assert listed.result == [CARTS]
    wanted = reducers.Wanted(pattern="carts/*", builtin="latest", every_seconds=60, retain=True)
    made = play(reducers.put("carts", wanted, RETRY), [LOST, ok(200, INFO)])
    assert made.result == CARTS
    assert [(each.method, each.target) for each in made.asked] == [
        ("PUT", "/v1/reducers/carts")
    ] * 2
    expected = b'{"pattern":"carts/*","builtin":"latest","every_seconds":60,"retain":true}'
    assert made.asked[0].body == expected
    assert play(reducers.remove("carts", RETRY), [ok(204)]).result is True
    assert play(reducers.remove("carts", RETRY), [no(404, "NO_REDUCER")]).result is False
