"""Turn an S3 service's refusal into one line for operators: the code, its message, and the
remedy."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html import unescape

from polynya.objectstore.api import AWAY

WORDS_MAX = 300  # characters of a message; a service may send anything
_ANSWER = re.compile(
    r"Error performing ([A-Z]+) (\S+) in .*?status code: (\d{3}[^:\n]*)", re.DOTALL
)
_CLOCK = (
    "the clocks of this machine and of the object store differ: synchronize this machine by NTP "
    "(chrony, systemd-timesyncd)"
)
METADATA = "169.254.169.254"  # the metadata service of a cloud VM; used when no credentials are set
_NO_CREDENTIALS = (
    "no credentials are set (cold.s3_access_key_id and its secret, or AWS_ACCESS_KEY_ID and its "
    "secret), and the machine has no role"
)
_KEY = (
    "check that the secret access key belongs to the access key id, and that no proxy changes "
    "requests"
)
_ADVICE = {
    "RequestTimeTooSkewed": _CLOCK,
    "RequestExpired": _CLOCK,
    "RequestInTheFuture": _CLOCK,
    "SignatureDoesNotMatch": _KEY,
    "InvalidAccessKeyId": "the object store does not know the access key id",
    "AccessDenied": (
        "these credentials must be allowed to get, put, list and delete objects of this bucket, "
        "under this root"
    ),
    "ExpiredToken": (
        "the session token has expired, or the clock of this machine is wrong: renew the token or "
        "set the clock"
    ),
}


def describe(fault: BaseException) -> str:
    """Return the description of an obstore error: its own text if no service answered, or if the
    answer cannot be parsed."""
    text = str(fault).strip()
    answer = _ANSWER.search(text)
    if METADATA in text:
        return (
            f"{_NO_CREDENTIALS}: "
            f"{text if answer is None else ' '.join(answer.group(1, 2, 3)).strip()}"
        ).split("\n", 1)[0]
    if answer is None:
        return text.split("\n", 1)[0]
    method, url, status = answer.groups()
    body = text.partition("\n\nDebug source:")[0]
    code, message = _part(body, "Code"), _part(body, "Message")
    parts = [
        f"{method} {url}: {status.strip()}",
        code,
        message.rstrip("."),
        _clocks(body),
        _ADVICE.get(code, ""),
    ]
    return ": ".join(part for part in parts if part)


def reason(fault: BaseException) -> str:
    """Return the description without addresses, names and the service's own message."""
    text = str(fault)
    answer = _ANSWER.search(text)
    if METADATA in text:
        return _NO_CREDENTIALS
    if answer is None:
        return AWAY
    code = _part(text.partition("\n\nDebug source:")[0], "Code")
    parts = [answer[3].strip(), code, _ADVICE.get(code, "the log says more")]
    return ": ".join(part for part in parts if part)


def says_nothing(fault: BaseException) -> bool:
    """Report whether the refusal has no reason: a response to HEAD has no body."""
    answer = _ANSWER.search(str(fault))
    return (
        answer is not None and answer[1] == "HEAD" and answer[3].startswith(("400", "401", "403"))
    )


def _part(body: str, name: str) -> str:
    found = re.search(f"<{name}>(.*?)</{name}>", body, re.DOTALL)
    return "" if found is None else unescape(" ".join(found[1].split()))[:WORDS_MAX]


def _clocks(body: str) -> str:
    """Compare both clocks, if the service sends its time."""
    there = _part(body, "ServerTime")
    return (
        f"the time is {there} at the store and {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} on this "
        "machine"
        if there
        else ""
    )
