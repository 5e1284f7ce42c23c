"""Logins for foreign schema registries, from a file on the machine of the driver.

The environment variable `POLYNYA_REGISTRY_LOGINS` names a TOML file with a table for each registry:

    ["https://registry.example.com"]
    user = "KEY"
    password = "SECRET"

    ["https://schemas.shop:8081"]
    token = "SECRET"
    ca = "/etc/ssl/shop.pem"

The table's name is the URL of the registry or what its URL begins with, up to a "/". The longest one
applies. A secret is sent to these servers alone: a table may name any registry. The file is read for
each request, so a changed password needs no restart.
"""

from __future__ import annotations

import base64
import os
import tomllib
from collections.abc import Generator
from pathlib import Path

import httpx
import msgspec

from polynya.base.errors import PolynyaError

VARIABLE = "POLYNYA_REGISTRY_LOGINS"
_EXPECTED = "expected user and password, or token, and ca if you like"


class RegistryRefused(PolynyaError):
    """A registry refuses to answer, or its answer is invalid: only its tables wait."""


class Login(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """HTTP's basic login or a bearer token of a registry, and the CA of its certificate."""

    user: str = ""
    password: str = ""
    token: str = ""
    ca: str = ""

    @property
    def is_complete(self) -> bool:
        """Report whether it is one login, or only a CA."""
        if self.token:
            return not (self.user or self.password)
        return bool(self.user) == bool(self.password) and bool(self.user or self.ca)

    @property
    def header(self) -> str:
        """Return the header `Authorization`, or "" for none."""
        if self.token:
            return f"Bearer {self.token}"
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return f"Basic {pair}" if self.user else ""


def login_for(url: str) -> Login:
    """Return the login of the registry at a URL; an empty one if the file has none. Raises
    RegistryRefused."""
    name = os.environ.get(VARIABLE, "")
    if not name:
        return Login()
    logins = _logins(Path(name))
    fitting = (each for each in logins if url == each or url.startswith(f"{each}/"))
    return logins.get(max(fitting, key=len, default=""), Login())


def _logins(path: Path) -> dict[str, Login]:
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except OSError as fault:
        raise RegistryRefused(
            f"{path}, which {VARIABLE} names, cannot be read: {fault.strerror}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        raise RegistryRefused(f"{path}, which {VARIABLE} names, is no TOML: {fault}") from None
    return {_url(path, name): _login(path, name, entry) for name, entry in tree.items()}


def _url(path: Path, name: str) -> str:
    if not name.startswith(("http://", "https://")):
        raise RegistryRefused(
            f"{path} has a table '{name[:100]}'; expected the URL of a schema registry in quotes, such "
            'as ["https://registry.example.com"]'
        )
    return name.rstrip("/")


def _login(path: Path, name: str, entry: object) -> Login:
    try:
        login = msgspec.convert(entry, Login)
    except msgspec.ValidationError as fault:  # names the key, never a value
        raise RegistryRefused(f"{path}, table '{name}': {fault}; {_EXPECTED}") from None
    if not login.is_complete:
        raise RegistryRefused(f"{path}, table '{name}': {_EXPECTED}")
    return login


class RegistryAuth(httpx.Auth):
    """Add the login of a registry to each request."""

    def __init__(self, url: str) -> None:
        self._url = url

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        header = login_for(self._url).header
        if header:
            request.headers["Authorization"] = header
        yield request
