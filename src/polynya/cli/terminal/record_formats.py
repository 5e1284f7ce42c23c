"""Record formats on stdout: `raw`, `json` and `table`, printed as pages arrive."""

from __future__ import annotations

import base64
import shutil
import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from polynya.cli.terminal import output
from polynya.cli.terminal.read_pages import ReadPage
from polynya.client.values import is_array, whole_record

RAW, JSON, TABLE = FORMATS = ("raw", "json", "table")
BLOCK_RECORDS = 500  # records whose column widths are measured together
WIDTH_MIN = 4  # least width of a cut column
COLUMNS_MAX = 100
GAP = "  "
Show = Callable[[ReadPage], None]


def shower(form: str, stream: str, content_type: str, *, values: bool = False) -> Show:
    """Return the printer of a stream's pages. `values`: of whole records raw shows the values.
    Raises click.UsageError for a table of a stream without records."""
    if form == TABLE:
        if not is_array(content_type):
            raise click.UsageError(
                f"--format table needs a JSON stream; {stream} is {content_type}"
            )
        return RecordTable(_width()).show
    return show_json if form == JSON else show_values if values else show_raw


def show_raw(page: ReadPage) -> None:
    """Print records one per line with their exact bytes; other content as it is."""
    output.data(
        b"".join(
            bytes(record).replace(b"\n", b" ").replace(b"\r", b" ") + b"\n"
            for record in page.records
        )
        or page.body
    )


def show_values(page: ReadPage) -> None:
    """Print the value of each whole record on a line; one without a value as an empty line."""
    output.data(b"".join(whole_record(raw).data(as_json=False) + b"\n" for raw in page.records))


def show_json(page: ReadPage) -> None:
    """Print one object per page."""
    row: dict[str, Any] = {"offset": page.offset}
    if is_array(page.content_type):
        row["records"] = page.records
    elif page.content_type.startswith("text/"):
        row["text"] = page.body.decode(errors="replace")
    else:
        row["base64"] = base64.b64encode(page.body).decode()
    output.json_line({**row, "up_to_date": page.up_to_date, "closed": page.closed})


class RecordTable:
    """Records as table rows: the record's number, then a column for each object key seen so far.

    The header is repeated when a column is added. `width` is the terminal's width; None cuts
    nothing. Cells are cut to fit, and columns without room are named on stderr.
    """

    def __init__(self, width: int | None) -> None:
        self._width = width
        self._columns: dict[str, int] = {}  # name -> width so far
        self._headed = 0  # columns in the last header
        self._left_out: set[str] = set()

    def show(self, page: ReadPage) -> None:
        for at in range(0, len(page.records), BLOCK_RECORDS):
            self._block(
                page.first_record + at,
                [_cells(raw) for raw in page.records[at : at + BLOCK_RECORDS]],
            )

    def _block(self, first: int, rows: list[dict[str, Any]]) -> None:
        rows = [{"record": first + at, **row} for at, row in enumerate(rows)]
        texts = [{name: cell_text(value) for name, value in row.items()} for row in rows]
        for line in texts:
            for name, text in line.items():
                if name in self._columns or len(self._columns) < COLUMNS_MAX:
                    self._columns[name] = max(
                        self._columns.get(name, display_width(name)), display_width(text)
                    )
        shown = fitted(self._columns, self._width)
        right = {
            name for name in shown if all(isinstance(row.get(name, 0), int | float) for row in rows)
        }
        lines = []
        if len(self._columns) != self._headed:
            lines += [""] if self._headed else []
            lines.append(_line([(name, shown[name], name in right) for name in shown]))
            self._headed = len(self._columns)
        lines += [
            _line([(line.get(name, ""), shown[name], name in right) for name in shown])
            for line in texts
        ]
        output.data("".join(f"{line}\n" for line in lines).encode(errors="replace"))
        self._warn_of({name for line in texts for name in line} - shown.keys())

    def _warn_of(self, names: set[str]) -> None:
        new = sorted(names - self._left_out)
        if new:
            self._left_out |= names
            shown = ", ".join(new[:10]) + (", …" if len(new) > 10 else "")
            output.notice(
                f"no room for {output.counted(len(new), 'column')} ({shown}); --format json shows "
                "everything"
            )


def fitted(columns: dict[str, int], width: int | None) -> dict[str, int]:
    """Return column widths that fit into `width`: cut the widest first, and drop the last columns
    if that is not enough."""
    shown = dict(columns)
    if width is None:
        return shown
    while (
        len(shown) > 1
        and sum(min(size, WIDTH_MIN) + len(GAP) for size in shown.values()) - len(GAP) > width
    ):
        shown.popitem()
    over = sum(shown.values()) + len(GAP) * (len(shown) - 1) - width
    while over > 0 and (wide := [name for name, size in shown.items() if size > WIDTH_MIN]):
        ordered = sorted({shown[name] for name in wide}, reverse=True)
        widest = [name for name in wide if shown[name] == ordered[0]]
        floor = max(ordered[1] if len(ordered) > 1 else WIDTH_MIN, WIDTH_MIN)
        step = max(1, min(ordered[0] - floor, over // len(widest)))
        for name in widest[: max(1, over)]:
            shown[name] -= step
            over -= step
    return shown


def cell_text(value: Any) -> str:
    """Format a value on one line, with control characters escaped."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = (
        value
        if isinstance(value, str)
        else str(value)
        if isinstance(value, int)
        else msgspec.json.encode(value).decode()
    )
    return output.visible(text)


def display_width(text: str) -> int:
    """Return the terminal columns that a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def _cells(raw: msgspec.Raw) -> dict[str, Any]:
    """Return the cells of a record; a record that is not an object has one cell `value`."""
    value = msgspec.json.decode(raw)
    return (
        {cell_text(name): inner for name, inner in value.items()}
        if isinstance(value, dict)
        else {"value": value}
    )


def _line(cells: Sequence[tuple[str, int, bool]]) -> str:
    """Join (text, width, align right) into one line."""
    parts = []
    for text, width, to_right in cells:
        cut = _cut(text, width)
        room = " " * (width - display_width(cut))
        parts.append(room + cut if to_right else cut + room)
    return GAP.join(parts).rstrip()


def _cut(text: str, width: int) -> str:
    if display_width(text) <= width:
        return text
    kept, size = "", 0
    for char in text:
        size += display_width(char)
        if size >= width:
            break
        kept += char
    return kept + "…"


def _width() -> int | None:
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else None
