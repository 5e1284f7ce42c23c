"""The stream that a route below a prefix names, such as `/v1/segments/NAME`."""

from __future__ import annotations

from polynya.access.grants import Verb
from polynya.base.names import BadName, canonical_name, spelled_name
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request


def stream_to_see_or_change(request: Request, change: str) -> str:
    """Return the name of the stream in the rest of the path: for GET with `read`, for POST with
    `change`.

    Raises Failure: another method, no name of a stream, a token without the right."""
    if request.method not in ("GET", "HEAD", "POST"):
        raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD, POST"),))
    try:
        name = canonical_name("/".join(request.segments))
    except BadName as bad:
        raise Failure("INVALID_NAME", str(bad)) from None
    verb = change if request.method == "POST" else Verb.READ
    if request.principal is not None and not request.principal.may(verb, name):
        raise Failure("FORBIDDEN", f"the token does not allow '{verb}' on {spelled_name(name)}")
    return name
