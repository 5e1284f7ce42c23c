"""The attributes of a stream in the Python client: requests, retries and errors."""

from __future__ import annotations

import json

from operations import LOST, NOBODY, no, ok, play

from polynya.client import AnswerDamaged, Attributes, ConditionFailed, OutcomeUnknown, Retry
from polynya.client.operations import attributes
from polynya.client.streams import Subject

RETRY = Retry(seconds=10.0, pause_seconds=1.0, pause_seconds_max=4.0)
STREAM = Subject("a b", None, RETRY)
TAG = '"1.1-7"'


def test_they_are_read() -> None:
    found = play(attributes.attributes(STREAM), [NOBODY, ok(200, b'{"a":1}', etag=TAG)])
    assert found.result == Attributes({"a": 1}, TAG)
    assert found.targets == ["/v1/stream/a%20b/attrs"] * 2
    damaged = play(attributes.attributes(STREAM), [ok(200, b"[]", etag=TAG)] * 99)
    assert isinstance(damaged.error, AnswerDamaged)


def test_a_change_is_a_merge_or_a_replacement() -> None:
    for replace, method, body in (
        (False, "PATCH", {"a": 1, "b": None}),
        (True, "PUT", {"a": 1}),
    ):
        operation = attributes.set_attributes(STREAM, {"a": 1, "b": None}, replace=replace)
        played = play(operation, [LOST, ok(204, etag=TAG)])
        assert played.result == TAG
        assert [each.method for each in played.asked] == [method] * 2, "it is safe to repeat"
        assert json.loads(played.asked[0].body) == body


def test_a_change_on_a_condition_is_not_repeated_when_it_may_have_been_applied() -> None:
    lost = play(attributes.set_attributes(STREAM, {"a": 1}, if_match=TAG), [LOST])
    assert isinstance(lost.error, OutcomeUnknown) and len(lost.asked) == 1
    assert lost.asked[0].headers["if-match"] == TAG
    stale = play(
        attributes.set_attributes(STREAM, {"a": 1}, if_match=TAG), [no(412, "PRECONDITION")]
    )
    assert isinstance(stale.error, ConditionFailed)
