"""Offset tokens: `%016d_%016d`, the absolute record number and byte position."""

import re

_TOKEN = re.compile(r"(\d{1,18})_(\d{1,18})", re.ASCII)
START = "0000000000000000_0000000000000000"


def format_token(record: int, byte: int) -> str:
    """Return the token of the boundary before `record`, at stream position `byte`."""
    return f"{record:016d}_{byte:016d}"


def parse_token(text: str) -> tuple[int, int] | None:
    """Return (record, byte), or None when `text` is not a token."""
    match = _TOKEN.fullmatch(text)
    return (int(match[1]), int(match[2])) if match else None
