"""`append_many` of the Python client: its request, its repeats and its outcomes."""

from __future__ import annotations

import json

import pytest
from operations import LOST, ok, play

from polynya.client import (
    AnswerDamaged,
    AppendOutcome,
    ConditionFailed,
    OutcomeUnknown,
    Retry,
    StreamAppend,
)
from polynya.client.operations.many_appends import append_all, append_many

RETRY = Retry(seconds=10.0, pause_seconds=1.0, pause_seconds_max=4.0)
TAIL = "0000000000000001_0000000000000002"


def test_each_append_is_a_line() -> None:
    appends = [
        StreamAppend(stream="a b", records=[{"t": 1}, 2], producer=("gw", 0, 3)),
        StreamAppend(stream="b", data=b"\0\1", content_type="image/png", if_match=TAIL),
        StreamAppend(stream="c", close=True),
    ]
    answer = ok(200, json.dumps([{"status": 200, "next_offset": TAIL}] * 3).encode())
    played = play(append_many(appends, RETRY), [answer])
    assert played.targets == ["/v1/append"]
    assert [json.loads(line) for line in played.asked[0].body.split(b"\n")] == [
        {"stream": "a b", "records": [{"t": 1}, 2], "producer": ["gw", 0, 3]},
        {"stream": "b", "base64": "AAE=", "content_type": "image/png", "if_match": TAIL},
        {"stream": "c", "close": True},
    ]
    assert played.result == [AppendOutcome(200, TAIL)] * 3
    assert all(each.ok for each in played.result)


def test_it_is_repeated_only_with_producers() -> None:
    plain = StreamAppend(stream="a", records=[1])
    keyed = StreamAppend(stream="a", records=[1], producer=("p", 0, 0))
    refused = b'[{"status":503,"code":"UNAVAILABLE","message":"m","retry_after":1,"unknown":true}]'
    played = play(append_many([keyed], RETRY), [LOST, ok(200, refused)])
    assert played.result == [
        AppendOutcome(503, code="UNAVAILABLE", message="m", retry_after=1, unknown=True)
    ]
    assert not played.result[0].ok and len(played.asked) == 2
    lost = play(append_many([plain], RETRY), [LOST])
    assert isinstance(lost.error, OutcomeUnknown) and len(lost.asked) == 1


def test_bad_arguments_and_answers() -> None:
    one = StreamAppend(stream="a", records=[1])
    for wrong in ([], [one] * 1001):
        with pytest.raises(ValueError, match="1 to 1000"):
            next(append_many(wrong, RETRY))
    with pytest.raises(ValueError, match="both records and data"):
        next(append_many([StreamAppend(stream="a", records=[1], data=b"x")], RETRY))
    short = play(append_many([one, one], RETRY), [ok(200, b'[{"status":204}]')] * 99)
    assert isinstance(short.error, AnswerDamaged)


def test_append_all_returns_outcomes_or_the_error_of_the_refused_one() -> None:
    appends = [
        StreamAppend(stream="{o}/a", records=[1], producer=("p", 0, 0)),
        StreamAppend(stream="{o}/b", if_match=TAIL),
    ]
    applied = json.dumps([{"next_offset": TAIL, "incarnation": "7"}] * 2).encode()
    played = play(append_all(appends, RETRY), [LOST, ok(200, applied)])
    assert played.targets == ["/v1/append-all"] * 2, "one producer makes all repeatable"
    assert played.result == [AppendOutcome(200, TAIL, "7")] * 2
    error = {"code": "NONE_APPENDED", "reason": "PRECONDITION", "message": "m", "next_offset": TAIL}
    refused = play(append_all(appends, RETRY), [ok(412, json.dumps({"error": error}).encode())])
    assert isinstance(refused.error, ConditionFailed)
    assert (refused.error.offset, refused.error.code) == (TAIL, "NONE_APPENDED")
    lost = play(append_all(appends[1:], RETRY), [LOST])
    assert isinstance(lost.error, OutcomeUnknown) and len(lost.asked) == 1
    with pytest.raises(ValueError, match="1 to 64"):
        next(append_all([], RETRY))
