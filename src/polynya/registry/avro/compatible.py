"""Schema resolution: can a reader with one Avro schema read what was written with another?

The rules are those of the specification ("Schema Resolution"). Full names of records, enums and
fixed types must be equal, as in Avro's Java library, or the reader has the writer's name as an
alias.
"""

from __future__ import annotations

from polynya.registry.avro.model import NAMED, NO_DEFAULT, AvroSchema, Field, Type
from polynya.registry.refused import Incompatibility, TooComplex, forget_later

FOUND_MAX = 20  # differences that one comparison reports
_COMPARISONS_MAX = 100_000  # of pairs: more would take seconds
# kind of the writer -> kinds that a reader may have instead
_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def differences(reader: AvroSchema, writer: AvroSchema) -> list[Incompatibility]:
    """Return why a reader cannot read; empty: it can."""
    comparison = _Comparison()
    return comparison.compare(reader.type, writer.type, "/")[:FOUND_MAX]


class _Comparison:
    """One comparison. Pairs that are being compared count as compatible: types may be circular."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], list[Incompatibility]] = {}
        self._left = _COMPARISONS_MAX

    def compare(self, reader: Type, writer: Type, where: str) -> list[Incompatibility]:
        """Return the differences of two types."""
        pair = (id(reader), id(writer))
        known = self._known.get(pair)
        if known is None:
            self._left -= 1
            if self._left < 0:
                raise TooComplex
            self._known[pair] = []
            known = self._differences(reader, writer, where)[:FOUND_MAX]
            if known:
                forget_later(self._known, pair)
            self._known[pair] = known
        return known

    def _differences(self, reader: Type, writer: Type, where: str) -> list[Incompatibility]:
        if writer.kind == "union":
            found: list[Incompatibility] = []
            for number, branch in enumerate(writer.inner):
                found += self.compare(reader, branch, f"{where}{number}")
            return found
        if reader.kind == "union":
            if any(not self.compare(branch, writer, where) for branch in reader.inner):
                return []
            return [
                Incompatibility(
                    "MISSING_UNION_BRANCH",
                    where,
                    f"the reader union has no branch that reads the writer type {writer.shown}",
                )
            ]
        if reader.kind != writer.kind:
            if reader.kind in _PROMOTIONS.get(writer.kind, ()):
                return []
            return [
                Incompatibility(
                    "TYPE_MISMATCH",
                    where,
                    f"reader type {reader.shown} does not read writer type {writer.shown}",
                )
            ]
        return self._of_one_kind(reader, writer, where)

    def _of_one_kind(self, reader: Type, writer: Type, where: str) -> list[Incompatibility]:
        kind = reader.kind
        if kind in NAMED and writer.name not in (reader.name, *reader.aliases):
            message = f"expected the name {writer.name}, and the reader has {reader.name}"
            return [Incompatibility("NAME_MISMATCH", f"{where}name", message)]
        if kind == "record":
            return self._of_records(reader, writer, where)
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            return self.compare(reader.inner[0], writer.inner[0], f"{where}{part}/")
        if kind == "enum":
            known = frozenset(reader.symbols)
            missing = [each for each in writer.symbols if each not in known]
            if missing and reader.default is None:
                message = (
                    f"the reader lacks the symbols {', '.join(missing[:10])}, and has no default"
                )
                return [Incompatibility("MISSING_ENUM_SYMBOLS", f"{where}symbols", message)]
            return []
        if kind == "fixed" and reader.size != writer.size:
            message = f"the reader has {reader.size} bytes, the writer {writer.size}"
            return [Incompatibility("FIXED_SIZE_MISMATCH", f"{where}size", message)]
        return _of_decimals(reader, writer, where)

    def _of_records(self, reader: Type, writer: Type, where: str) -> list[Incompatibility]:
        found: list[Incompatibility] = []
        written = {each.name: each for each in writer.fields}
        for number, field in enumerate(reader.fields):
            path = f"{where}fields/{number}"
            source = _source_of(field, written)
            if source is not None:
                found += self.compare(field.type, source.type, f"{path}/type/")
            elif field.default is NO_DEFAULT:
                message = f"the field {field.name} of {reader.name} is new to the reader and has no default"
                found.append(Incompatibility("READER_FIELD_MISSING_DEFAULT_VALUE", path, message))
        return found


def _source_of(field: Field, written: dict[str, Field]) -> Field | None:
    """Return the writer's field of this name, else of an alias."""
    for name in (field.name, *field.aliases):
        if name in written:
            return written[name]
    return None


def _of_decimals(reader: Type, writer: Type, where: str) -> list[Incompatibility]:
    """Compare decimals: the specification has them match if precision and scale are equal."""
    mine, theirs = reader.decimal, writer.decimal
    if mine is None or theirs is None or mine == theirs:
        return []
    message = (
        f"the reader has decimal({mine[0]},{mine[1]}), the writer decimal({theirs[0]},{theirs[1]})"
    )
    return [Incompatibility("DECIMAL_MISMATCH", where, message)]
