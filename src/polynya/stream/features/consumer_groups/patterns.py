"""Regular expressions of subscriptions, matched in a time that is linear in the name. Pure.

A client chooses the expression, so Python's `re` is no option: with one of 20 characters it may
backtrack for hours. This is Thompson's construction (Communications of the ACM 11:6, 1968), and the
sets of states are cached as the states of a DFA, as in RE2. A name has to match as a whole, as in
Kafka. The syntax is the part of RE2's that the names of topics need: literals, `.`, classes,
groups, alternation, `* + ? {m,n}` (lazy ones too: they match the same names), and anchors.
"""

from __future__ import annotations

from collections.abc import Callable

from polynya.base.limits import PATTERN_CHARACTERS_MAX, PATTERN_STATES_MAX
from polynya.stream.features.consumer_groups.topic_view import TopicView

_DIGITS = frozenset("0123456789")
_WORDS = _DIGITS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_LETTERS = _WORDS | frozenset(".-")  # of a topic's name
_NONE = frozenset[str]()
_CLASSES = {"d": _DIGITS, "w": _WORDS, "s": frozenset(" \t\n\r\f\v")}  # upper case: all others
_ANCHORS = {"A": "^", "z": "$"}  # as escapes
_CONTROLS = dict(zip("tnrfva", "\t\n\r\f\v\a", strict=True))
_REPEATS_MAX = 1000  # as in RE2
_DEPTH_MAX = 50  # of groups inside each other
_CACHED_MAX = 2000  # sets of states; beyond it the cache begins again
_CACHED_STATES_MAX = 100_000  # in these sets
_WORK_AT_ONCE = 1_000_000  # states and letters of one update: some tenths of a second at most
_MATCH = -1
_BEGIN, _END, _SPLIT, _TAKE = "^", "$", "|", ""
_Set = frozenset[int]


class InvalidPattern(Exception):
    """The expression is malformed, or uses what is not supported; the message says which."""


class _State:
    """A state of the automaton: it takes a letter of `on`, or is a split or an anchor."""

    __slots__ = ("kind", "next", "on", "other")

    def __init__(self, kind: str, on: frozenset[str], next_: int, other: int) -> None:
        self.kind, self.on, self.next, self.other = kind, on, next_, other


class _Builder:
    """The states as they are added: each part of an expression after the one that follows it."""

    def __init__(self) -> None:
        self.states: list[_State] = []

    def add(self, kind: str, next_: int, other: int = _MATCH, on: frozenset[str] = _NONE) -> int:
        if len(self.states) >= PATTERN_STATES_MAX:
            raise InvalidPattern(
                f"the expression needs more than {PATTERN_STATES_MAX} states; make its repetitions "
                "smaller"
            )
        self.states.append(_State(kind, on, next_, other))
        return len(self.states) - 1


_Node = Callable[[_Builder, int], int]  # (builder, the state after this part) -> its first state


def _nothing(build: _Builder, after: int) -> int:
    return after


def _letters(on: frozenset[str]) -> _Node:
    return lambda build, after: build.add(_TAKE, after, on=on)


def _anchor(kind: str) -> _Node:
    return lambda build, after: build.add(kind, after)


def _sequence(nodes: list[_Node]) -> _Node:
    def node(build: _Builder, after: int) -> int:
        for each in reversed(nodes):
            after = each(build, after)
        return after

    return node


def _either(nodes: list[_Node]) -> _Node:
    def node(build: _Builder, after: int) -> int:
        first = nodes[-1](build, after)
        for each in reversed(nodes[:-1]):
            first = build.add(_SPLIT, each(build, after), first)
        return first

    return node


def _repeated(inner: _Node, least: int, most: int | None) -> _Node:
    def node(build: _Builder, after: int) -> int:
        if most is None:
            first = build.add(_SPLIT, after, after)
            build.states[first].next = inner(build, first)  # and back to the choice
        else:
            first = after
            for _ in range(most - least):
                first = build.add(_SPLIT, inner(build, first), after)
        for _ in range(least):
            first = inner(build, first)
        return first

    return node


