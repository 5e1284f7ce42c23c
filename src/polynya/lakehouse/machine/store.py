"""Check that this machine can read the tables' object store, within seconds: without credentials or
a network a job would retry for a minute."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

from polynya.base.errors import ConfigError
from polynya.lakehouse.reading.blobs import Blobs, open_blobs, with_credentials
from polynya.objectstore import StoreSettings, StoreUnavailable
from polynya.objectstore.s3_refusals import METADATA, describe
from polynya.objectstore.settings import s3_config

STORE_SECONDS = 4.0  # one list request, credentials included
CONNECT_SECONDS = 2.0
METADATA_SERVICE = (METADATA, 80)
ROLES = (  # variables that name a role, whose credentials obstore fetches
    "AWS_METADATA_ENDPOINT",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
NO_CREDENTIALS = (
    "no S3 credentials were found: set POLYNYA_COLD_S3_ACCESS_KEY_ID and "
    "POLYNYA_COLD_S3_SECRET_ACCESS_KEY, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a "
    "profile in ~/.aws, or give the machine a role"
)
_STATUS = re.compile(r": (\d{3}) ")  # in the words of a refusal
_DENIED = ("401", "403")
_checked: set[StoreSettings] = set()


def checked_blobs(settings: StoreSettings) -> Blobs:
    """Open a store. The first time in this process, check that it answers. Raises ConfigError,
    StoreUnavailable."""
    if settings not in _checked:
        check_store(settings)
        _checked.add(settings)
    return open_blobs(settings)


def check_store(settings: StoreSettings, environment: Mapping[str, str] = os.environ) -> None:
    """List some keys of the store. Raises ConfigError if the credentials are missing or refused,
    StoreUnavailable if the store does not answer in time."""
    if settings.backend != "s3":
        open_blobs(settings, environment)
        return
    config, location, has_source = _credentials(settings, environment)
    faults: list[BaseException | None] = []
    asked = threading.Thread(
        target=lambda: faults.append(_fault(settings, config)), name="store-check", daemon=True
    )
    asked.start()
    asked.join(STORE_SECONDS)  # a lookup of credentials has retries of its own
    if faults == [None]:
        return
    if not has_source:
        raise ConfigError(f"{location}: {NO_CREDENTIALS}")
    if not faults:
        raise StoreUnavailable(f"{location} did not answer within {STORE_SECONDS:.0f} s")
    raise _explained(location, config, cast(BaseException, faults[0]))


def check_credentials(settings: StoreSettings, environment: Mapping[str, str] = os.environ) -> None:
    """Check that this process has credentials for a store, or a machine that may give it some.
    Raises ConfigError."""
    if settings.backend != "s3":
        return
    _, location, has_source = _credentials(settings, environment)
    if not has_source and not _may_have_role():
        raise ConfigError(f"{location}: {NO_CREDENTIALS}")


def _may_have_role() -> bool:
    """Report whether a metadata service answers here, which knows the roles of cloud machines."""
    try:
        socket.create_connection(METADATA_SERVICE, CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _credentials(
    settings: StoreSettings, environment: Mapping[str, str]
) -> tuple[dict[str, str], str, bool]:
    """Return the settings of S3, the store's name, and whether they or the environment name
    credentials."""
    config = s3_config(with_credentials(settings, environment), environment)
    location = f"s3://{settings.s3_bucket} at {config.get('endpoint') or 'AWS'}"
    named = any(environment.get(name) for name in ("AWS_ACCESS_KEY_ID", *ROLES))
    return config, location, named or "access_key_id" in config


def _fault(settings: StoreSettings, config: dict[str, str]) -> BaseException | None:
    """Return why the store refuses to list the tables' keys, or None."""
    import obstore
    from obstore.store import S3Store

    brief: Any = {
        "timeout": timedelta(seconds=STORE_SECONDS),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "allow_http": config.get("endpoint", "").startswith("http://"),
    }
    once: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=STORE_SECONDS)}
    try:
        store = S3Store(
            settings.s3_bucket,
            prefix=settings.root.strip("/") or None,
            config=cast(Any, config),
            client_options=brief,
            retry_config=once,
        )
        next(iter(obstore.list(store, prefix="tables", chunk_size=1)), None)
    except BaseException as fault:
        return fault
    return None


def _explained(location: str, config: Mapping[str, str], fault: BaseException) -> Exception:
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    key = config.get("access_key_id") or os.environ.get("AWS_ACCESS_KEY_ID", "")
    text = describe(fault)
    found = _STATUS.search(text)  # a refused list request has no class of its own
    status = found[1] if found else ""
    if isinstance(fault, PermissionDeniedError | UnauthenticatedError) or status in _DENIED:
        return ConfigError(f"{location} refused the access key '{key}': {text}")
    if isinstance(fault, FileNotFoundError) or status == "404":
        return ConfigError(f"{location}: there is no such bucket: {text}")
    if isinstance(fault, BaseError | OSError):
        return StoreUnavailable(f"{location} cannot be reached: {text}")
    return cast(Exception, fault)
