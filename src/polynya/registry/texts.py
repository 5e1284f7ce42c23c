"""Read and write the JSON of schemas."""

from __future__ import annotations

import json
from typing import Any

from polynya.registry.refused import BadSchema


def read_json(text: str) -> Any:
    """Decode a schema's text. Raises BadSchema, with the line and the column."""
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except json.JSONDecodeError as bad:
        raise BadSchema(f"line {bad.lineno}, column {bad.colno}: {bad.msg}") from None
    except RecursionError:
        raise BadSchema("the JSON is nested too deeply") from None
    except ValueError as bad:  # a number of too many digits
        raise BadSchema(str(bad)) from None


def write_json(value: Any) -> str:
    """Encode as one line without blanks."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _refuse(name: str) -> Any:
    raise BadSchema(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = set[str]()
        for name, _ in pairs:
            if name in seen:
                raise BadSchema(f"an object has the name '{name[:64]}' twice")
            seen.add(name)
    return found
