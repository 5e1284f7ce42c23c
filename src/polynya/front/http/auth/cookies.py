"""A token in a cookie, which a browser sends with every request of any page: so the page must be an
allowed one, by its `Origin` or by `Sec-Fetch-Site`."""

from __future__ import annotations

from polynya.access import Principal
from polynya.front.http.protocol.cors import SAFE_METHODS, Cors
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.wire.http.http1 import Head

_OWN = frozenset(("same-origin", "none"))  # a page of the node itself, or an address typed in


class TokenCookie:
    """The cookie that may hold a token. `cors` has the origins whose pages may use it."""

    def __init__(self, name: str, cors: Cors) -> None:
        self._name = name
        self._cors = cors

    def token(self, head: Head) -> str | None:
        """Return the cookie's token; None without the cookie. Raises `Failure` if there are
        several, of which a foreign site under the same domain may have set one."""
        found = [
            value.strip().strip('"')
            for name, _, value in (
                each.partition("=") for each in head.headers.get("cookie", "").split(";")
            )
            if name.strip() == self._name
        ]
        if len(found) > 1:
            raise Failure(
                "TOKEN_REFUSED",
                f"the request has {len(found)} cookies named {self._name}: a name that begins with "
                "__Host- is set by this host alone",
            )
        return found[0] if found and found[0] else None

    def check_page(self, exchange: Exchange) -> None:
        """Raise `Failure` unless the page that sends the cookie is an allowed one (cross-site
        request forgery)."""
        headers, method = exchange.head.headers, exchange.head.method
        origin = headers.get("origin")
        if origin is not None:
            allowed = self._cors.may_use_cookies(origin, exchange.base_url)
        else:  # browsers send Origin with all but GET and HEAD of their own site
            site = headers.get("sec-fetch-site", "none")
            allowed = method in SAFE_METHODS and site in _OWN
        if not allowed:
            raise Failure(
                "ORIGIN_NOT_ALLOWED",
                "a cookie is taken from pages of this host and of the origins that cors_origins "
                "names one by one; send the header Authorization instead",
            )


def check_cookie_rights(principal: Principal) -> None:
    """Raise `Failure` for rights that no page may have by a cookie."""
    if principal.is_admin:
        raise Failure("FORBIDDEN", "a token with 'admin' is not taken from a cookie")
