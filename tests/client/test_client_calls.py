"""One request to its end: which are retried, which are not, and the errors that users see."""

from __future__ import annotations

import inspect
from urllib.parse import unquote

import httpx
import pytest
from operations import LOST, NOBODY, no, ok, play, token

from polynya.client import (
    AnswerDamaged,
    AsyncStream,
    Client,
    ClientError,
    Facts,
    Outcome,
    OutcomeUnknown,
    ProducerConflict,
    Refused,
    Retry,
    Stream,
    StreamClosed,
    StreamExists,
    StreamGone,
    StreamNotFound,
    StreamReplaced,
    Trimmed,
    Trimming,
    Unavailable,
    streams,
    verbs,
)
from polynya.client.calls import Verdict, judge, stream_target
from polynya.client.errors import AccessDenied, refused
from polynya.client.messages import Broken, HttpResponse
from polynya.client.values import JSON_TYPE, encode

RETRY = Retry(seconds=10.0, pause_seconds=1.0, pause_seconds_max=4.0)
DONE = ok(204, stream_next_offset=token(1, 2))
FOREVER = 1000


def append(retry: Retry = RETRY):  # type: ignore[no-untyped-def]
    return verbs.append("orders", JSON_TYPE, b"[1]", retry)


def create():  # type: ignore[no-untyped-def]
    return verbs.create("orders", JSON_TYPE, {}, RETRY)


@pytest.mark.parametrize(
    ("what", "verdict"),
    [
        (ok(204), None),
        (ok(304), None),
        (NOBODY, Verdict.NOTHING),
        (LOST, Verdict.PERHAPS),
        (no(503, "UNAVAILABLE"), Verdict.NOTHING),
        (no(503, "OUTCOME_UNKNOWN", "unknown"), Verdict.PERHAPS),
        (no(503, outcome=""), Verdict.PERHAPS),  # of a proxy, which cannot know
        (no(502, outcome=""), Verdict.PERHAPS),
        (no(500, "INTERNAL", "unknown"), Verdict.PERHAPS),
        (no(429, outcome=""), Verdict.NOTHING),
        (no(429, "PRODUCER_LIMIT"), Verdict.NEVER),
        (no(400, "INVALID_JSON"), Verdict.NEVER),
        (no(507, "DISK_FULL"), Verdict.NEVER),
        (no(404, outcome=""), Verdict.NEVER),
        (no(301, outcome=""), Verdict.NEVER),
    ],
)  # fmt: skip
def test_what_an_outcome_means(what: HttpResponse | Broken, verdict: Verdict | None) -> None:
    assert judge(what) is verdict


def test_an_append_is_sent_again_while_nothing_can_have_been_applied() -> None:
    played = play(append(), [NOBODY, no(503, "UNAVAILABLE"), DONE])
    assert played.result.offset == token(1, 2)
    assert len(played.asked) == 3 and played.pauses == [1.0, 2.0]


@pytest.mark.parametrize(
    "what",
    [
        LOST,
        no(503, "OUTCOME_UNKNOWN", "unknown"),
        no(500, "INTERNAL", "unknown"),
        no(504, outcome=""),
    ],
)
def test_an_append_whose_outcome_is_unknown_is_not_sent_again(what: HttpResponse | Broken) -> None:
    played = play(append(), [what])
    assert isinstance(played.error, OutcomeUnknown) and played.error.outcome is Outcome.UNKNOWN
    assert len(played.asked) == 1


def test_what_is_repeatable_is_sent_again_after_a_lost_answer() -> None:
    played = play(
        create(), [LOST, no(500, "INTERNAL", "unknown"), ok(200, stream_next_offset=token(0, 0))]
    )
    assert played.result.created is False and len(played.asked) == 3


def test_trying_ends_and_says_whether_something_may_have_been_applied() -> None:
    played = play(append(), [NOBODY] * FOREVER)
    assert isinstance(played.error, Unavailable) and played.error.outcome is Outcome.REFUSED
    assert sum(played.pauses) <= RETRY.seconds
    played = play(create(), [LOST, *[NOBODY] * FOREVER])
    assert isinstance(played.error, OutcomeUnknown)
    played = play(verbs.head("orders", RETRY), [LOST] * FOREVER)
    assert isinstance(played.error, Unavailable), "a read applies nothing"


def test_retry_after_is_honoured() -> None:
    played = play(append(), [no(503, "UNAVAILABLE", retry_after="3"), DONE])
    assert 3.0 <= played.pauses[0] < 3.5
    played = play(append(), [no(503, "UNAVAILABLE", retry_after="60")])
    assert isinstance(played.error, Unavailable), "it would be longer than the policy allows"
    assert played.pauses == []


def test_a_date_or_nonsense_in_retry_after_is_passed_over() -> None:
    for said in ("Fri, 31 Dec 1999 23:59:59 GMT", "-1", "1e9", "\u0663"):
        assert play(append(), [no(503, "UNAVAILABLE", retry_after=said), DONE]).pauses == [1.0]


def test_a_repeat_that_is_refused_does_not_hide_that_the_first_may_have_been_applied() -> None:
    played = play(create(), [LOST, no(409, "EXISTS_DIFFERENT")])
    assert isinstance(played.error, StreamExists) and played.error.outcome is Outcome.UNKNOWN
    played = play(create(), [NOBODY, no(409, "EXISTS_DIFFERENT")])
    assert played.error is not None and played.error.outcome is Outcome.REFUSED


