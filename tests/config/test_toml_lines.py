"""Lines of keys in TOML: every key that the parser finds is found, where it stands."""

from __future__ import annotations

import tomllib
from typing import Any

from polynya.config.toml_lines import lines_of_keys

TEXT = '''# listen = "no"
listen = "127.0.0.1:1" # cores = 3

cores = 2
"data" = "x = y"
cold.backend = "local"
[log]  # here
level="info"
note = """
level = "inside"
[cold]
"""
[ cold . "s3" ]
  'bucket'   = "b"
'''


def leaves(tree: dict[str, Any], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, value in tree.items():
        found |= leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name}
    return found


def test_every_key_has_its_line() -> None:
    lines = lines_of_keys(TEXT)
    assert set(lines) == leaves(tomllib.loads(TEXT))
    assert lines == {
        "listen": 2,
        "cores": 4,
        "data": 5,
        "cold.backend": 6,
        "log.level": 8,
        "log.note": 9,
        "cold.s3.bucket": 14,
    }
