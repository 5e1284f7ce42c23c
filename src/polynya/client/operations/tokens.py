"""Short tokens for pages: minted with the client's own token."""

from __future__ import annotations

import msgspec

from polynya.client.calls import call, decoded
from polynya.client.messages import HttpRequest, HttpResponse, Operation, Retry
from polynya.client.values import JSON_TYPE

PATH = "/v1/tokens/short"


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a request."""

    stream: str | None = None
    prefix: str | None = None
    verbs: tuple[str, ...] = ()
    expires_in_seconds: float = 0.0


class ShortToken(msgspec.Struct, frozen=True):
    """A token for a page. `expires_ms`: in ms since 1970. Its text is a secret."""

    token: str
    expires_ms: int

    def __repr__(self) -> str:
        return f"ShortToken(token='…', expires_ms={self.expires_ms})"


def mint(wanted: Wanted, retry: Retry) -> Operation[ShortToken]:
    """Mint a short token. Raises ValueError unless the request names a stream or a prefix."""
    if (wanted.stream is None) == (wanted.prefix is None):
        raise ValueError("pass either stream or prefix: a short token is for one of them")
    request = HttpRequest("POST", PATH, {"content-type": JSON_TYPE}, msgspec.json.encode(wanted))

    def take(answer: HttpResponse) -> ShortToken:
        return decoded(answer, ShortToken, f"POST {PATH}")

    return (yield from call(request, retry, f"POST {PATH}", take, repeatable=True))
