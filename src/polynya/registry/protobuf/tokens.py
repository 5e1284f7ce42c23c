"""The tokens of a .proto text."""

from __future__ import annotations

import re
from bisect import bisect_right

from polynya.registry.refused import BadSchema

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r\n\f\v]+|//[^\n]*|/\*.*?\*/)
    |(?P<name>\.?[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)
    |(?P<number>0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<sign>[{}\[\]()<>;,=:+\-/.])""",
    re.DOTALL | re.VERBOSE | re.ASCII,
)
END = ""


class Tokens:
    """The tokens that are left, and the position of the next one."""

    def __init__(self, text: str) -> None:
        """Raises BadSchema for what is no token."""
        self._text = text
        self._lines = [0, *(each.end() for each in re.finditer("\n", text))]  # where they begin
        self._found: list[tuple[str, str, int]] = []  # kind, token, position
        self._at = 0
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise BadSchema(
                    f"{self._position(position)}: unexpected {text[position : position + 16]!r}"
                )
            if match.lastgroup != "blank":
                self._found.append((match.lastgroup or "", match[0], position))
            position = match.end()

    @property
    def next(self) -> str:
        """The next token; `END` behind the last one."""
        return self._found[self._at][1] if self._at < len(self._found) else END

    @property
    def kind(self) -> str:
        """The kind of the next token: name, number, string or sign."""
        return self._found[self._at][0] if self._at < len(self._found) else END

    @property
    def where(self) -> str:
        """Line and column of the next token."""
        is_end = self._at >= len(self._found)
        return self._position(len(self._text) if is_end else self._found[self._at][2])

    def _position(self, at: int) -> str:
        line = bisect_right(self._lines, at)
        return f"line {line}, column {at - self._lines[line - 1] + 1}"

    def take(self, wanted: str = "") -> str:
        """Return the next token and go on. Raises BadSchema if it is not the wanted one."""
        found = self.next
        if found == END or (wanted and found != wanted):
            shown = "the end of the text" if found == END else f"'{found[:32]}'"
            expected = f"'{wanted}'" if wanted else "more"
            raise BadSchema(f"{self.where}: expected {expected}, not {shown}")
        self._at += 1
        return found

    def takes(self, wanted: str) -> bool:
        """Go on if the next token is this one, and report whether it was."""
        if self.next != wanted:
            return False
        self._at += 1
        return True

    def of(self, kind: str, what: str) -> str:
        """Return the next token, of a kind. Raises BadSchema."""
        if self.kind != kind:
            shown = f"'{self.next[:32]}'" if self.next else "the end of the text"
            raise BadSchema(f"{self.where}: expected {what}, not {shown}")
        return self.take()
