"""Does a reader's JSON Schema accept every value that the writer's one accepts?

The comparison is sound and not complete: it finds a reader compatible only if each of its
constraints follows from one of the writer. What it does not understand (`not`, `if`, `dependencies`,
patterns) must be equal on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import islice
from typing import Any

from polynya.registry.jsonschema.model import TYPES, JsonSchema, Node
from polynya.registry.refused import Incompatibility, forget_later
from polynya.registry.texts import write_json

FOUND_MAX = 20
_CASES_MAX = 256  # alternatives of a writer that are looked at one by one
_COMPARISONS_MAX = 20_000  # of pairs: more would take seconds
# keywords that must be equal, or missing in the reader, and the type of the values they judge
_SAME = {
    "not": "",
    "if": "",
    "then": "",
    "else": "",
    "$dynamicRef": "",
    "$recursiveRef": "",
    "unevaluatedItems": "array",
    "contains": "array",
    "minContains": "array",
    "maxContains": "array",
    "dependencies": "object",
    "dependentRequired": "object",
    "dependentSchemas": "object",
    "propertyNames": "object",
    "unevaluatedProperties": "object",
    "pattern": "string",
    "format": "string",
}
_LOWER = {"minLength": "string", "minItems": "array", "minProperties": "object"}
_UPPER = {"maxLength": "string", "maxItems": "array", "maxProperties": "object"}
Facts = list[dict[str, Any]]  # what all holds of a value, of one alternative of the writer


def differences(reader: JsonSchema, writer: JsonSchema) -> list[Incompatibility]:
    """Return why a reader does not accept all values; empty: it does."""
    comparison = _Comparison(reader, writer)
    return [*islice(comparison.compare(reader.root, [writer.root], "#"), FOUND_MAX)]


class _Comparison:
    """One comparison. A pair that is being compared counts as compatible: schemas may be
    circular."""

    def __init__(self, reader: JsonSchema, writer: JsonSchema) -> None:
        self._reader, self._writer = reader, writer
        self._known: dict[tuple[Any, ...], list[Incompatibility]] = {}
        self._left = _COMPARISONS_MAX
        own = writer.root.get("$schema", "") if isinstance(writer.root, dict) else ""
        # before draft 2019-09 keywords beside `$ref` mean nothing
        self._has_siblings = isinstance(own, str) and ("2019-09" in own or "2020-12" in own)

    def compare(self, reader: Node, writer: list[Node], where: str) -> list[Incompatibility]:
        """Return the differences between a schema and all of some schemas of the writer."""
        key = (id(reader), *sorted(map(id, writer)))
        if key in self._known:
            return self._known[key]
        self._left -= 1
        if self._left < 0:
            text = "the schemas are too complex to compare; set the compatibility to NONE"
            return [Incompatibility("TOO_COMPLEX", where, text)]
        self._known[key] = []
        found: list[Incompatibility] = []
        for facts in self._cases(writer):
            found += self._accepts(reader, facts, where)
            if len(found) >= FOUND_MAX:
                break
        if found:
            forget_later(self._known, key)
        self._known[key] = found[:FOUND_MAX]
        return self._known[key]

    # --- the writer -------------------------------------------------------------------------------

    def _cases(self, writer: Iterable[Node]) -> Iterator[Facts]:
        """Yield the facts of each alternative. With very many of them, some stay together."""
        pending: list[tuple[list[Node], Facts]] = [([*writer], [])]
        count = 0
        while pending:
            nodes, facts = pending.pop()
            facts = [*facts]
            if not self._add(nodes, facts):
                continue
            alternatives = [
                each[name] for each in facts for name in ("anyOf", "oneOf") if name in each
            ]
            open_: list[Node] = next(
                (each for each in alternatives if not _chosen(each, facts)), []
            )
            if open_ and count + len(pending) + len(open_) < _CASES_MAX:
                pending += [([each], facts) for each in open_]
            else:
                count += 1
                yield facts

    def _add(self, nodes: list[Node], facts: Facts) -> bool:
        """Add schemas to facts, with what they refer to and join; False: no value is of all."""
        seen = set[int]()
        nodes = [*nodes]
        while nodes:
            node = nodes.pop()
            if node is False:
                return False
            if node is True or id(node) in seen or any(node is each for each in facts):
                continue
            seen.add(id(node))
            target = _target(self._writer, node)
            if target is not None:
                nodes.append(target)
                if not self._has_siblings:
                    continue
            facts.append(node)
            nodes += node.get("allOf", ())
        return True

    # --- the reader -------------------------------------------------------------------------------

    def _accepts(self, reader: Node, facts: Facts, where: str) -> list[Incompatibility]:
        if reader is True:
            return []
        types = _types_of(facts)
        if not types:
            return []
        if reader is False:
            return [Incompatibility("NOT_ALLOWED", where, "the reader accepts no value here")]
        found: list[Incompatibility] = []
        if isinstance(reference := reader.get("$ref"), str):
            target = self._reader.target(reference)
            if target is None:
                if not any(each.get("$ref") == reference for each in facts):
                    text = f"the reference {reference} of the reader names nothing that is known"
                    found.append(Incompatibility("REFERENCE_UNKNOWN", where, text))
            else:
                found += self._all(target, facts, where)
        for number, each in enumerate(reader.get("allOf", ())):
            found += self._all(each, facts, f"{where}/allOf/{number}")
        found += self._alternatives(reader, facts, types, where)
        found += self._same(reader, facts, types, where)
        found += _plain(reader, facts, types, where)
        if "array" in types:
            found += self._items(reader, facts, where)
        if "object" in types:
            found += self._properties(reader, facts, where)
        return found

    def _all(self, reader: Node, facts: Facts, where: str) -> list[Incompatibility]:
        return self.compare(reader, [*facts], where)

    def _alternatives(
        self, reader: dict[str, Any], facts: Facts, types: frozenset[str], where: str
    ) -> Iterator[Incompatibility]:
        for name in ("anyOf", "oneOf"):
            branches = reader.get(name)
            if branches is None or self._is_fact(name, branches, facts):
                continue
            fits = [
                number
                for number, each in enumerate(branches)
                if not self._all(each, facts, f"{where}/{name}/{number}")
            ]
            if fits and name == "oneOf":
                others = [each for number, each in enumerate(branches) if number != fits[0]]
                if not all(self._excludes(each, types) for each in others):
                    fits = []
            if not fits:
                text = f"no alternative of {name} of the reader surely accepts all values"
                yield Incompatibility("SUM_TYPE_NARROWED", f"{where}/{name}", text)

    def _excludes(self, branch: Node, types: frozenset[str]) -> bool:
        """Report whether an alternative accepts no value of these types."""
        if isinstance(branch, bool):
            return not branch
        target = _target(self._reader, branch)
        if target is None:
            return not _types_of([branch]) & types
        return isinstance(target, dict) and not _types_of([target]) & types

    def _is_fact(self, name: str, value: Any, facts: Facts) -> bool:
        """Report whether a keyword of the reader, with what it refers to, is one of the writer."""
        return any(
            name in each and _is_same(value, self._reader, each[name], self._writer, set())
            for each in facts
        )

    def _same(
        self, reader: dict[str, Any], facts: Facts, types: frozenset[str], where: str
    ) -> Iterator[Incompatibility]:
        for name, kind in _SAME.items():
            is_judged = name in reader and (not kind or kind in types)
            if is_judged and not self._is_fact(name, reader[name], facts):
                text = f"'{name}' of the reader is not that of the writer"
                yield Incompatibility("KEYWORD_CHANGED", f"{where}/{name}", text)

    def _items(self, reader: dict[str, Any], facts: Facts, where: str) -> Iterator[Incompatibility]:
        ours, rest = _tuple_of(reader)
        length = max((len(_tuple_of(each)[0]) for each in facts), default=0)
        most = min((each["maxItems"] for each in facts if "maxItems" in each), default=None)
        for number in range(max(len(ours), length)):
            if most is not None and number >= most:
                return
            mine = ours[number] if number < len(ours) else rest
            theirs = [_item(each, number) for each in facts]
            yield from self.compare(mine, theirs, f"{where}/items/{number}")
        yield from self.compare(rest, [_tuple_of(each)[1] for each in facts], f"{where}/items")

    def _properties(
        self, reader: dict[str, Any], facts: Facts, where: str
    ) -> Iterator[Incompatibility]:
        patterns = reader.get("patternProperties", {})
        for each in facts:
            if patterns and each.get("patternProperties", {}).keys() != patterns.keys():
                text = "the reader has other patternProperties"
                yield Incompatibility("PATTERNS_CHANGED", f"{where}/patternProperties", text)
                return
        needed = {name for each in facts for name in _required(each)}
        for name in _required(reader):
            if name not in needed:
                text = f"the reader requires the property {name}, which may be missing"
                yield Incompatibility("REQUIRED_PROPERTY_ADDED", f"{where}/required", text)
        names = dict.fromkeys(
            name for each in (reader, *facts) for name in each.get("properties", {})
        )
        for name in names:
            theirs = [found for each in facts for found in _property(each, name)]
            for mine in _property(reader, name, patterns):
                yield from self.compare(mine, theirs, f"{where}/properties/{name}")
        for pattern, mine in patterns.items():
            theirs = [each["patternProperties"][pattern] for each in facts]
            yield from self.compare(mine, theirs, f"{where}/patternProperties/{pattern}")
        mine, theirs = _rest(reader), [_rest(each) for each in facts]
        if any(each.get("patternProperties") for each in facts) and not patterns:
            theirs = [True]
        yield from self.compare(mine, theirs, f"{where}/additionalProperties")


# --- facts ----------------------------------------------------------------------------------------


def _chosen(alternatives: list[Node], facts: Facts) -> bool:
    return any(each is fact for each in alternatives for fact in facts) or True in alternatives


def _types_of(facts: Facts) -> frozenset[str]:
    """Return the types that a value of all facts may have. `integer` is there beside `number`, and
    alone if the numbers are whole."""
    types = frozenset(TYPES)
    for each in facts:
        given = each.get("type")
        if given is not None:
            own = set(given if isinstance(given, list) else [given])
            types &= frozenset(own | ({"integer"} if "number" in own else set()))
        values = _values(each)
        if values is not None:
            types &= frozenset(kind for value in values for kind in _kinds(value))
    return types


def _kinds(value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return ("integer",)
    for kind, name in ((float, "number"), (str, "string"), (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return (name,)
    return ("null",)


def _values(node: dict[str, Any]) -> list[Any] | None:
    """Return the only values of a schema; None: it does not list them."""
    if "const" in node:
        return [node["const"]]
    found = node.get("enum")
    return found if isinstance(found, list) else None


def _target(schema: JsonSchema, node: dict[str, Any]) -> Node | None:
    reference = node.get("$ref")
    return schema.target(reference) if isinstance(reference, str) else None


def _is_same(
    one: Any, here: JsonSchema, other: Any, there: JsonSchema, seen: set[tuple[int, int]]
) -> bool:
    """Report whether two JSON values are equal, with what they refer to."""
    if isinstance(one, dict) and isinstance(other, dict):
        if (id(one), id(other)) in seen:
            return True
        seen.add((id(one), id(other)))
        targets = _target(here, one), _target(there, other)
        if one.keys() != other.keys() or (targets[0] is None) != (targets[1] is None):
            return False
        if targets[0] is not None and not _is_same(targets[0], here, targets[1], there, seen):
            return False
        names = [name for name in one if name != "$ref" or targets[0] is None]
        return all(_is_same(one[name], here, other[name], there, seen) for name in names)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(
            _is_same(each, here, also, there, seen) for each, also in zip(one, other, strict=True)
        )
    return _equal(one, other)


def _equal(one: Any, other: Any) -> bool:
    """Compare JSON: true is not 1."""
    return one == other and write_json(one) == write_json(other)


def _item(node: dict[str, Any], number: int) -> Node:
    own, rest = _tuple_of(node)
    return own[number] if number < len(own) else rest


def _tuple_of(node: dict[str, Any]) -> tuple[list[Node], Node]:
    """Return the schemas of the first items, and that of all others."""
    items = node.get("items", True)
    if isinstance(items, list):
        return items, node.get("additionalItems", True)
    return node.get("prefixItems", []), items


def _required(node: dict[str, Any]) -> list[str]:
    found = node.get("required", [])
    return found if isinstance(found, list) else []


def _property(
    node: dict[str, Any], name: str, patterns: dict[str, Any] | None = None
) -> list[Node]:
    """Return what a schema surely demands of a property; of the reader, with its patterns, what it
    may demand."""
    properties = node.get("properties", {})
    if patterns is not None:
        own = [properties[name]] if name in properties else [_rest(node)]
        return [*own, *patterns.values()]
    if name in properties:
        return [properties[name]]
    return [] if node.get("patternProperties") else [_rest(node)]


def _rest(node: dict[str, Any]) -> Node:
    found: Node = node.get("additionalProperties", True)
    return found


# --- keywords without schemas ---------------------------------------------------------------------


def _plain(
    reader: dict[str, Any], facts: Facts, types: frozenset[str], where: str
) -> Iterator[Incompatibility]:
    yield from _types(reader, types, where)
    yield from _listed(reader, facts, where)
    for names, pick in ((_LOWER, max), (_UPPER, min)):
        for name, kind in names.items():
            if name not in reader or kind not in types:
                continue
            theirs = [each[name] for each in facts if name in each]
            theirs += [] if pick is min else [0]
            if not theirs or pick([reader[name], *theirs]) != pick(theirs):
                yield _narrowed(name, reader[name], where)
    if (
        reader.get("uniqueItems") is True
        and "array" in types
        and not any(each.get("uniqueItems") is True for each in facts)
    ):
        yield _narrowed("uniqueItems", True, where)
    if {"number", "integer"} & types:
        yield from _numbers(reader, facts, where)


def _types(reader: dict[str, Any], types: frozenset[str], where: str) -> Iterator[Incompatibility]:
    given = reader.get("type")
    if given is None:
        return
    own = set(given if isinstance(given, list) else [given])
    if "number" in own:
        own.add("integer")
    if types - own:
        text = f"the reader accepts {', '.join(sorted(own))}; the writer may write {', '.join(sorted(types - own))}"
        yield Incompatibility("TYPE_NARROWED", f"{where}/type", text)


def _listed(reader: dict[str, Any], facts: Facts, where: str) -> Iterator[Incompatibility]:
    mine = _values(reader)
    if mine is None:
        return
    own = set(map(write_json, mine))
    listed = [values for each in facts if (values := _values(each)) is not None]
    if not any(own.issuperset(map(write_json, values)) for values in listed):
        text = "the reader lists values, and the writer may write others"
        yield Incompatibility("ENUM_NARROWED", f"{where}/enum", text)


def _numbers(reader: dict[str, Any], facts: Facts, where: str) -> Iterator[Incompatibility]:
    for sign, name in ((1, "minimum"), (-1, "maximum")):
        mine = _bound(reader, name, sign)
        theirs = [bound for each in facts if (bound := _bound(each, name, sign)) is not None]
        if mine is not None and (not theirs or max(theirs) < mine):
            yield _narrowed(name, sign * mine[0], where)
    step = reader.get("multipleOf")
    if step is not None:
        steps = [each["multipleOf"] for each in facts if "multipleOf" in each]
        if not any((_exact(each) / _exact(step)).denominator == 1 for each in steps):
            yield _narrowed("multipleOf", step, where)


def _exact(value: float) -> Fraction:
    return Fraction(str(value))


def _bound(node: dict[str, Any], name: str, sign: int) -> tuple[Fraction, bool] | None:
    """Return the larger of the bounds below a value (of its negative for a maximum), and whether it
    is excluded itself. In draft 4 that is a boolean."""
    found: list[tuple[Fraction, bool]] = []
    exclusive = node.get("exclusiveMinimum" if sign > 0 else "exclusiveMaximum")
    if name in node:
        found.append((sign * _exact(node[name]), exclusive is True))
    if isinstance(exclusive, int | float) and not isinstance(exclusive, bool):
        found.append((sign * _exact(exclusive), True))
    return max(found, default=None)


def _narrowed(name: str, value: Any, where: str) -> Incompatibility:
    text = f"'{name}' of the reader is {value}; the writer may write other values"
    return Incompatibility("RANGE_NARROWED", f"{where}/{name}", text)
