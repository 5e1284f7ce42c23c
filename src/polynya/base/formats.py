"""The version of what one start of the product leaves for the next: data folders, backups, roots of object stores, files of tokens.

Version 1 was never released. It took a first segment of one to three characters for no bucket, so `iot/a` was in the bucket `default` there.
"""

from __future__ import annotations

from polynya.base.errors import ConfigError

FORMAT = 2


def check_format(what: str, found: int, *, older: str) -> None:
    """Raises `ConfigError` unless this release reads the format; `older` says what to do about an older one."""
    if found != FORMAT:
        step = older if found < FORMAT else "use the release that wrote it, or a newer one"
        raise ConfigError(f"{what} has format {found}, and this release reads format {FORMAT}: {step}")