class _Parser:
    """Turns a text into nodes, by recursive descent. Raises InvalidPattern."""

    def __init__(self, text: str, letters: frozenset[str]) -> None:
        self._text, self._at, self._depth = text, 0, 0
        self._letters = letters  # of the names

    def parse(self) -> _Node:
        node = self._alternatives()
        if self._at < len(self._text):
            raise self._invalid("a ')' without '('")
        return node

    def _invalid(self, why: str) -> InvalidPattern:
        return InvalidPattern(f"the expression '{self._text[:100]}': {why} at {self._at}")

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _accept(self, text: str) -> bool:
        found = self._peek(text)
        self._at += len(text) * found
        return found

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise self._invalid("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self) -> _Node:
        found = [self._branch()]
        while self._accept("|"):
            found.append(self._branch())
        return _either(found)

    def _branch(self) -> _Node:
        nodes: list[_Node] = []
        while self._at < len(self._text) and not self._peek("|") and not self._peek(")"):
            nodes.append(self._repetition(self._atom()))
        return _sequence(nodes)

    def _repetition(self, node: _Node) -> _Node:
        repeats = 0
        while self._at < len(self._text):
            if self._accept("*"):
                node = _repeated(node, 0, None)
            elif self._accept("+"):
                node = _repeated(node, 1, None)
            elif self._accept("?"):
                node = _repeated(node, 0, 1)
            elif (span := self._counts()) is not None:
                node = _repeated(node, *span)
            else:
                break
            if self._peek("+"):
                raise self._invalid("possessive repetitions are not supported")
            self._accept("?")  # lazy: the same names match
            repeats += 1
            if repeats > _DEPTH_MAX:
                raise self._invalid("too many repetitions of repetitions")
        return node

    def _counts(self) -> tuple[int, int | None] | None:
        """Read `{m}`, `{m,}` or `{m,n}`. A `{` of another form is a letter, as in RE2."""
        end = self._text.find("}", self._at)
        if not self._peek("{") or end < 0:
            return None
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        numbers = [each for each in (low, high) if each]
        if not low or not all(each.isascii() and each.isdigit() for each in numbers):
            return None
        if any(int(each[:9]) > _REPEATS_MAX for each in numbers) or (high and int(high) < int(low)):
            raise self._invalid(f"a repetition has 0 to {_REPEATS_MAX} times, the smaller first,")
        self._at = end + 1
        return int(low), (int(high) if high else None) if comma else int(low)

    def _atom(self) -> _Node:
        letter = self._next()
        if letter == "(":
            return self._group()
        if letter == "[":
            return _letters(self._class())
        if letter == ".":
            return _letters(self._letters)
        if letter in "^$":
            return _anchor(letter)
        if letter in "*+?":
            raise self._invalid(f"'{letter}' repeats nothing")
        if letter != "\\":
            return _letters(frozenset(letter))
        if self._peek("A") or self._peek("z"):
            return _anchor(_ANCHORS[self._next()])
        return _letters(self._escape())

    def _group(self) -> _Node:
        if self._accept("?P<") or self._accept("?<"):
            while (letter := self._next()) != ">":
                if letter not in _WORDS:
                    raise self._invalid("the name of a group has letters, digits and '_'")
        elif self._peek("?") and not self._accept("?:"):
            raise self._invalid("flags and lookarounds are not supported")
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._invalid(f"more than {_DEPTH_MAX} groups inside each other")
        node = self._alternatives()
        self._depth -= 1
        if not self._accept(")"):
            raise self._invalid("a '(' without ')'")
        return node

    def _escape(self) -> frozenset[str]:
        letter = self._next()
        if letter in _CLASSES:
            return self._letters & _CLASSES[letter]
        if letter.lower() in _CLASSES:
            return self._letters - _CLASSES[letter.lower()]
        if letter in _CONTROLS:
            return frozenset(_CONTROLS[letter])
        if letter.isalnum() and letter.isascii():
            raise self._invalid(f"'\\{letter}' is not supported")
        return frozenset(letter)

    def _class(self) -> frozenset[str]:
        is_negated = self._accept("^")
        found, is_first = set[str](), True
        while is_first or not self._peek("]"):
            is_first = False
            if self._peek("[:"):
                raise self._invalid("classes such as '[:alpha:]' are not supported")
            low = self._member()
            if isinstance(low, frozenset):
                found |= low
            elif self._peek("-") and not self._peek("-]"):
                self._at += 1
                high = self._member()
                if isinstance(high, frozenset) or high < low:
                    raise self._invalid("a range goes from one letter to a later one, but not")
                found |= {each for each in self._letters if low <= each <= high}
            else:
                found.add(low)
        self._at += 1
        return self._letters - found if is_negated else frozenset(found)

    def _member(self) -> str | frozenset[str]:
        letter = self._next()
        if letter != "\\":
            return letter
        found = self._escape()
        return next(iter(found)) if len(found) == 1 else found


class Pattern:
    """A compiled expression. Raises InvalidPattern."""

    def __init__(self, text: str, letters: frozenset[str] = _LETTERS) -> None:
        """`letters`: that names have; `.` and classes that are negated take no others."""
        if len(text) > PATTERN_CHARACTERS_MAX:
            raise InvalidPattern(
                f"the expression has {len(text)} characters; at most {PATTERN_CHARACTERS_MAX}"
            )
        build = _Builder()
        first = _Parser(text, letters).parse()(build, _MATCH)
        self._states = build.states
        self.work = 0  # the states and letters that were visited
        self._start = self._closure({first}, at_begin=True)
        self._cached: dict[_Set, dict[str, _Set]] = {}
        self._cached_states = 0

    def matches(self, name: str) -> bool:
        """Report whether the whole name matches."""
        current = self._start
        self.work += len(name)
        for letter in name:
            known = self._cached.get(current)
            if known is None:
                known = self._remember(current)
            following = known.get(letter)
            if following is None:
                following = known[letter] = self._step(current, letter)
            if not following:
                return False
            current = following
        return _MATCH in self._closure(set(current), at_begin=not name, at_end=True)

    def _remember(self, states: _Set) -> dict[str, _Set]:
        self._cached_states += len(states)
        if len(self._cached) >= _CACHED_MAX or self._cached_states > _CACHED_STATES_MAX:
            self._cached.clear()
            self._cached_states = len(states)
        return self._cached.setdefault(states, {})

    def _step(self, current: _Set, letter: str) -> _Set:
        states = (self._states[each] for each in current if each != _MATCH)
        return self._closure({each.next for each in states if letter in each.on})

    def _closure(self, begin: set[int], *, at_begin: bool = False, at_end: bool = False) -> _Set:
        """Return all states that are reached without a letter. `$` stays in it, for the end."""
        found, left = set[int](), list(begin)
        while left:
            number = left.pop()
            if number in found:
                continue
            found.add(number)
            if number == _MATCH:
                continue
            state = self._states[number]
            if state.kind == _SPLIT:
                left += (state.next, state.other)
            elif (state.kind == _BEGIN and at_begin) or (state.kind == _END and at_end):
                left.append(state.next)
        self.work += len(found)
        return frozenset(found)


class PatternMatches:
    """The topics that match an expression, kept up to date. Raises InvalidPattern."""

    def __init__(self, text: str) -> None:
        self._pattern = Pattern(text)
        self._serial = 0  # the changes of the topics up to here are judged
        self.names: set[str] = set()

    def update(self, topics: TopicView) -> bool:
        """Judge the topics that changed; report whether none is left for the next update."""
        enough = self._pattern.work + _WORK_AT_ONCE
        for name, serial in topics.changed_since(self._serial):
            if self._pattern.matches(name):
                self.names.add(name)
            else:
                self.names.discard(name)
            self._serial = serial
            if self._pattern.work > enough:
                return False
        self._serial = topics.serial
        self.names = {each for each in self.names if each in topics.by_name}
        return True
