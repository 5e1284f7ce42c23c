"""Select and open a store from plain settings, which can be sent to another process and opened
there."""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping

import msgspec

from polynya.base.errors import ConfigError
from polynya.objectstore.api import ObjectStore
from polynya.objectstore.local import LocalStore
from polynya.objectstore.memory import MemoryStore

BACKENDS = ("local", "s3", "memory", "none")


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a store.

    `root` is a folder for `local` and a key prefix in the bucket for `s3`. Empty S3 fields follow
    the standard AWS chain: `AWS_…` variables, the profile of the shared files, web identity,
    container and instance roles.
    """

    backend: str = "local"
    root: str = ""
    shared: bool = False  # other users may read the folder of `local`
    s3_bucket: str = ""
    s3_region: str = ""
    s3_endpoint: str = ""
    s3_access_key_id: str = ""
    s3_secret_access_key: str = ""
    s3_session_token: str = ""

    def __repr__(self) -> str:
        """Omit secrets, because settings end up in logs."""
        return (
            f"StoreSettings(backend={self.backend!r}, root={self.root!r}, "
            f"s3_bucket={self.s3_bucket!r}, s3_endpoint={self.s3_endpoint!r})"
        )


def open_store(
    settings: StoreSettings,
    environment: Mapping[str, str] = os.environ,
    *,
    late: bool = False,
    to_read: bool = False,
) -> ObjectStore | None:
    """Open the store, or return None for the backend `none`.

    With `late`, a folder that cannot be created yet is no error. With `to_read`, the folder is only
    read and never changed. Raises ConfigError, StoreUnavailable.
    """
    if settings.backend == "none":
        return None
    if settings.backend == "memory":
        return MemoryStore()
    if settings.backend == "local":
        if not settings.root:
            raise ConfigError("the object store 'local' needs a root folder")
        return LocalStore(settings.root, late=late, to_read=to_read, shared=settings.shared)
    if settings.backend == "s3":
        return _open_s3(settings, environment)
    raise ConfigError(
        f"unknown object store backend {settings.backend!r}: use one of {', '.join(BACKENDS)}"
    )


def s3_config(
    settings: StoreSettings, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return obstore's `S3Config`: explicit settings, then the shared AWS files. obstore finds the
    rest itself."""
    if bool(settings.s3_access_key_id) != bool(settings.s3_secret_access_key):
        raise ConfigError(
            "set both the S3 access key id and the S3 secret access key, or neither (then the AWS "
            "credential chain is used)"
        )
    endpoints = (
        environment.get(name, "")
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    )
    config = {
        "region": settings.s3_region,
        "endpoint": settings.s3_endpoint
        or next(filter(None, endpoints), ""),  # needed here, because plain HTTP must be allowed
        "access_key_id": settings.s3_access_key_id,
        "secret_access_key": settings.s3_secret_access_key,
        "session_token": settings.s3_session_token,
    }
    chosen = {key: value for key, value in config.items() if value}
    profile = _profile(environment)
    if (
        not settings.s3_access_key_id
        and not {"AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"} & environment.keys()
    ):
        chosen |= {key: value for key, value in profile.items() if key != "region"}
    if not settings.s3_region and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & environment.keys():
        chosen["region"] = profile.get("region", "us-east-1")
    return chosen


def _open_s3(settings: StoreSettings, environment: Mapping[str, str]) -> ObjectStore:
    # load obstore and start its threads only where S3 is used
    from polynya.objectstore.s3 import S3Store

    if not settings.s3_bucket:
        raise ConfigError("the object store 's3' needs a bucket")
    if settings.s3_endpoint and not settings.s3_endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            f"the S3 endpoint must begin with http:// or https://, not {settings.s3_endpoint!r}"
        )
    return S3Store(settings.s3_bucket, s3_config(settings, environment), settings.root)


def _profile(environment: Mapping[str, str]) -> dict[str, str]:
    """Read static keys and region of the profile in `~/.aws/credentials` and `~/.aws/config`, which
    obstore ignores."""
    name = environment.get("AWS_PROFILE", "default")
    home = os.path.join(environment.get("HOME", os.path.expanduser("~")), ".aws")
    credentials = _section(
        environment.get("AWS_SHARED_CREDENTIALS_FILE", os.path.join(home, "credentials")), name
    )
    config = _section(
        environment.get("AWS_CONFIG_FILE", os.path.join(home, "config")),
        name if name == "default" else f"profile {name}",
    )
    merged = config | credentials
    found = {
        key: merged[f"aws_{key}"]
        for key in ("access_key_id", "secret_access_key", "session_token")
        if f"aws_{key}" in merged
    }
    return found | ({"region": merged["region"]} if "region" in merged else {})


def _section(path: str, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path)
    except configparser.Error as fault:
        raise ConfigError(f"{path} cannot be read as an AWS configuration file: {fault}") from None
    return dict(parser[name]) if parser.has_section(name) else {}