def test_a_delete_that_finds_nothing_after_a_lost_answer_has_deleted() -> None:
    assert play(verbs.delete("orders", RETRY), [LOST, no(404, "NOT_FOUND")]).result is True
    assert isinstance(
        play(verbs.delete("orders", RETRY), [NOBODY, no(404, "NOT_FOUND")]).error, StreamNotFound
    )
    assert (
        play(verbs.delete("orders", RETRY, missing_ok=True), [no(404, "NOT_FOUND")]).result is False
    )


def test_a_success_that_does_not_say_what_it_should_was_applied_all_the_same() -> None:
    played = play(append(), [ok(204)])
    assert isinstance(played.error, AnswerDamaged) and played.error.outcome is Outcome.APPLIED
    assert play(
        create(), [ok(201), ok(200, stream_next_offset=token(0, 0))]
    ).result.offset == token(0, 0)


@pytest.mark.parametrize(
    ("answer", "kind", "facts"),
    [
        (no(409, "STREAM_CLOSED", stream_next_offset="x"), StreamClosed, {"offset": "x"}),
        (no(410, "TRIMMED", stream_retained_offset="y"), Trimmed, {"retained_offset": "y"}),
        (no(412, "INCARNATION_MISMATCH"), StreamReplaced, {}),
        (no(409, "PRODUCER_CONFLICT"), ProducerConflict, {}),
        (no(404, outcome=""), StreamNotFound, {}),  # to HEAD: no body
        (no(410, outcome=""), StreamGone, {}),
        # another server
        (ok(409, stream_closed="true", stream_next_offset="z"), StreamClosed, {"offset": "z"}),
        (ok(400, b"<html>"), Refused, {"message": "append: the server responded 400: <html>"}),
    ],
)  # fmt: skip
def test_refusals_have_types(
    answer: HttpResponse, kind: type[ClientError], facts: dict[str, str]
) -> None:
    error = refused(answer, "append")
    assert (
        type(error) is kind and error.outcome is Outcome.REFUSED and error.status == answer.status
    )
    assert {name: getattr(error, name) for name in facts} == facts


def test_an_error_says_what_was_asked_and_where_to_look() -> None:
    error = play(append(), [no(409, "STREAM_CLOSED")]).error
    assert str(error) == "append to 'orders': no [STREAM_CLOSED] (request r1)"


def test_an_answer_without_a_body_is_put_into_words() -> None:
    error = play(verbs.head("s", RETRY), [ok(404)]).error
    assert str(error) == "head of 's': the stream does not exist; create() creates it [NOT_FOUND]"
    error = play(verbs.head("s", RETRY), [ok(403)]).error
    assert str(error) == "head of 's': the token does not allow this operation [FORBIDDEN]"
    assert isinstance(error, AccessDenied)


def test_a_server_that_is_not_there_is_named() -> None:
    with (
        Client("http://127.0.0.1:1", retry=Retry(seconds=0)) as client,
        pytest.raises(Unavailable) as gone,
    ):
        client.stream("s").create()
    assert str(gone.value).startswith("create 's': the server is unreachable: ") and str(
        gone.value
    ).endswith("(http://127.0.0.1:1)")


def test_listings_come_page_by_page() -> None:
    row = b'{"name":"%s","content_type":"text/plain","next_offset":"1_1","closed":true,"incarnation":"7","retained_offset":"1_0","new":[]}'
    first, second = (
        b'{"streams":[%s],"next":%s}' % (row % name, after)
        for name, after in ((b"a", b'"a"'), (b"b", b"null"))
    )
    played = play(verbs.listing("", RETRY), [ok(200, first), NOBODY, ok(200, second)])
    assert [facts.name for facts in played.given] == ["a", "b"] and "after=a" in played.targets[-1]
    assert played.given[0] == Facts(
        name="a",
        content_type="text/plain",
        offset="1_1",
        closed=True,
        incarnation="7",
        retained_offset="1_0",
    )


def test_names_are_percent_encoded() -> None:
    assert play(verbs.head("a b/ü?#%", RETRY), []).targets == ["/v1/stream/a%20b/%C3%BC%3F%23%25"]


def test_a_methods_help_is_that_of_its_talk() -> None:
    for stream in (Stream, AsyncStream):
        signature = inspect.signature(stream.trim)
        assert signature.return_annotation is Trimming and "keep_bytes" in signature.parameters
        assert stream.trim.__doc__ == streams.trim.__doc__ and stream.trim.__name__ == "trim"
    assert inspect.iscoroutinefunction(AsyncStream.trim) and not inspect.iscoroutinefunction(
        Stream.trim
    )


@pytest.mark.parametrize("name", ["../tables/x", "a/../b", "a/./b", "..", "a/.."])
def test_dot_segments_reach_the_server_instead_of_another_stream(name: str) -> None:
    target = stream_target(name)
    assert httpx.URL("http://h" + target).raw_path.decode() == target  # httpx resolved nothing
    assert unquote(target) == f"/v1/stream/{name}"
    assert stream_target("a..b/c.d") == "/v1/stream/a..b/c.d"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_lacks_is_refused(number: float) -> None:
    assert encode({"a": [1.5, None]}) == b'{"a":[1.5,null]}'
    with pytest.raises(ValueError, match=r"NaN or an infinity at a\[1\]\.b"):
        encode({"a": [None, {"b": number}]})
    with pytest.raises(ValueError, match="the record has NaN or an infinity, which"):
        encode(number)


def test_the_reason_of_a_refused_head_is_that_of_a_get() -> None:
    for status in (400,):
        bare = HttpResponse(status, {}, b"")
        played = play(verbs.head("runs/", RETRY), [bare, no(status, "INVALID_NAME", outcome="")])
        assert isinstance(played.error, Refused) and played.error.code == "INVALID_NAME"
