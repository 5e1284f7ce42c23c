"""Regular expressions of subscriptions: the same names as Python's `re`, in linear time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.stream.features.consumer_groups import patterns
from polynya.stream.features.consumer_groups.patterns import (
    InvalidPattern,
    Pattern,
    PatternMatches,
)
from polynya.stream.features.consumer_groups.topic_view import TopicView
from polynya.stream.features.topics.state import Topic, TopicNews, TopicState

NAMES = st.text("ab.1", max_size=6)


def expressions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = inner.map(lambda text: f"(?:{text})")
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({'|'.join(pair)})"),
        st.tuples(group, st.sampled_from(("*", "+", "?", "{2}", "{1,}", "{0,2}", "*?"))).map(
            "".join
        ),
    )


ATOMS = st.sampled_from(("a", "b", "1", "\\.", ".", "[ab]", "[^a]", "[a-b.]", "\\d", "\\w", ""))
EXPRESSIONS = st.recursive(ATOMS, expressions, max_leaves=8)


@given(EXPRESSIONS, NAMES)
def test_it_matches_the_names_that_python_matches(text: str, name: str) -> None:
    assert Pattern(text).matches(name) == (re.fullmatch(text, name) is not None)


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ("^orders$", "orders", "orders2"),
        ("^orders", "orders", "orders2"),  # as a whole, as in Kafka
        ("orders.*", "orders2", "my-orders"),
        ("\\Aa|b\\z", "a", "c"),
        ("(?P<x>a)(?<y>b)?", "ab", "b"),
        ("a{,2}", "", "aa"),  # not a repetition: letters that no name has
        ("[]a]+", "a", "b"),
        ("[a\\-z]", "-", "b"),
        ("[\\d_]+", "1_2", "a"),
        ("\\W+", "-.", "a"),
        ("(a|b|)c", "c", "abc"),
        ("((a*)*)*b", "aaab", "aaa"),
        ("^*a", "a", "b"),
        ("a{2}{2}", "aaaa", "aa"),
    ],
)
def test_it_has_the_syntax_that_topics_need(text: str, good: str, bad: str) -> None:
    pattern = Pattern(text)
    assert not pattern.matches(bad)
    assert pattern.matches(good) == (text != "a{,2}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(a", "'(' without ')'"),
        ("a)", "')' without '('"),
        ("*a", "repeats nothing"),
        ("a{3,2}", "the smaller first"),
        ("a{1001}", "0 to 1000"),
        ("[a", "ends too early"),
        ("[z-a]", "a range"),
        ("[[:alpha:]]", "not supported"),
        ("\\", "ends too early"),
        ("\\p{L}", "not supported"),
        ("(?i)a", "flags"),
        ("(?=a)", "flags"),
        ("a*+", "possessive"),
        ("a" + "*?" * 60, "too many"),
        ("(" * 60 + ")" * 60, "groups inside"),
        ("(a{100}){100}", "1000 states"),
        ("a" * 2000, "2000 characters"),
        ("(?P<a-b>a)", "name of a group"),
    ],
)
def test_it_says_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(InvalidPattern, match=re.escape(why)):
        Pattern(text)


def test_what_hangs_a_backtracking_matcher_costs_little() -> None:
    name = "a" * 200
    for text in ("(a+)+b", "(a|aa)*b", "(.*)*b", "(a?){100}a{100}b"):
        pattern = Pattern(text)
        assert not pattern.matches(name)
        assert pattern.work < 150_000


def test_the_cache_of_states_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_CACHED_MAX", 4)
    pattern = Pattern("(a|b)*a(a|b){6}")
    assert pattern.matches("abababababababbbbbb") == bool(
        re.fullmatch("(a|b)*a(a|b){6}", "abababababababbbbbb")
    )
    assert len(pattern._cached) <= 4


def view(revision: int, *names: str, of: TopicView | None = None) -> TopicView:
    made = of or TopicView()
    topics = [Topic(name, name.encode().ljust(16), 1, [], 0, TopicState.READY) for name in names]
    made.take(TopicNews(revision, True, topics))
    return made


def test_only_topics_that_changed_are_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = view(1, "a1", "a2", "b1")
    matches = PatternMatches("a.")
    assert matches.update(topics)
    assert matches.names == {"a1", "a2"}
    work = matches._pattern.work
    assert matches.update(topics)
    assert matches._pattern.work == work
    view(2, "a2", "b1", "a3", of=topics)
    matches.update(topics)
    assert matches.names == {"a2", "a3"}
    monkeypatch.setattr(patterns, "_WORK_AT_ONCE", 0)
    left = PatternMatches("a.")
    assert [left.update(topics) for _ in range(4)] == [False, False, False, True]
    assert left.names == {"a2", "a3"}
