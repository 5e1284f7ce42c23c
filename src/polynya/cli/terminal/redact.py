"""Remove secrets from text that leaves the machine: known ones, and patterns of secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

MASK = "***"
KNOWN_LENGTH_LEAST = 4  # shorter secrets would match ordinary words
_LOOKS = (
    re.compile(r"(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{4,}"),
    re.compile(r"(://[^/\s:@\"']*:)[^@/\s\"']+(?=@)"),
    re.compile(
        r"(?i)([\w-]*(?:secret|passw(?:or)?d|token|signature|credential|api[_-]?key|private[_-]?key)[\w-]*[\"']?\s*[=:]\s*[\"']?)"
        r"(?!\*\*\*|null|true|false)[^\s\"',;&{}\[\]]+"
    ),
    re.compile(r"()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_.-]+"),  # a JWT
    re.compile(
        r"()-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
    ),
)


def scrubber(secrets: Iterable[str]) -> Callable[[str], str]:
    """Return a function that replaces known secrets and everything that looks like one with
    `***`."""
    known = sorted(
        {secret for secret in secrets if len(secret) >= KNOWN_LENGTH_LEAST}, key=len, reverse=True
    )
    exact = re.compile("|".join(map(re.escape, known))) if known else None

    def scrub(text: str) -> str:
        if exact is not None:
            text = exact.sub(MASK, text)
        for looks in _LOOKS:
            text = looks.sub(rf"\1{MASK}", text)
        return text

    return scrub
